"""Recount the answers of fallbacks: none is of a task that something is learned from.

turns, responses with origin.asked_version ──► of no run, or of a serve task; the same policy as was asked

Not covered: whether the engine that was asked had failed; it has no record.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import Coordinates, Response, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView

ASKED_VERSION = "origin.asked_version"


class FallbackFact(NamedTuple):
    """An answer that another version or engine gave."""

    at: Coordinates
    policy: str
    model: str
    learned_from: bool


class FallbackRecount(SubjectRecount):
    """The recount of fallbacks."""

    labels, counts = ("turns", "responses"), ("fallback answers",)

    def __init__(self) -> None:
        self._answers: dict[str, FallbackFact] = {}

    def take(self, record: Record, event: Turn | Response) -> None:
        """Take in a turn or a response."""
        if (model := event.metadata.get(ASKED_VERSION)) is None:
            return
        if isinstance(event, Turn):
            name, learned = event.turn_id, event.sampling_id is not None
        else:
            name, learned = event.response_id, event.metadata.get("purpose", "train") != "serve"
        self._answers.setdefault(name, FallbackFact(record.at, event.policy, model, learned))

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the answers of fallbacks."""
        outcome = RecountOutcome()
        for fact in self._answers.values():
            if policy not in (None, fact.policy):
                continue
            outcome.counts["fallback answers"] += 1
            if fact.learned_from:
                outcome.find("contradictory", fact.at, "a fallback answered, and its task has to be sampled as asked")
            if fact.model.partition("@")[0] != fact.policy:
                outcome.find("contradictory", fact.at, f"{fact.model} was asked, which is another policy")
        return outcome


RECOUNTS = (FallbackRecount,)
