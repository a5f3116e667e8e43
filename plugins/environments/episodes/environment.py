"""The protocol of environments: an observation for a seed, then a result for each action.

    reset(seed) ──► Observation ──► the policy ──► Action ──► step(action) ──► StepResult

A step has Gymnasium's five results (https://gymnasium.farama.org/api/env), with messages and tools instead of arrays:
the policy reads the observation itself, without a layer in between. Equal seeds and actions give equal results, byte
for byte, so an episode can be replayed from its seed and actions.
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
class Observation:
    """What the policy reads next: after `reset` the whole first prompt, after `step` only the new messages."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy wrote: its text, and the calls that its own tool format has in it."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an action."""

    observation: Observation
    reward: float | None = None
    """For this action alone. None: the environment says nothing about it."""
    terminated: bool = False
    """The episode has reached its end."""
    truncated: bool = False
    """The episode was cut off, e.g. after its last turn."""
    tool: str | None = None
    """The tool that the action called; of several the first."""
    ok: bool = True
    """Whether the environment could use the action."""
    success: bool | None = None
    """Whether the goal was reached; None while that is open."""

    @property
    def is_over(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


ACTION: TypeAdapter[Action] = TypeAdapter(Action)
OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
RESULT: TypeAdapter[StepResult] = TypeAdapter(StepResult)
"""To and from the JSON between an environment's process and ours; types are checked on arrival."""
MOST_CALLS = 16
"""Most calls in one action; the rest are refused."""


class Environment(Protocol):
    """One episode at a time; `reset` begins the next."""

    @property
    def version(self) -> str:
        """Changes whenever the same seed and actions may give another episode."""

    def reset(self, seed: int) -> Observation:
        """Begin the episode of `seed`."""

    def step(self, action: Action) -> StepResult:
        """Do what the action says. An unusable action is no error: `ok` is False, and the observation says why."""


class EpisodeError(EventError):
    """An episode cannot begin or continue.

    `reason`: unknown_environment, bad_settings, missing_package, not_allowed, exception, bad_result, too_large,
    timeout, memory, crashed or not_repeatable.
    """

    reason = "exception"


def digest(observation: Observation) -> str:
    """Return the SHA-256 of an observation as canonical JSON, in hexadecimal.

    >>> digest(Observation((Message(role="user", content="room 3"),)))[:12]
    'd2b8d61c61fb'
    """
    content = {
        "messages": [asdict(message) for message in observation.messages],
        "tools": [asdict(tool) for tool in observation.tools],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
