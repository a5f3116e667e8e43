"""The questions and answers of tasks, as events of the thread that the tasks name.

    Task.thread ──► TaskThread: its tasks in order, each with its first answer ──► TaskFold ──► ThreadState

A thread that only tasks name is folded from these events when it is read, and they are written when it is first
changed: so a run answers the same thread that was read. Their ids are derived from the tasks, so concurrent writers
write the same events.

A task may give its thread any name; the thread's id is the name if it is a UUID, else derived from it.

Not covered: an agent's calls between question and answer; they are in `turns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from plugins.threads.log.thread_state import NO_PARTS, TaskPart, ThreadState, fold
from schemas import json_text
from schemas.conventions import TASK_PARTS, THREAD_TASK, ThreadName
from schemas.events import Message, Response, Task, ThreadEvent, derive_id
from streams.kafka.record import Record

QUESTION, ANSWER = "question", "answer"
LABEL = "thread"
"""The label of a thread that has what its tasks call it."""
ACTOR = "tasks"
"""The actor of events that are folded and not written."""


class FirstAnswer(NamedTuple):
    """An answer to a task."""

    created_at: int
    text: str


class TaskOrder(NamedTuple):
    """Where a task is among those of its thread."""

    created_at: int
    recorded_at: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ThreadTask:
    """A task of a thread."""

    task_id: str
    order: TaskOrder
    worker: str
    """The agent that works on it; without one, the policy that answers."""
    agent: str | None
    messages: tuple[Message, ...]
    answer: FirstAnswer | None = None
    subject: str | None = None
    """The person that it is of."""

    @classmethod
    def of(cls, task: Task, record: Record) -> ThreadTask:
        """Return the task of a record."""
        order = TaskOrder(task.created_at, record.timestamp_ms, record.at.partition, record.at.offset)
        return cls(task.task_id, order, task.agent or task.policy, task.agent, task.messages, subject=task.subject)

    @property
    def newest_at(self) -> int:
        """Time of its newest part."""
        return self.order.created_at if self.answer is None else max(self.order.created_at, self.answer.created_at)


@dataclass(frozen=True)
class TaskThread:
    """The tasks of one thread, in the order in which they were sent."""

    name: ThreadName
    tasks: tuple[ThreadTask, ...]

    def with_task(self, task: ThreadTask) -> TaskThread:
        """Return the thread with another task."""
        if not self.tasks or self.tasks[-1].order < task.order:
            return replace(self, tasks=(*self.tasks, task))
        return replace(self, tasks=tuple(sorted((*self.tasks, task), key=lambda each: each.order)))

    def with_answer(self, response: Response) -> TaskThread:
        """Return the thread with an answer to one of its tasks, unless that has one."""
        newest_first = range(len(self.tasks) - 1, -1, -1)
        place = next(place for place in newest_first if self.tasks[place].task_id == response.task_id)
        task = self.tasks[place]
        if task.answer is not None:
            return self
        answered = replace(task, answer=FirstAnswer(response.created_at, response.text))
        return replace(self, tasks=(*self.tasks[:place], answered, *self.tasks[place + 1 :]))

    def of_agent(self, agent: str | None) -> TaskThread:
        """Return the thread with the tasks of one agent alone; None: with all."""
        if agent is None:
            return self
        return replace(self, tasks=tuple(task for task in self.tasks if task.agent == agent))

    @cached_property
    def creation(self) -> ThreadEvent:
        """The event that makes the thread, before anything is said in it."""
        thread_id, label = self.name
        first = self.tasks[0]
        labels = {} if thread_id.endswith(label) else {LABEL: label}
        return ThreadEvent(
            event_id=derive_id(thread_id, first.task_id, "created"),
            thread_id=thread_id,
            created_at=first.order.created_at,
            subject=first.subject,
            kind="created",
            actor=ACTOR,
            labels=json_text.one_line(labels),
        )

    @cached_property
    def beginning(self) -> ThreadState | None:
        """The thread before anything is said in it, where no event has made it."""
        return fold(None, self.creation)


class TaskFold:
    """A thread with the questions and answers of tasks, updated as tasks are read."""

    def __init__(self, base: ThreadState | None) -> None:
        """`base`: the thread from its own events; None: it has none."""
        self.base = base
        self._restart()

    def _restart(self) -> None:
        self.state = self.base
        """The thread; None while there is none."""
        self.events: list[ThreadEvent] = []
        """What the log does not have of it."""
        self._keys: list[TaskPart] = []
        self._taken: TaskThread | None = None
        self._history = [] if self.base is None else [message.message for message in self.base.messages]

    def take(self, thread: TaskThread) -> None:
        """Update the thread from its tasks as read so far."""
        if thread is self._taken:
            return
        before = NO_PARTS if self.base is None else self.base.task_parts
        parts = [part for part in _parts(thread.tasks) if part.key not in before]
        if [part.key for part in parts[: len(self._keys)]] != self._keys:  # a task has come between them
            self._restart()
        for part in parts[len(self._keys) :]:
            if self.state is None or self.state.deleted:
                self._add(thread.creation)
            messages = part.messages if part.name == ANSWER else _unsaid(part.messages, self._history)
            self._history += messages
            self._keys.append(part.key)
            self._add(_change(thread, part.task, part.name, part.created_at, messages))
        self._taken = thread

    def _add(self, event: ThreadEvent) -> None:
        self.events.append(event)
        self.state = fold(self.state, event)


def says_more(state: ThreadState | None, thread: TaskThread) -> bool:
    """Return whether tasks have messages that the thread's events lack."""
    return state is None or any(part.key not in state.task_parts for part in _parts(thread.tasks))


