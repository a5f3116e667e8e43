"""Recount forks: each begins with the tokens of the run that it names, and what may not be learned from stays so.

    turns, responses ──► digest of the tokens up to each call, and of its answer ──┐
    tasks with a fork ──► digest of their recorded tokens ─────────────────────────┴──► equal?
    runs of forks ──► their first call, or answer, has all tokens of the task as its prompt
    task of an eval run, a recheck ──► of purpose eval

A prompt bears no loss, so this also says that nothing before the fork is trained on.

Not covered: sealed records, and runs that retention has deleted, of which the log has no tokens to compare.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from schemas.events import Coordinates, ForkPoint, Response, Task, Turn
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topics
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView


class CallDigests(NamedTuple):
    """The tokens of a recorded call, as digests."""

    prompt: bytes
    """Of all tokens before its answer."""
    before_new: bytes | None
    """Of those of the turn that it continues, its answer included; None: it continues none."""


class ForkFact(NamedTuple):
    """A task that is a fork."""

    at: Coordinates
    policy: str
    purpose: str
    point: ForkPoint


class FirstTokens(NamedTuple):
    """What the first call of a run, or an answer, read."""

    at: Coordinates
    task_id: str
    digest: bytes


class ForkRecount(SubjectRecount):
    """The recount of forks."""

    labels, counts = ("tasks", "turns", "responses"), ("forks",)

    def __init__(self) -> None:
        self._purposes: dict[str, str] = {}
        self._forks: dict[str, ForkFact] = {}
        self._calls: dict[tuple[str, int], CallDigests] = {}
        self._ends: dict[str, Any] = {}
        """By turn: a SHA-256 over all tokens up to its end, which its children continue."""
        self._first: dict[str, FirstTokens] = {}
        """By run."""

    def take(self, record: Record, event: Task | Turn | Response) -> None:
        """Take in a task, a call or an answer."""
        if event.sealed is not None:
            return
        if isinstance(event, Task):
            self._purposes.setdefault(event.task_id, event.purpose)
            if event.fork is not None:
                fact = ForkFact(record.at, event.policy, event.purpose, event.fork)
                self._forks.setdefault(event.task_id, fact)
        elif isinstance(event, Turn):
            self._take_turn(record, event)
        elif event.error is None and event.agent_id is None:
            digest = sha256(event.prompt_token_ids.data).digest()
            self._calls.setdefault((event.response_id, 0), CallDigests(digest, None))
            self._first.setdefault(event.response_id, FirstTokens(record.at, event.task_id, digest))

    def _take_turn(self, record: Record, turn: Turn) -> None:
        before = sha256() if turn.parent_id is None else self._ends.get(turn.parent_id)
        if before is None or turn.turn_id in self._ends:
            return
        tokens = before.copy()
        tokens.update(turn.prompt_token_ids.data)
        digest = tokens.digest()
        before_new = None if turn.parent_id is None else before.digest()
        self._calls.setdefault((turn.trajectory_id, turn.number), CallDigests(digest, before_new))
        if turn.parent_id is None:
            self._first.setdefault(turn.trajectory_id, FirstTokens(record.at, turn.task_id, digest))
        tokens.update(turn.completion_token_ids.data)
        self._ends[turn.turn_id] = tokens

    def policies(self) -> set[str]:
        """Return the policies of the forks."""
        return {fact.policy for fact in self._forks.values()}

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the forks."""
        outcome = RecountOutcome()
        for fact in self._forks.values():
            if policy in (None, fact.policy):
                outcome.counts["forks"] += 1
                self._check(fact, view, outcome)
        for first in self._first.values():
            forked = self._forks.get(first.task_id)
            if forked is None or policy not in (None, forked.policy) or not forked.point.token_ids:
                continue
            if first.digest != sha256(forked.point.token_ids.data).digest():
                outcome.find("contradictory", first.at, f"it does not begin with the tokens of its fork {forked.at}")
        return outcome

    def _check(self, fact: ForkFact, view: AuditView, outcome: RecountOutcome) -> None:
        point = fact.point
        if self._purposes.get(point.task_id) == "eval" and fact.purpose != "eval":
            outcome.find("contradictory", fact.at, f"it forks a held-out task, and is of purpose {fact.purpose}")
        if point.mode == "recheck" and fact.purpose == "train":
            outcome.find("contradictory", fact.at, "it is a recheck, and is of purpose train")
        call, name = self._calls.get((point.trajectory_id, point.turn)), f"turn {point.turn} of {point.trajectory_id}"
        if call is None:
            partition = partition_of(point.task_id, topics(view.settings.topics)["turns"].partitions)
            if not any(view.is_cut(label, partition) for label in ("turns", "responses")):
                outcome.find("phantom", fact.at, f"it forks {name}, which is not in the log")
        elif point.recorded_tokens:
            recorded = sha256(point.token_ids[: point.recorded_tokens].data).digest()
            expected = call.before_new if point.mode == "tool_result" else call.prompt
            if recorded != expected:
                outcome.find("contradictory", fact.at, f"its recorded tokens are not those of {name}")


RECOUNTS = (ForkRecount,)
