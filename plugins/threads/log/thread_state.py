"""A thread: a conversation with agents, as the fold of its events.

    threads[id]: created, changed, deleted ──────────────────────────┐
                 run_requested, run_cancelled, run_ended, run_deleted ┤
                 steps of the run in progress (run_steps.py) ─────────┤
                 compacted ───────────────────────────────────────────┴──► fold ──► ThreadState

A thread has one run in progress at a time. A run waits until the one before it has ended; then its messages join the
thread, those of its steps as they are made, and its answer when it ends. Of two concurrent requests, the first in the
partition runs, and the other is refused, waits, or interrupts it: every reader of the events makes the same decision.

Every state of the messages is kept as a checkpoint: the changes since the one before it.

Questions and answers of tasks that name the thread (task_threads.py) are added by `changed` events,
each once, even if the thread was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from plugins.agents.registry.agent_log import object_of
from plugins.threads.log.run_steps import (
    NO_STEPS,
    STEPS,
    CallStep,
    RunSteps,
    ThreadMessage,
    count_tokens,
    messages_of,
    step_refusal,
    take_step,
)
from schemas.conventions import TASK_PARTS, THREAD_TASK
from schemas.events import RUN_TASK, Message, RunEnding, Sampling, ThreadEvent, Tool, ToolCall, derive_id
from streams.access.tenants.tenant_names import tenant_in

RunStatus = Literal["pending", "success", "error", "timeout", "interrupted"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
STATUS_OF_ENDING: Mapping[RunEnding, RunStatus] = {
    "success": "success",
    "error": "error",
    "timeout": "timeout",
    "interrupted": "interrupted",
    "max_turns": "error",
    "max_tokens": "error",
    "budget": "error",
}
"""A run that did as much as it may has no status of its own in the protocols."""
TaskPart = tuple[str, str]
"""The id of a task, and `question` or `answer`."""
NO_PARTS: frozenset[TaskPart] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class ThreadCheckpoint:
    """A state of a thread's messages: the changes since the state before it."""

    checkpoint_id: str
    created_at: int
    parent: ThreadCheckpoint | None = field(repr=False)
    added: tuple[ThreadMessage, ...]
    values: Mapping[str, Any]
    """The thread's context then."""
    run_id: str | None = None
    """The run that added them."""

    def line(self) -> Iterator[ThreadCheckpoint]:
        """Yield this state and those before it, the newest first."""
        state: ThreadCheckpoint | None = self
        while state is not None:
            yield state
            state = state.parent

    def messages(self) -> tuple[ThreadMessage, ...]:
        """Return every message, the oldest first."""
        newest_first = [message for state in self.line() for message in reversed(state.added)]
        return tuple(reversed(newest_first))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run on a thread."""

    request: ThreadEvent
    ending: RunEnding | None = None
    """None: it has not ended."""
    updated_at: int
    checkpoint: ThreadCheckpoint | None = None
    """The thread with its messages: what the agent gets to read; None while it waits."""
    compaction: ThreadEvent | None = None
    """The summary that it reads for the first of them; None: it reads them all."""
    steps: RunSteps = NO_STEPS
    answer: tuple[ThreadMessage, ...] = ()
    turn_id: str | None = None
    error: str | None = None

    @property
    def status(self) -> RunStatus:
        """Its state for clients: a run that waits for an answer is interrupted, as a cancelled one is."""
        if self.ending is None:
            return "interrupted" if self.waiting else "pending"
        return STATUS_OF_ENDING[self.ending]

    @property
    def waiting(self) -> tuple[CallStep, ...]:
        """The calls that it waits for."""
        return self.steps.waiting if self.is_open else ()

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ending is None

    @property
    def messages(self) -> tuple[ThreadMessage, ...]:
        """What it has added to its thread: those of its steps, and the answer."""
        return (*self.steps.messages, *self.answer)

    @property
    def run_id(self) -> str:
        """Its id."""
        return self.request.run_id or ""

    @property
    def thread_id(self) -> str:
        """The thread, by its name in the log."""
        return self.request.thread_id

    @property
    def agent_id(self) -> str:
        """The agent that answers."""
        return self.request.agent_id or ""

    @property
    def tenant(self) -> str | None:
        """The tenant of the run; None: it has none."""
        return tenant_in(self.thread_id) or tenant_in(self.agent_id)

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return self.request.sampling or Sampling()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the agent may call."""
        return self.request.tools

    def child_id(self, call: ToolCall) -> str:
        """Return the id of the run that answers a call of its newest answer, if the tool is an agent."""
        return derive_id(self.run_id, "child", self.steps.turns[-1], call.id)

    @property
    def children(self) -> Iterator[str]:
        """The ids of the runs that answer its calls, if all tools are agents."""
        answers = (message.message for message in self.steps.messages if message.message.tool_calls)
        for turn_id, answer in zip(self.steps.turns, answers, strict=True):
            yield from (derive_id(self.run_id, "child", turn_id, call.id) for call in answer.tool_calls)

    @property
    def task_id(self) -> str:
        """The task that its agent's program works on; empty: the model answers."""
        return self.request.metadata.get(RUN_TASK, "")

    @property
    def order(self) -> dict[str, Any]:
        """The rest of what the client sent."""
        return object_of(self.request.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """The state of one thread, as the fold of its events."""

    thread_id: str
    created_at: int
    updated_at: int
    agent_id: str | None = None
    """The only agent that it is for; None: any."""
    subject: str | None = None
    """The person that it was made for."""
    stateless: bool = False
    """Whether it is a single run that belongs to no thread."""
    deleted: bool = False
    labels: Mapping[str, Any] = field(default_factory=dict)
    head: ThreadCheckpoint
    runs: Mapping[str, RunState] = field(default_factory=dict)
    """In the order of their requests."""
    active: str | None = None
    """The run that is answered now."""
    waiting: tuple[str, ...] = ()
    """Those after it, in order."""
    last: str | None = None
    """The run that ended last."""
    task_parts: frozenset[TaskPart] = NO_PARTS
    """What it has of tasks, or had when it was deleted."""
    task_agents: tuple[str, ...] = ()
    """The agents or policies of those tasks."""
    compactions: tuple[ThreadEvent, ...] = ()
    """Its summaries, and the attempts that failed, in order; at most one after each run."""

    def compaction_of(self, state: ThreadCheckpoint) -> ThreadEvent | None:
        """Return the newest summary that is about the beginning of one of its states; None if none is."""
        if not self.compactions:
            return None
        line = {earlier.checkpoint_id for earlier in state.line()}
        return next((event for event in reversed(self.compactions) if event.checkpoint in line), None)

    @property
    def status(self) -> ThreadStatus:
        """Whether a run is in progress, and how the last one ended."""
        if self.active is not None:
            return "interrupted" if self.runs[self.active].status == "interrupted" else "busy"
        ended = self.runs.get(self.last or "")
        if ended is None or ended.status in ("pending", "success"):
            return "idle"
        return "interrupted" if ended.status == "interrupted" else "error"

    @property
    def values(self) -> Mapping[str, Any]:
        """Its context."""
        return self.head.values

    @property
    def messages(self) -> tuple[ThreadMessage, ...]:
        """Its messages, the oldest first."""
        return self.head.messages()

    @property
    def participants(self) -> list[str]:
        """The agents of its tasks, and those that ran on it."""
        return list(dict.fromkeys((*self.task_agents, *(run.agent_id for run in self.runs.values()))))


def refusal(state: ThreadState | None, event: ThreadEvent) -> str | None:
    """Return why an event changes nothing about a thread in this state; None if it takes effect."""
    exists = state is not None and not state.deleted
    if event.kind == "created":
        return "the thread exists already" if exists else None
    if event.kind == "run_requested" and event.stateless:
        return None if state is None else f"run {event.run_id} was requested already"
    if state is None or not exists:
        return "there is no such thread"
    if event.kind == "run_requested":
        if event.run_id in state.runs:
            return f"run {event.run_id} was requested already"
        if state.agent_id not in (None, event.agent_id):
            return f"the thread is for agent {state.agent_id} alone"
        if state.active is not None and event.if_busy == "reject":
            doing = "waits for" if state.status == "interrupted" else "is busy with"
            return f"the thread {doing} run {state.active}"
        return None
    if event.kind == "changed":
        return _why_no_change(state, event)
    if event.kind == "deleted":
        return None
    run = state.runs.get(event.run_id or "")
    if run is None:
        return f"there is no run {event.run_id}"
    if event.kind in ("run_ended", *STEPS) and state.active != event.run_id:
        return f"run {event.run_id} is not in progress: it is {run.status}"
    if event.kind == "run_cancelled" and not run.is_open:
        return f"run {event.run_id} has ended: {run.status}"
    if event.kind == "compacted":
        return _why_not_compacted(state, event)
    return step_refusal(run.steps, event) if event.kind in STEPS else None


def _why_not_compacted(state: ThreadState, event: ThreadEvent) -> str | None:
    if any(event.run_id == earlier.run_id for earlier in state.compactions):
        return f"the thread was compacted after run {event.run_id} already"
    return _why_no_checkpoint(state, event) if event.error is None else None


def _why_no_checkpoint(state: ThreadState, event: ThreadEvent) -> str | None:
    is_there = any(event.checkpoint == earlier.checkpoint_id for earlier in state.head.line())
    return None if is_there else f"the thread has no checkpoint {event.checkpoint}"


def parts_of(event: ThreadEvent) -> frozenset[TaskPart]:
    """Return the parts of a task that an event brings to its thread."""
    task_id = event.metadata.get(THREAD_TASK)
    if task_id is None:
        return NO_PARTS
    return frozenset((task_id, part) for part in event.metadata.get(TASK_PARTS, "").split())


def _why_no_change(state: ThreadState, event: ThreadEvent) -> str | None:
    if THREAD_TASK in event.metadata and parts_of(event) <= state.task_parts:
        return f"the thread has this part of task {event.metadata[THREAD_TASK]} already"
    if event.checkpoint is None:
        return None
    if state.active is not None:
        return f"the thread is busy with run {state.active}, whose messages would be lost"
    return _why_no_checkpoint(state, event)


def fold(state: ThreadState | None, event: ThreadEvent) -> ThreadState | None:
    """Return a thread after an event; one that is refused changes nothing."""
    if refusal(state, event) is not None:
        return state
    if state is None or event.kind == "created":
        state = _new(event, NO_PARTS if state is None else state.task_parts)
        if event.kind == "created":
            return state
    state = replace(state, updated_at=max(state.updated_at, event.created_at))
    return _APPLY[event.kind](state, event)


def _new(event: ThreadEvent, task_parts: frozenset[TaskPart]) -> ThreadState:
    is_created = event.kind == "created"
    values = object_of(event.values) if is_created else {}
    added = messages_of(event) if is_created else ()
    return ThreadState(
        thread_id=event.thread_id,
        created_at=event.created_at,
        updated_at=event.created_at,
        agent_id=event.agent_id,
        subject=event.subject,
        stateless=event.stateless,
        labels=object_of(event.labels) if is_created else {},
        head=ThreadCheckpoint(event.event_id, event.created_at, None, added, values),
        task_parts=task_parts,
    )


def _change(state: ThreadState, event: ThreadEvent) -> ThreadState:
    changes: dict[str, Any] = {"labels": {**state.labels, **object_of(event.labels)}}
    if parts := parts_of(event):
        agents = dict.fromkeys((*state.task_agents, *filter(None, (event.agent_id,))))
        changes |= {"task_parts": state.task_parts | parts, "task_agents": tuple(agents)}
    if event.checkpoint is not None or event.values is not None or event.messages:
        base = state.head
        if event.checkpoint is not None:
            base = next(earlier for earlier in base.line() if earlier.checkpoint_id == event.checkpoint)
        values = {**base.values, **object_of(event.values)}
        changes["head"] = ThreadCheckpoint(event.event_id, event.created_at, base, messages_of(event), values)
    return replace(state, **changes)


def _delete(state: ThreadState, event: ThreadEvent) -> ThreadState:
    head = ThreadCheckpoint(event.event_id, event.created_at, None, (), {})
    emptied: dict[str, Any] = {"runs": {}, "active": None, "waiting": (), "last": None}
    return replace(state, deleted=True, labels={}, head=head, task_agents=(), compactions=(), **emptied)


def _request(state: ThreadState, event: ThreadEvent) -> ThreadState:
    run_id = event.run_id or ""
    state = replace(state, runs={**state.runs, run_id: RunState(request=event, updated_at=event.created_at)})
    if state.active is None:
        return _begin(state, run_id, event.created_at)
    if event.if_busy == "interrupt":
        interrupted = state.active
        state = _close_run(state, interrupted, event, ending="interrupted")
        return _begin(state, run_id, event.created_at)
    return replace(state, waiting=(*state.waiting, run_id))


def _begin(state: ThreadState, run_id: str, now: int) -> ThreadState:
    """Start a run: its messages join the thread."""
    run = state.runs[run_id]
    head = ThreadCheckpoint(
        run.request.event_id, now, state.head, messages_of(run.request), state.head.values, run_id=run_id
    )
    run = replace(run, checkpoint=head, compaction=state.compaction_of(head), updated_at=now)
    return replace(state, head=head, active=run_id, runs={**state.runs, run_id: run})


def _close_run(state: ThreadState, run_id: str, event: ThreadEvent, **outcome: Any) -> ThreadState:
    """Let a run have ended."""
    run = replace(state.runs[run_id], updated_at=event.created_at, **outcome)
    waiting = tuple(other for other in state.waiting if other != run_id)
    active = None if state.active == run_id else state.active
    return replace(state, runs={**state.runs, run_id: run}, active=active, waiting=waiting, last=run_id)


def _next(state: ThreadState, event: ThreadEvent) -> ThreadState:
    """Start the next run, if none is in progress."""
    if state.active is not None or not state.waiting:
        return state
    run_id, *waiting = state.waiting
    return _begin(replace(state, waiting=tuple(waiting)), run_id, event.created_at)


def _step(state: ThreadState, event: ThreadEvent) -> ThreadState:
    run_id = event.run_id or ""
    steps, added = take_step(state.runs[run_id].steps, event)
    run = replace(state.runs[run_id], steps=steps, updated_at=event.created_at)
    return replace(_with_messages(state, event, added), runs={**state.runs, run_id: run})


def _with_messages(state: ThreadState, event: ThreadEvent, added: tuple[ThreadMessage, ...]) -> ThreadState:
    """Return a thread with further messages of a run."""
    if not added:
        return state
    head = ThreadCheckpoint(event.event_id, event.created_at, state.head, added, state.head.values, run_id=event.run_id)
    return replace(state, head=head)


def _end(state: ThreadState, event: ThreadEvent) -> ThreadState:
    run_id, answer = event.run_id or "", messages_of(event)
    outcome = {"ending": event.ending, "answer": answer, "turn_id": event.turn_id, "error": event.error}
    steps = count_tokens(state.runs[run_id].steps, event)
    state = _close_run(state, run_id, event, steps=steps, **outcome)
    return _next(_with_messages(state, event, answer), event)


def _cancel(state: ThreadState, event: ThreadEvent) -> ThreadState:
    run_id = event.run_id or ""
    state = _close_run(state, run_id, event, ending="interrupted")
    return _next(_without(state, run_id) if event.rolled_back else state, event)


def _forget(state: ThreadState, event: ThreadEvent) -> ThreadState:
    run_id = event.run_id or ""
    if state.runs[run_id].is_open:
        state = _close_run(state, run_id, event, ending="interrupted")
    kept = {name: run for name, run in state.runs.items() if name != run_id}
    return _next(replace(state, runs=kept, last=None if state.last == run_id else state.last), event)


def _compact(state: ThreadState, event: ThreadEvent) -> ThreadState:
    return replace(state, compactions=(*state.compactions, event))


def _without(state: ThreadState, run_id: str) -> ThreadState:
    """Return a thread without a run, and without the run's messages if nothing follows them."""
    head = state.head
    while head.run_id == run_id and head.parent is not None:
        head = head.parent
    kept = {name: run for name, run in state.runs.items() if name != run_id}
    return replace(state, runs=kept, head=head, last=None)


_APPLY = {
    **dict.fromkeys(STEPS, _step),
    "changed": _change,
    "deleted": _delete,
    "run_requested": _request,
    "run_cancelled": _cancel,
    "run_ended": _end,
    "run_deleted": _forget,
    "compacted": _compact,
}


def last_turns(messages: tuple[Message, ...], turns: int | None) -> tuple[Message, ...]:
    """Return the messages from the question `turns` questions ago, after the first message if it is the system's."""
    questions = [number for number, message in enumerate(messages) if message.role == "user"]
    if turns is None or len(questions) <= turns:
        return messages
    start = questions[-turns]
    return (*(message for message in messages[:1] if message.role == "system"), *messages[start:])
