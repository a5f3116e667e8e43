"""Recount the labels of rows: each is about the row that it names, after the label that it supersedes, by its rule.

    annotations of one row ──► the id of each from what it is about · the digest of the row · the label before it
    a scorer's ──► value and bound        a judge's ──► its own verdict

Two processes may label a row at the same time: of two labels with one id the first counts; this is not a finding.

Not covered: whether judge and scorer really gave what is recorded. A file that was written is not in the log; its
manifest says up to which offsets it counted labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from schemas.events import AnnotationEvent, Coordinates, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.subject import KeyedRecount, KeyFacts
from streams.tools.audit.view import AuditView


class AuditedLabel(NamedTuple):
    """A label without its texts, and where it is."""

    at: Coordinates
    event: AnnotationEvent
    row_digest: str


class AnnotationRecount(KeyedRecount[AuditedLabel]):
    """The recount of labels."""

    labels, counts = ("annotations",), ("labels of rows",)

    def take(self, record: Record, event: AnnotationEvent) -> None:
        """Take in a label."""
        judge = event.judge and replace(event.judge, answer="")
        plain = replace(event, row="", rationale="", metadata={}, judge=judge)
        self.keep(event.row_id, AuditedLabel(record.at, plain, hashlib.sha256(event.row.encode()).hexdigest()))

    def recount(self, facts: KeyFacts[AuditedLabel], view: AuditView) -> RecountOutcome:
        """Return what is wrong with the labels of one row."""
        outcome, first = RecountOutcome(), dict[str, Coordinates]()
        for fact in facts.events:
            event = fact.event
            if event.event_id in first:
                message = f"it has the id of {first[event.event_id]}"
                outcome.find("repeated", fact.at, message, accounted=True)
                continue
            outcome.counts["labels of rows"] += 1
            outcome.findings += _about(fact)
            is_cut = view.reach.cut(fact.at.topic, fact.at.partition)
            if event.supersedes is not None and event.supersedes not in first and not is_cut:
                outcome.find("lost", fact.at, f"it supersedes {event.supersedes}, which is not before it")
            first[event.event_id] = fact.at
        return outcome


def _about(fact: AuditedLabel) -> Iterator[AuditFinding]:
    event = fact.event
    about = (event.row_id, event.labeller, event.actor, event.rubric_digest, event.supersedes or "")
    if event.event_id != derive_id(event.tenant or "", *about):
        yield AuditFinding(
            "phantom", fact.at, "its id is not that of its row, labeller, actor, rubric and label before"
        )
    if event.row_id != fact.row_digest:
        yield AuditFinding("contradictory", fact.at, "its row_id is not the digest of its row")
    score = event.score
    if score is not None:
        passed = score.value is not None and score.value >= score.bound
        if score.passed != passed or event.verdict != ("promote" if passed else "reject"):
            message = f"{score.gate} says {event.verdict} with {score.value} and the bound {score.bound:g}"
            yield AuditFinding("contradictory", fact.at, message)
