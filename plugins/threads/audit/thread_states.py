"""The state of a thread after its events, for the audit: which run is in progress, and the messages that it gets.

    ThreadFact, in the order of its partition ──► refusal: why it changes nothing ──► take ──► ThreadCount

A second implementation of the servers' fold (log/thread_state.py), over digests. Most events that change
nothing are legitimate: two clients met, and the second got a 409. Those that no server can have written have an
`ImpossibleEvent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from plugins.threads.audit.call_steps import STEP_KINDS, ImpossibleEvent, RunCalls
from plugins.threads.audit.thread_facts import MessageFact, ThreadFact, ThreadReading
from streams.tools.audit.facts import Category

RunStatus = Literal["waiting", "in progress", "ended", "interrupted"]


class RunRefusal(NamedTuple):
    """Why an event changes nothing."""

    impossible: ImpossibleEvent | None = None
    """None: it may be, where two writers meet."""


RACE = RunRefusal()


@dataclass(frozen=True, slots=True)
class HeadState:
    """The messages of a thread, as changes to the state before."""

    identity: int
    """Of the event that made it."""
    parent: HeadState | None
    added: tuple[MessageFact, ...]
    reading: ThreadReading
    questions: int
    run_id: str = ""
    """The run that added them; empty: none did."""

    def extend(self, event: ThreadFact) -> HeadState:
        """Return the state with an event's messages."""
        questions = self.questions + sum(message.role == "user" for message in event.messages)
        reading = self.reading.extend(event.messages)
        return HeadState(event.identity, self, event.messages, reading, questions, event.run_id)

    def line(self) -> Iterator[HeadState]:
        """Yield this state and those before it, the newest first."""
        state: HeadState | None = self
        while state is not None:
            yield state
            state = state.parent

    def find(self, identity: int) -> HeadState | None:
        """Return an earlier state, or this one."""
        return next((state for state in self.line() if state.identity == identity), None)

    def messages(self) -> list[MessageFact]:
        """Return every message, the oldest first."""
        return [message for state in reversed([*self.line()]) for message in state.added]

    def after(self, compaction: ThreadFact) -> ThreadReading:
        """Return the messages as they are read after a summary of the first of them."""
        messages, stands_for = self.messages(), compaction.summary.stands_for if compaction.summary else 0
        system = [message for message in messages[:1] if message.role == "system"]
        return ThreadReading().extend([*system, *compaction.messages, *messages[stands_for:]])

    def last_turns(self, turns: int | None) -> ThreadReading:
        """Return the messages from the question `turns` questions ago, after the system's first one."""
        if turns is None or self.questions <= turns:
            return self.reading
        newest_first: list[MessageFact] = []
        for message in (message for state in self.line() for message in reversed(state.added)):
            newest_first.append(message)
            turns -= message.role == "user"
            if not turns:
                break
        system = self.reading.system
        before = ThreadReading(system, 0, 1) if system else ThreadReading(0, 0, 0)
        return before.extend(reversed(newest_first))


EMPTY = HeadState(0, None, (), ThreadReading(), 0)


@dataclass(slots=True)
class RunCount:
    """A run whose request took effect."""

    request: ThreadFact
    status: RunStatus = "waiting"
    reads: HeadState | None = None
    """What its model reads next: the thread when it began, and its steps."""
    compaction: ThreadFact | None = None
    """The summary of its first messages that was in force when it began."""
    calls: RunCalls = field(default_factory=RunCalls)
    is_again: bool = False
    """Whether it was requested before, and deleted: then it gets the answer that it had."""


