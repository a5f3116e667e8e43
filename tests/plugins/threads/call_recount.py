"""What tools were called for runs, counted from the log, from what the tools noted and from what clients have read.

    threads ──► each call of an answer: its beginnings, its one result        child runs: one for each call of an agent
    notes ────► a call was begun no more often than the log has it, and has a result only if it ended

Nothing of the product's fold is used. An event that was written twice has one id.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.events import RunCall, ThreadEvent, ToolCall

ONCE = ("once", "sign")
"""Tools that may not be called again, unless a person says so."""


class RunOfCall(NamedTuple):
    run_id: str
    call_id: str


@dataclass
class CallRecount:
    """The calls of a log."""

    calls: dict[RunOfCall, ToolCall] = field(default_factory=dict)
    begun: dict[RunOfCall, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[RunOfCall, RunCall] = field(default_factory=dict)
    results: dict[RunOfCall, list[str]] = field(default_factory=lambda: defaultdict(list))
    allowed: Counter[RunOfCall] = field(default_factory=Counter)
    children_of: dict[RunOfCall, list[str]] = field(default_factory=lambda: defaultdict(list))
    read: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Results by run, in the order of the log."""
    problems: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """How many beginnings were not a call's first."""
        return sum(max(len(attempts) - 1, 0) for attempts in self.begun.values())

    @property
    def children(self) -> int:
        """How many runs answered a call."""
        return sum(map(len, self.children_of.values()))

    @property
    def errors(self) -> dict[str, str]:
        """The errors of calls of functions, by tool and name."""
        return {_noted(self.calls[key]): call.error for key, call in self.ended.items() if call.error is not None}

    def take(self, event: ThreadEvent) -> None:
        run_id = event.run_id or ""
        if event.kind == "run_answered":
            for call in event.messages[0].tool_calls:
                if RunOfCall(run_id, call.id) in self.calls:
                    self.problems.append(f"run {run_id} has two calls {call.id}")
                self.calls[RunOfCall(run_id, call.id)] = call
        elif event.kind == "call_begun" and event.call is not None:
            self.begun[RunOfCall(run_id, event.call.call_id)].append(event.call.attempt)
        elif event.kind == "run_requested" and event.parent is not None:
            self.children_of[RunOfCall(event.parent.run_id, event.parent.call_id)].append(run_id)
        if event.kind == "call_ended" and event.call is not None:
            self.ended[RunOfCall(run_id, event.call.call_id)] = event.call
        if event.kind in ("call_ended", "run_resumed"):
            for message in event.messages:
                self.results[RunOfCall(run_id, message.tool_call_id or "")].append(message.content)
                self.read[run_id].append(message.content)
        self.allowed.update(RunOfCall(run_id, decision.call_id) for decision in event.decisions if decision.allowed)

    def check(self, notes: Sequence[str], read: Mapping[str, list[str]]) -> None:
        """Find what does not fit together."""
        noted = Counter(line.rpartition(" ")[0] for line in notes)
        for key, call in self.calls.items():
            self.problems += [f"call {_noted(call)} of run {key.run_id} {problem}" for problem in self._of(key, noted)]
        for run_id, results in read.items():
            if results != self.read[run_id]:
                self.problems.append(f"run {run_id} has results {self.read[run_id]}, and its client read {results}")

    def _of(self, key: RunOfCall, noted: Counter[str]) -> Iterator[str]:
        call, attempts, results = self.calls[key], self.begun[key], self.results[key]
        name = _noted(call)
        if len(results) != 1:
            yield f"has {len(results)} results: {results}"
        if attempts != list(range(len(attempts))):
            yield f"was begun as {attempts}"
        if call.name == "ask":
            child = self.ended[key].child_run if key in self.ended else None
            if self.children_of[key] != [child]:
                yield f"was answered by {child}, and has the runs {self.children_of[key]}"
            return
        if noted[f"begun {name}"] > len(attempts):
            yield f"was made {noted[f'begun {name}']} times, and begun {len(attempts)} times"
        if call.name in ONCE and len(attempts) > self.allowed[key] + (call.name == "once"):
            yield f"was begun {len(attempts)} times, allowed {self.allowed[key]} times"
        if results == [f"made {name}"] and not noted[f"ended {name}"]:
            yield "has a result and did not end"


def recount_calls(events: Sequence[ThreadEvent], notes: Sequence[str], read: Mapping[str, list[str]]) -> CallRecount:
    """Return the calls of a log, with what is wrong; `read`: the results that clients have read, by run."""
    recount = CallRecount()
    seen = set[str]()
    for event in events:
        if event.event_id not in seen:
            seen.add(event.event_id)
            recount.take(event)
    recount.check(notes, read)
    return recount


def _noted(call: ToolCall) -> str:
    return f"{call.name} {json.loads(call.arguments).get('name')}"
