"""How a run of an agent ended, as whoever ran it says."""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import AnswerRule, Ending, Observed


class RunEnd(NamedTuple):
    """How a run ended, and what its environment made of it."""

    ending: Ending
    reason: str
    exit_code: int | None = None
    """Of its program; negative: the signal that killed it. None: it has none, it never ran, or nobody knows."""
    observed: Observed | None = None
    """What its environment showed last. None: it has none."""
    success: bool | None = None
    """Whether its environment says that the goal was reached."""
    answer: str | None = None
    """The turn that is its answer. None: unknown."""
    answer_rule: AnswerRule | None = None
    """Which of several answers counts. None: the one that `output` repeats."""
    output: str | None = None
    """The end of what its program printed. None: nothing."""