@dataclass(slots=True)
class ThreadCount:
    """A thread after some events."""

    exists: bool = False
    was_created: bool = False
    agent_id: str | None = None
    head: HeadState = EMPTY
    runs: dict[str, RunCount] = field(default_factory=dict)
    """Those that it has; deleted ones are gone."""
    begun: dict[str, RunCount] = field(default_factory=dict)
    """Every run that was ever in progress, as it was requested last."""
    requested: list[RunCount] = field(default_factory=list)
    """Every run whose request took effect."""
    in_log: set[str] = field(default_factory=set)
    """Runs with a request that took effect."""
    turned_away: set[str] = field(default_factory=set)
    """Runs with a request that changed nothing."""
    task_parts: set[tuple[str, str]] = field(default_factory=set)
    """What it has of tasks, by task and part; deleting it forgets none."""
    active: str | None = None
    waiting: list[str] = field(default_factory=list)
    compactions: list[ThreadFact] = field(default_factory=list)
    """Those that took effect, in order, and failed attempts."""

    # --- what changes nothing -----------------------------------------------------------------------------------------

    def refusal(self, event: ThreadFact) -> RunRefusal | None:
        """Return why an event changes nothing; None if it takes effect."""
        if event.kind == "created":
            return RACE if self.exists else None
        if event.kind == "run_requested" and event.stateless:
            return RACE if self.was_created else None
        if not self.was_created:
            return _impossible("lost", "its thread was never created: that event is not before it")
        if not self.exists:
            return RACE if event.kind == "run_requested" or not event.run_id else self._about_run(event)
        if event.kind == "run_requested":
            return self._about_request(event)
        if event.kind == "changed":
            return self._about_change(event)
        return None if event.kind == "deleted" else self._about_run(event)

    def _about_request(self, event: ThreadFact) -> RunRefusal | None:
        is_free = self.active is None or event.if_busy != "reject"
        may_answer = self.agent_id in (None, event.agent_id)
        return None if is_free and may_answer and event.run_id not in self.runs else RACE

    def _about_change(self, event: ThreadFact) -> RunRefusal | None:
        if event.task_id and event.task_parts <= self.task_parts:
            return RACE
        if event.checkpoint is None:
            return None
        return None if self.active is None and self.head.find(event.checkpoint) is not None else RACE

    def _about_run(self, event: ThreadFact) -> RunRefusal | None:
        run_id = event.run_id
        if run_id not in self.in_log:
            if run_id in self.turned_away:
                return _impossible("contradictory", f"run {run_id} was refused when it was requested, and never began")
            return _impossible("lost", f"run {run_id} was never requested: that event is not before it")
        if event.kind == "run_ended" and run_id not in self.begun:
            return _impossible("contradictory", f"run {run_id} ended before it was in progress")
        run = self.runs.get(run_id)
        if run is None:
            return RACE
        if event.kind == "run_ended" and self.active == run_id and event.ending == "success" and run.calls.open:
            return _impossible("lost", f"calls of run {run_id} have no results: {', '.join(run.calls.open)}")
        if event.kind == "run_ended":
            return None if self.active == run_id else RACE
        if event.kind == "compacted":
            is_second = any(earlier.run_id == run_id for earlier in self.compactions)
            is_gone = event.checkpoint is not None and self.head.find(event.checkpoint) is None
            return RACE if is_second or is_gone else None
        if event.kind in STEP_KINDS:
            return self._about_step(event, run)
        return RACE if event.kind == "run_cancelled" and run.status in ("ended", "interrupted") else None

    def _about_step(self, event: ThreadFact, run: RunCount) -> RunRefusal | None:
        if self.active != event.run_id:
            return RACE
        problem = run.calls.problem(event.kind, event.turn_id, event.step)
        if problem is not None:
            return _impossible(*problem)
        return None if run.calls.changes(event.kind, event.turn_id, event.step) else RACE

    # --- what takes effect --------------------------------------------------------------------------------------------

    def take(self, event: ThreadFact) -> None:
        """Take in an event that takes effect."""
        if not self.exists and event.kind in ("created", "run_requested"):
            self.exists = self.was_created = True
            self.agent_id = event.agent_id
            self.head = EMPTY
            if event.kind == "created":
                self.head = EMPTY.extend(event)
                return
        match event.kind:
            case "changed":
                self._change(event)
            case "deleted":
                self.exists, self.active, self.waiting, self.runs, self.compactions = False, None, [], {}, []
            case "run_requested":
                self._request(event)
            case "run_ended":
                self._close(event.run_id, "ended")
                if event.messages:
                    self.head = self.head.extend(event)
                self._begin_next()
            case kind if kind in STEP_KINDS:
                self._step(event)
            case "run_cancelled":
                self._close(event.run_id, "interrupted")
                if event.rolled_back:
                    del self.runs[event.run_id]
                    while self.head.run_id == event.run_id and self.head.parent is not None:
                        self.head = self.head.parent
                self._begin_next()
            case "run_deleted":
                self._close(event.run_id, "interrupted")
                del self.runs[event.run_id]
                self._begin_next()
            case "compacted":
                self.compactions.append(event)

    def _change(self, event: ThreadFact) -> None:
        self.task_parts |= event.task_parts
        if event.checkpoint is not None:
            self.head = self.head.find(event.checkpoint) or self.head
        if event.checkpoint is not None or event.adds_state:
            self.head = self.head.extend(event)

    def _request(self, event: ThreadFact) -> None:
        run = self.runs[event.run_id] = RunCount(event, is_again=event.run_id in self.in_log)
        self.requested.append(run)
        self.in_log.add(event.run_id)
        if self.active is not None and event.if_busy == "interrupt":
            self._close(self.active, "interrupted")
        elif self.active is not None:
            self.waiting.append(event.run_id)
            return
        self._begin(event.run_id)

    def _step(self, event: ThreadFact) -> None:
        run = self.runs[event.run_id]
        run.calls.take(event.kind, event.turn_id, event.step)
        if event.messages and run.reads is not None:
            run.reads, self.head = run.reads.extend(event), self.head.extend(event)

    def _begin(self, run_id: str) -> None:
        run = self.runs[run_id]
        self.head = self.head.extend(run.request)
        run.reads, run.status, self.active = self.head, "in progress", run_id
        made = (event for event in reversed(self.compactions) if event.checkpoint is not None)
        run.compaction = next((event for event in made if self.head.find(event.checkpoint or 0) is not None), None)
        self.begun[run_id] = run

    def _begin_next(self) -> None:
        if self.active is None and self.waiting:
            self._begin(self.waiting.pop(0))

    def _close(self, run_id: str, status: RunStatus) -> None:
        run = self.runs[run_id]
        if run.status in ("waiting", "in progress"):
            run.status = status
        if self.active == run_id:
            self.active = None
        if run_id in self.waiting:
            self.waiting.remove(run_id)


def _impossible(category: Category, problem: str) -> RunRefusal:
    return RunRefusal(ImpossibleEvent(category, problem))