def forgetting_events(state: ThreadState | None, thread: TaskThread) -> Iterator[ThreadEvent]:
    """Yield the events after which no part of its tasks is added to a thread; their texts are omitted."""
    before = NO_PARTS if state is None else state.task_parts
    tasks = [task for task in thread.tasks if not {(task.task_id, QUESTION), (task.task_id, ANSWER)} <= before]
    if tasks and (state is None or state.deleted):
        yield thread.creation
    for task in tasks:
        yield _change(thread, task, f"{QUESTION} {ANSWER}", task.newest_at, ())


class _Part(NamedTuple):
    """A question, or its answer."""

    task: ThreadTask
    name: str
    created_at: int
    messages: tuple[Message, ...]

    @property
    def key(self) -> TaskPart:
        return self.task.task_id, self.name


def _parts(tasks: Iterable[ThreadTask]) -> Iterator[_Part]:
    """Yield the messages of tasks: each question, then its answer."""
    for task in tasks:
        yield _Part(task, QUESTION, task.order.created_at, task.messages)
        if task.answer is not None:
            reply = Message(role="assistant", content=task.answer.text)
            yield _Part(task, ANSWER, task.answer.created_at, (reply,))


def _unsaid(messages: tuple[Message, ...], history: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages without those that the thread begins with: many clients send the history with each question.

    The last question stays, even if it was asked before.
    """
    questions = [number for number, message in enumerate(messages) if message.role == "user"]
    most = questions[-1] if questions else len(messages) - 1
    said = 0
    while said < min(most, len(history)) and messages[said] == history[said]:
        said += 1
    return messages[said:]


def _change(
    thread: TaskThread, task: ThreadTask, parts: str, created_at: int, messages: tuple[Message, ...]
) -> ThreadEvent:
    return ThreadEvent(
        event_id=derive_id(thread.name.thread_id, task.task_id, parts),
        thread_id=thread.name.thread_id,
        created_at=created_at,
        metadata={THREAD_TASK: task.task_id, TASK_PARTS: parts},
        subject=task.subject,
        kind="changed",
        actor=ACTOR,
        agent_id=task.worker,
        messages=messages,
    )
