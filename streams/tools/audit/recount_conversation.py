"""Recount conversations: the runs of one are of one agent and policy, and their threads or an earlier run name it.

    started, ended of trajectories ──────────► both name one conversation
    turns: metadata `thread`; tasks: thread ─► the conversation that follows from thread, agent and policy
    without a thread ────────────────────────► a run that is in the log, and began before

Of runs of tasks only those that are served alone are in conversations.

Not covered: whether a call without a thread really continued the run that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from schemas.conventions import CONVERSATION, THREAD, thread_of_task
from schemas.events import Coordinates, Task, TrajectoryEvent, Turn, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView


class RunFact(NamedTuple):
    """The beginning or the end of a run without a task, or of one that is served alone."""

    at: Coordinates
    task_id: str | None
    conversation: str | None
    agent_id: str
    policy: str
    created_at: int


@dataclass(slots=True)
class ChatRun:
    """The records of one run."""

    first: RunFact
    conversations: set[str | None]
    """That its records name; one, unless they contradict each other."""


class ConversationRecount(SubjectRecount):
    """The recount of conversations."""

    labels, counts = ("tasks", "trajectories", "turns"), ("conversations",)

    def __init__(self) -> None:
        self._runs: dict[str, ChatRun] = {}
        self._threads: dict[str, str | None] = {}
        """By run with a turn, and by task that names one."""
        self._grouped: list[Coordinates] = []
        """Runs of tasks that others answer, too, or that are not served; they are in no conversation."""

    def take(self, record: Record, event: Task | TrajectoryEvent | Turn) -> None:
        """Take in that a run began or ended, or the thread that one of its turns or its task names."""
        if isinstance(event, Task):
            if (thread := thread_of_task(event)) is not None:
                self._threads.setdefault(event.task_id, thread)
            return
        if isinstance(event, Turn):
            if event.sampling_id is None:
                self._threads.setdefault(event.trajectory_id, event.metadata.get(THREAD))
            return
        task_id = None if event.sampling_id is None else event.task_id
        is_alone = event.purpose == "serve" and event.group_size == 1
        if task_id is not None and not is_alone:
            if CONVERSATION in event.metadata:
                self._grouped.append(record.at)
            return
        fact = RunFact(
            record.at, task_id, event.metadata.get(CONVERSATION), event.agent_id, event.policy, event.created_at
        )
        run = self._runs.setdefault(event.trajectory_id, ChatRun(fact, set()))
        run.first = min(run.first, fact, key=lambda earlier: earlier.created_at)
        run.conversations.add(fact.conversation)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every conversation."""
        outcome = RecountOutcome()
        runs = {name: run for name, run in self._runs.items() if policy in (None, run.first.policy)}
        names = {run.first.conversation or (None if run.first.task_id else name) for name, run in runs.items()}
        outcome.counts["conversations"] = len(names - {None})
        owners: dict[str, RunFact] = {}
        threads = {name: self._threads.get(run.first.task_id or name) for name, run in self._runs.items()}
        of_threads = {
            name: _of_thread(thread, self._runs[name].first) for name, thread in threads.items() if thread is not None
        }
        named, is_cut = frozenset(of_threads.values()), any(map(view.is_cut, self.labels))
        for at in self._grouped:
            outcome.find("contradictory", at, "it is in a conversation, and its task is not served to it alone")
        for name, run in runs.items():
            first, conversation = run.first, run.first.conversation
            owner = owners.setdefault(conversation or name, first)
            outcome.findings += _about(name, run, owner)
            if conversation != of_threads.get(name, conversation):
                outcome.find("contradictory", first.at, f"its conversation is not that of thread {threads[name]}")
            elif (first.task_id or name in self._threads) and conversation not in named and not is_cut:
                outcome.findings += self._about_earlier(first)
        return outcome

    def _about_earlier(self, first: RunFact) -> Iterator[AuditFinding]:
        """Find a run that continues one which is not before it."""
        earlier = None if first.conversation is None else self._runs.get(first.conversation)
        if first.conversation is not None and (earlier is None or earlier.first.created_at > first.created_at):
            yield AuditFinding("phantom", first.at, f"it continues run {first.conversation}, which is not before it")


def _of_thread(thread: str, first: RunFact) -> str:
    return derive_id(CONVERSATION, thread, first.agent_id, first.policy)


def _about(name: str, run: ChatRun, owner: RunFact) -> Iterator[AuditFinding]:
    first = run.first
    if len(run.conversations) > 1:
        yield AuditFinding("contradictory", first.at, f"the beginning and the end of run {name} name two conversations")
    if (first.agent_id, first.policy) != (owner.agent_id, owner.policy):
        yield AuditFinding(
            "contradictory", first.at, f"its conversation is of {owner.agent_id}, and it of {first.agent_id}"
        )
