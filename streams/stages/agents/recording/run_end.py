"""How a run of an agent ended, as its runner reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from schemas.events import AnswerRule, Ending, Observed


class TrajectoryEnd(NamedTuple):
    """How a run ended, and its environment's result."""

    ending: Ending
    reason: str
    exit_code: int | None = None
    """Exit code of its program; negative: the signal that killed it. None: no program, never started, or unknown."""
    observed: Observed | None = None
    """The last observation of its environment. None: it has none."""
    success: bool | None = None
    """Whether its environment says that the goal was reached."""
    answer: str | None = None
    """The turn that is its answer. None: unknown."""
    answer_rule: AnswerRule | None = None
    """Rule that chooses between several answers. None: the one that `output` repeats."""
    output: str | None = None
    """The end of its program's output. None: no output."""
    needs_consent: bool = False
    """Whether it waited for a person's consent to a call."""


EndOfRun = Callable[[str], TrajectoryEnd | None]
"""Returns how the run of a trajectory ended, apart from the reason; None: its last answer is its end."""
