"""Recount the answers that were given again: each is that of an earlier question, of the same tenant and version.

turns, responses with origin.cached_from ──► the turn or response that was sampled ──► equal tokens, or texts?

Not covered: whether the question was the same; and answers whose original retention has deleted.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from schemas.events import Coordinates, Response, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView

CACHED_FROM = "origin.cached_from"


class AnswerFact(NamedTuple):
    """An answer, or a copy of one."""

    at: Coordinates
    policy: str
    version: int
    owner: str | None
    """The tenant of its agent; a response has none."""
    digest: bytes
    """Over its text and tokens."""
    whole: bool
    learned_from: bool
    """Whether it is of a task that something is learned from."""
    original: str | None
    """The answer that it repeats."""


class CacheRecount(SubjectRecount):
    """The recount of answers that were given again."""

    labels, counts = ("turns", "responses"), ("repeated answers",)

    def __init__(self) -> None:
        self._answers: dict[str, AnswerFact] = {}

    def take(self, record: Record, event: Turn | Response) -> None:
        """Take in a turn or a response."""
        if isinstance(event, Turn):
            name, tenant, whole = event.turn_id, _tenant_of(event.agent_id), event.delivered and event.error is None
            learned = event.sampling_id is not None
        else:
            name, tenant, whole = event.response_id, None, event.error is None
            learned = event.metadata.get("purpose", "train") != "serve"
        if learned and CACHED_FROM not in event.metadata:
            return
        tokens = event.completion_token_ids.data + event.logprobs.data
        original, digest = event.metadata.get(CACHED_FROM), blake2b(tokens, digest_size=8).digest()
        self._answers.setdefault(
            name,
            AnswerFact(record.at, event.policy, event.adapter_version, tenant, digest, whole, learned, original),
        )

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the repeated answers."""
        outcome = RecountOutcome()
        for fact in self._answers.values():
            if fact.original is None or policy not in (None, fact.policy):
                continue
            outcome.counts["repeated answers"] += 1
            if fact.learned_from:
                outcome.find("contradictory", fact.at, "it repeats an answer, and its task has to be sampled")
            source = self._answers.get(fact.original)
            if source is None:
                continue
            if (fact.policy, fact.version, fact.owner) != (source.policy, source.version, source.owner):
                outcome.find("contradictory", fact.at, f"it repeats {fact.original}, of another version or tenant")
            elif source.whole and fact.whole and fact.digest != source.digest:
                outcome.find("contradictory", fact.at, f"it repeats {fact.original}, and differs from it")
        return outcome


RECOUNTS = (CacheRecount,)


def _tenant_of(agent_id: str) -> str | None:
    """Return the tenant that an agent's name begins with: red of red.calc."""
    tenant, dot, _ = agent_id.partition(".")
    return tenant if dot else None
