"""Recount conversations: the runs of one are of one agent and policy, and their threads or an earlier run name it.

    started, ended of trajectories without a task ──► both name one conversation
    turns: metadata `thread` ───────────────────────► the conversation that follows from thread, agent and policy
    without a thread ───────────────────────────────► a run that is in the log, and began before

Not covered: whether a call without a thread really continued the run that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from schemas.conventions import CONVERSATION, THREAD
from schemas.events import Coordinates, TrajectoryEvent, Turn, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView


class RunFact(NamedTuple):
    """The beginning or the end of a run without a task."""

    at: Coordinates
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

    labels, counts = ("trajectories", "turns"), ("conversations",)

    def __init__(self) -> None:
        self._runs: dict[str, ChatRun] = {}
        self._threads: dict[str, str | None] = {}
        """By run with a turn."""

    def take(self, record: Record, event: TrajectoryEvent | Turn) -> None:
        """Take in that a run began or ended, or the thread that one of its turns names."""
        if event.sampling_id is not None:
            return
        if isinstance(event, Turn):
            self._threads.setdefault(event.trajectory_id, event.metadata.get(THREAD))
            return
        fact = RunFact(record.at, event.metadata.get(CONVERSATION), event.agent_id, event.policy, event.created_at)
        run = self._runs.setdefault(event.trajectory_id, ChatRun(fact, set()))
        run.first = min(run.first, fact, key=lambda earlier: earlier.created_at)
        run.conversations.add(fact.conversation)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every conversation."""
        outcome = RecountOutcome()
        runs = {name: run for name, run in self._runs.items() if policy in (None, run.first.policy)}
        outcome.counts["conversations"] = len({run.first.conversation or name for name, run in runs.items()})
        owners: dict[str, RunFact] = {}
        of_threads = {
            name: _of_thread(thread, self._runs[name].first)
            for name, thread in self._threads.items()
            if name in self._runs and thread is not None
        }
        named, is_cut = frozenset(of_threads.values()), view.is_cut("trajectories") or view.is_cut("turns")
        for name, run in runs.items():
            first, conversation = run.first, run.first.conversation
            owner = owners.setdefault(conversation or name, first)
            outcome.findings += _about(name, run, owner)
            if conversation != of_threads.get(name, conversation):
                outcome.find("contradictory", first.at, f"its conversation is not that of thread {self._threads[name]}")
            elif name in self._threads and conversation not in named and not is_cut:
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
