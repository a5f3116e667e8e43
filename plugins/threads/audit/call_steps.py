"""The calls of a run, for the audit: which of its answer have results, which wait, and what no server can have written.

    run_answered ──► CallCount of each call ──► call_begun, …, run_resumed ──► ImpossibleEvent?

A second implementation of the servers' steps (log/run_steps.py). A call that was begun twice has to be idempotent, or a
person said so; a result without its beginning was lost, and so was a run's answer while its calls have no results.
A task of another server that brings a result was accepted before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.events import ThreadEvent
from streams.tools.audit.facts import Category
from streams.tools.audit.record_digests import digest

STEP_KINDS = ("run_answered", "call_begun", "call_accepted", "call_ended", "run_paused", "run_resumed")


class StepFact(NamedTuple):
    """What the event of a step says of calls."""

    calls: tuple[str, ...] = ()
    """Ids: of an answer's calls; otherwise of those that the event is about, without `results`."""
    results: tuple[str, ...] = ()
    """Ids of the calls whose results it brings."""
    allowed: frozenset[str] = frozenset()
    """Those that a person allowed."""
    needing: frozenset[str] = frozenset()
    """Those that a person is asked about, or that an agent answers."""
    attempt: int = 0
    idempotent: bool = False
    was_made: bool = False
    has_failed: bool = False
    remote_task: str | None = None
    handoff: int = 0
    """A digest of the result that is the run's answer."""


NO_STEP = StepFact()


def step_fact(event: ThreadEvent) -> StepFact:
    """Return what an event says of the calls of its run."""
    if event.kind not in STEP_KINDS:
        return NO_STEP
    results = tuple(message.tool_call_id or "" for message in event.messages if message.role == "tool")
    call = event.call
    if call is not None:
        was_made, has_failed = call.duration_ms is not None, call.error is not None
        is_answer = call.handoff and event.kind == "call_ended" and not has_failed
        handoff = digest(event.messages[0].content) if is_answer and event.messages else 0
        made = (call.attempt, call.idempotent, was_made, has_failed, call.remote_task, handoff)
        return StepFact((call.call_id,), results, frozenset(), frozenset(), *made)
    calls = [call.id for message in event.messages for call in message.tool_calls]
    calls += [wait.call_id for wait in event.waits] + [decision.call_id for decision in event.decisions]
    allowed = frozenset(decision.call_id for decision in event.decisions if decision.allowed)
    needing = frozenset(wait.call_id for wait in event.waits if wait.waits_for not in ("results", "remote"))
    return StepFact(tuple(calls), results, allowed, needing)


class ImpossibleEvent(NamedTuple):
    """Why no server can have written an event."""

    category: Category
    problem: str


@dataclass(slots=True)
class CallCount:
    """A call of a run's newest answer."""

    begun: int = 0
    waits: bool = False
    needs_person: bool = False
    """Whether it waits for a person, or for an agent that may."""
    allowed: bool = False
    """Since it was begun last."""
    remote_task: str | None = None


@dataclass(slots=True)
class RunCalls:
    """The calls of a run's newest answer that have no result, and the turns with its answers."""

    turns: list[str] = field(default_factory=list)
    open: dict[str, CallCount] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """How many calls its answers made, and how they ended."""
    handoff: int = 0
    """A digest of the result that is the run's answer."""

    def problem(self, kind: str, turn_id: str, step: StepFact) -> ImpossibleEvent | None:
        """Return what is wrong with the next step; None: it takes effect, or changes nothing."""
        if kind == "run_answered":
            if self.open and turn_id not in self.turns:
                return ImpossibleEvent("lost", f"calls of its run have no results: {', '.join(self.open)}")
            return None
        for call_id in dict.fromkeys((*step.calls, *step.results)):
            call = self.open.get(call_id)
            if call is None:
                if kind in ("run_resumed", "call_ended") or turn_id in self.turns[:-1]:
                    continue  # two clients met, or it was written before
                return ImpossibleEvent("contradictory", f"call {call_id} has a result, or no answer of its run made it")
            if kind == "call_begun" and call.begun and step.attempt == call.begun:
                if not step.idempotent and not call.allowed:
                    return ImpossibleEvent(
                        "doubled", f"call {call_id} was begun already, and its tool is not idempotent"
                    )
            elif kind == "call_ended" and step.was_made and not call.begun:
                return ImpossibleEvent("lost", f"call {call_id} was never begun: that event is not before it")
            elif kind == "call_ended" and step.remote_task != call.remote_task:
                return ImpossibleEvent(
                    "lost", f"call {call_id} ended by task {step.remote_task}, which was never accepted"
                )
        return None

    def changes(self, kind: str, turn_id: str, step: StepFact) -> bool:
        """Return whether a step takes effect."""
        if kind == "run_answered":
            return turn_id not in self.turns and not self.open
        calls = [self.open.get(call_id) for call_id in (*step.calls, *step.results)]
        if not calls or any(call is None or call.waits != (kind == "run_resumed") for call in calls):
            return False
        return kind != "call_begun" or all(call is not None and call.begun == step.attempt for call in calls)

    @property
    def wait(self) -> bool:
        """Whether a call waits for a client or a person."""
        return any(call.waits for call in self.open.values())

    @property
    def needs_person(self) -> bool:
        """Whether a call waits for a person, or for an agent that may."""
        return any(call.waits and call.needs_person for call in self.open.values())

    def take(self, kind: str, turn_id: str, step: StepFact) -> None:
        """Take in a step that takes effect."""
        match kind:
            case "run_answered":
                self.turns.append(turn_id)
                self.open = {call_id: CallCount() for call_id in step.calls}
                self.counts["calls by runs"] += len(self.open)
            case "call_begun":
                call = self.open[step.calls[0]]
                call.begun, call.allowed = call.begun + 1, False
            case "call_accepted":
                self.open[step.calls[0]].remote_task = step.remote_task
            case "call_ended":
                del self.open[step.calls[0]]
                self.handoff = self.handoff or step.handoff
                self.counts["calls failed" if step.has_failed else "calls answered"] += 1
            case "run_paused":
                for call_id in step.calls:
                    self.open[call_id].waits = True
                    self.open[call_id].needs_person = call_id in step.needing
            case "run_resumed":
                for call_id in step.calls:
                    self.open[call_id].waits, self.open[call_id].allowed = False, call_id in step.allowed
                for call_id in step.results:
                    del self.open[call_id]
                self.counts["calls by clients"] += len(step.results)
