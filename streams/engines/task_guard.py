"""A guard of tasks and their answers, which a plugin declares: what it refuses, replaces or withholds.

    SamplingRequest ──► admit: refused, or as it is sampled ──► engine
    Completion ──► review: withheld, with words replaced, or as it was sampled ──► events, then responses

The policy agent asks it about every task, whatever answers: the engine, an outside model, a step. Without a guard
nothing is looked at.

Not covered: calls of models, which have a guard of their own (streams/stages/agents/recording/call_guard.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.events import Event
from streams.engines.protocol import Completion, SamplingRequest
from streams.observability.metrics import Meter
from streams.plugins.installed import load_only
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True)
class GuardedRequest:
    """A task as its guard lets it be sampled."""

    request: SamplingRequest
    events: Sequence[Event] = ()
    refused: list[Completion] | None = None
    """Its answers, if it is not sampled."""


class GuardedAnswers(NamedTuple):
    """The answers to a task as their guard lets them be given."""

    completions: list[Completion]
    events: Sequence[Event] = ()


class TaskGuard:
    """Looks at tasks and answers, in the thread of the policy agent."""

    def admit(self, request: SamplingRequest) -> GuardedRequest:
        """Return the decision about a task."""
        raise NotImplementedError

    def review(self, request: SamplingRequest, completions: list[Completion]) -> GuardedAnswers:
        """Return the decision about its answers, one for each slot."""
        raise NotImplementedError


TaskGuardBuilder = Callable[[Settings, Meter], TaskGuard | None]
"""Builds a guard, which counts what it finds; None: the settings ask for none."""


def build_task_guard(settings: Settings, meter: Meter) -> TaskGuard | None:
    """Return the guard of the plugins, of which one at most has one. Raises SettingsError."""
    build: TaskGuardBuilder | None = load_only(lambda plugin: plugin.task_guard, "guard tasks")
    return None if build is None else build(settings, meter)
