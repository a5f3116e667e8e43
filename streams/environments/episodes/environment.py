"""What an environment is: it shows something for a seed, takes an action, and shows what came of it.

    reset(seed) ──► Shown ──► the policy ──► Action ──► step(action) ──► StepResult

A step has Gymnasium's five results (https://gymnasium.farama.org/api/env), with messages and tools instead of arrays:
what is shown is what the policy reads, so there is nothing between an environment and a prompt. Equal seeds and equal
actions give equal results, byte for byte; an episode can therefore be replayed from its seed and its actions alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Protocol

from pydantic import TypeAdapter

from schemas.events import Message, Tool, ToolCall
from streams.errors import EventError


@dataclass(frozen=True, slots=True)
class Shown:
    """What the policy reads next: after `reset` the whole first prompt, after `step` what is new."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy wrote: its text, and the calls that its own tool format has in it."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of an action."""

    shown: Shown
    reward: float | None = None
    """For this action alone. None: the environment says nothing about it."""
    terminated: bool = False
    """The episode has reached its end."""
    truncated: bool = False
    """The episode was cut off, e.g. because it had its turns."""
    tool: str | None = None
    """That the action called; of several the first."""
    ok: bool = True
    """Whether the environment could use the action."""
    success: bool | None = None
    """Whether the goal was reached; None while that is open."""

    @property
    def ended(self) -> bool:
        """Whether there is no further step."""
        return self.terminated or self.truncated


ACTION: TypeAdapter[Action] = TypeAdapter(Action)
SHOWN: TypeAdapter[Shown] = TypeAdapter(Shown)
RESULT: TypeAdapter[StepResult] = TypeAdapter(StepResult)
"""Of what crosses the border of an environment's process as JSON; types are checked on arrival."""


class Environment(Protocol):
    """One episode at a time; `reset` begins the next."""

    @property
    def version(self) -> str:
        """Another one whenever the same seed and actions may give something else."""

    def reset(self, seed: int) -> Shown:
        """Begin the episode of `seed`."""

    def step(self, action: Action) -> StepResult:
        """Do what the action says. An action that is no use is no error: `ok` is False, and what is shown says why."""


class EpisodeError(EventError):
    """An episode cannot begin or go on.

    `reason`: unknown_environment, bad_settings, missing_package, not_allowed, exception, bad_result, too_large,
    timeout, memory or crashed.
    """

    reason = "exception"


def digest(shown: Shown) -> str:
    """Return the sha256, in hexadecimal, of what is shown, as canonical JSON.

    >>> digest(Shown((Message(role="user", content="room 3"),)))[:12]
    'd2b8d61c61fb'
    """
    content = {
        "messages": [asdict(message) for message in shown.messages],
        "tools": [asdict(tool) for tool in shown.tools],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
