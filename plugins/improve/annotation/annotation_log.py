"""Write labels of rows, and read those in the log.

    label ──► event with the label that it supersedes ──► annotations ──► AnnotationState

The id of an event is derived from row, labeller, rubric and the label before it: what a process that was killed wrote
is found by the next one, and of two processes that label a row at once the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plugins.improve.annotation.annotation_state import AnnotationState, PlacedLabel, RowLabels
from plugins.improve.annotation.labelled_row import LabelledRow
from plugins.improve.curation.curation_log import PersonDecision
from plugins.improve.curation.rubric import ROW, prompt_digest
from plugins.improve.folded_topic import FoldedTopic
from plugins.improve.settings import Improve
from schemas.events import (
    RATIONALE_CHARACTERS,
    AnnotationEvent,
    CurationJudge,
    GateResult,
    RowLabeller,
    RunVerdict,
    derive_id,
)
from streams.errors import RefusedError
from streams.kafka import times
from streams.scorers.verdict import storable
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.archive.history import Source


class RowRubric(NamedTuple):
    """The rule by which rows are labelled."""

    name: str
    digest: str

    @classmethod
    def of_judge(cls, rule: Improve) -> RowRubric:
        """Return the rubric of judge and people: the instructions of `improve`."""
        return cls(rule.rubric, prompt_digest(rule, ROW))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLabel:
    """A label that is not yet an event."""

    verdict: RunVerdict
    labeller: RowLabeller
    actor: str
    rationale: str
    judge: CurationJudge | None = None
    score: GateResult | None = None


class AnnotationLog(FoldedTopic[AnnotationState]):
    """Every label. Any thread may call its methods, which raise NotFoundError without the topic, and LogError."""

    def __init__(self, settings: Settings, source: Source = "log") -> None:
        super().__init__(settings, "annotations", AnnotationState(settings), source)

    def queue(self, tenant: str | None) -> list[PlacedLabel]:
        """Return the rows of a tenant that wait for a person; without a tenant those of all."""
        with self.now() as state:
            return [placed for placed in state.queue() if tenant in (None, placed.event.tenant)]

    def decide(self, row_id: str, tenant: str | None, decision: PersonDecision) -> PlacedLabel:
        """Write a person's label of a row, and return it. The same one again is written once.

        Raises NotFoundError for a row that the tenant may not see, RefusedError if the label is not the one that was
        shown any more.
        """
        rubric = RowRubric.of_judge(self._settings.of_plugin(Improve))
        label = RowLabel(verdict=decision.verdict, labeller="person", actor=decision.actor, rationale=decision.reason)
        with self.now() as state:
            labels = state.find(tenant, row_id)
            before = labels.newest
        assert before is not None  # noqa: S101 - a row in the log has a label
        existing = labels.people.get(decision.actor)
        if existing is not None and existing == labels.person and existing.event.verdict == decision.verdict:
            return existing
        if decision.expect not in (None, before.event.event_id):
            raise RefusedError(f"row {row_id}: nothing was written: it was labelled meanwhile; look at it again")
        event = event_of(before.event, rubric, labels, label)
        self.write(event)
        with self.now() as state:
            placed = state.labels(event.tenant, event.row_id).people.get(decision.actor)
        if placed is None or placed.event != event:
            raise RefusedError(f"row {row_id}: another label of {decision.actor} came first; look at it again")
        return placed


def event_of(
    row: LabelledRow | AnnotationEvent, rubric: RowRubric, labels: RowLabels, label: RowLabel, tenant: str | None = None
) -> AnnotationEvent:
    """Return the event of a label; `row` is read from a file, or has a label in the log, with its tenant."""
    text, tenant = (row.text, tenant) if isinstance(row, LabelledRow) else (row.row, row.tenant)
    supersedes = None if labels.newest is None else labels.newest.event.event_id
    about = (tenant or "", row.row_id, label.labeller, label.actor, rubric.digest, supersedes or "")
    return AnnotationEvent(
        event_id=derive_id(*about),
        row_id=row.row_id,
        created_at=times.now_ms(),
        tenant=tenant,
        place=row.place,
        row=text,
        verdict=label.verdict,
        labeller=label.labeller,
        actor=label.actor,
        rationale=storable(label.rationale)[:RATIONALE_CHARACTERS],
        rubric=rubric.name,
        rubric_digest=rubric.digest,
        judge=label.judge,
        score=label.score,
        supersedes=supersedes,
    )
