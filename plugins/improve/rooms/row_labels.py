"""Labels of rows of files over HTTP: rows are labelled, those that wait for a person are listed, a person decides.

    POST /data/annotate {"file" or "rows", "labeller"} ──► scorer, judge, or people asked ──► a new file
    GET /data/annotations/queue ──► rows that wait for a person, without what a machine said
    POST /data/annotations/{row_id} {verdict, reason} ──► an AnnotationEvent above the machine's

A tenant labels and sees its own rows.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, PathQuery, Whole
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import LARGE_BODY, REST
from gateway.log.open_log import AT_ONCE
from plugins.data.cleaning.row_shapes import question_of
from plugins.data.training_rows import ROWS_EXAMPLE, RowsBody, put_rows, sent_rows
from plugins.improve.annotation.annotate import JUDGE, AnnotationOrder, annotate
from plugins.improve.annotation.annotation_log import AnnotationLog
from plugins.improve.annotation.annotation_state import PlacedLabel
from plugins.improve.annotation.labelled_row import recorded_fields
from plugins.improve.rooms.run_verdicts import JUDGE as MAY_JUDGE, MOST_RUNS, VerdictBody, refusals
from schemas.events import RowLabeller, RunVerdict
from streams.errors import CallError, SettingsError
from streams.output import moment
from streams.scorers.verdict import ScoreError
from streams.settings.model import Settings

MOST_JUDGED = 100
"""Rows that a judge labels in one request; the next request continues."""


class AnnotateBody(RowsBody):
    """Rows to label."""

    labeller: str = Field(min_length=1, description="`judge`, `people`, or a scorer: NAME or NAME=JSON")
    bound: float = Field(1.0, description="least score of a scorer that promotes a row")
    promoted_only: bool = Field(False, description="leave out the other rows")


class RowQueueQuery(PathQuery):
    """How many rows."""

    limit: Whole = Field(20, ge=1, le=MOST_RUNS, description="rows at most")


class AnnotatedRowsAnswer(Answer):
    """A new file with the labels that count."""

    object: Literal["annotated_rows"]
    file: str | None = Field(description="id of the new file; null: no row is left")
    counts: dict[str, int]
    rubric: str
    verdicts: dict[str, int]
    labellers: dict[str, int]
    not_asked: int = Field(description="rows that the next request labels")
    judges: list[dict[str, Any]] = Field(description="agreement of each judge with people, and whether it counts")
    counted: list[int] = Field(description="by partition of annotations: labels before this offset")


class QueuedRow(Answer):
    """A row that waits for a person. What a machine said of it is not in it."""

    row_id: str
    place: str
    tenant: str | None
    question: str
    row: dict[str, Any]
    verdict_id: str = Field(description="of the newest label, for `expected`")
    created_at: str


class RowQueue(Answer):
    """The rows that wait for a person; the first ones are a sample of all."""

    object: Literal["list"]
    data: list[QueuedRow]
    more: bool


class RecordedLabel(QueuedRow):
    """A label of a row, as it is in the log."""

    object: Literal["row_label"]
    verdict: RunVerdict
    labeller: RowLabeller
    actor: str
    rationale: str
    rubric: str
    supersedes: str | None
    recorded_at: str


ROW = QueuedRow(
    row_id="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    place="rows.jsonl:1",
    tenant=None,
    question="4 + 7 =",
    row={"answer": "11", "prompt": "4 + 7 ="},
    verdict_id="92ae242d-60fe-58de-acd2-3abd95bc44e2",
    created_at="2027-01-15T08:00:00.000Z",
)


class RowLabelRoutes:
    """Labels of rows. Methods wait for the broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._labels = settings, AnnotationLog(settings)

    @REST.post(
        "/data/annotate",
        may=MAY_JUDGE,
        **LARGE_BODY,
        ids="GET /v1/files lists files",
        at_once=AT_ONCE,
        status=201,
        sends={"rows": ROWS_EXAMPLE, "labeller": "people"},
        example=AnnotatedRowsAnswer(
            object="annotated_rows",
            file="file-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
            counts={"read": 2, "kept": 2, "changed": 0, "dropped": 0},
            rubric="useful@1",
            verdicts={"needs_human": 2},
            labellers={"nobody": 2},
            not_asked=0,
            judges=[],
            counted=[2],
        ),
    )
    def annotate_rows(self, request: Request, body: AnnotateBody) -> AnnotatedRowsAnswer:
        """Label rows, and keep them as a file with the labels that count."""
        store = self._settings.adapters.store
        order = AnnotationOrder(
            labeller=body.labeller,
            bound=body.bound,
            promoted_only=body.promoted_only,
            actor=actor_of(request),
            tenant=tenant_of(request),
            limit=MOST_JUDGED if body.labeller == JUDGE else None,
        )
        try:
            annotated = annotate(self._settings, sent_rows(store, request, body), order, self._labels)
        except SettingsError as exc:
            raise CallError("invalid", str(exc), "labeller") from exc
        except ScoreError as exc:  # of the judge, not of a row
            raise CallError("busy" if exc.again else "invalid", str(exc), "labeller") from exc
        file, counts = put_rows(store, request, annotated.cleaned.rows), annotated.cleaned.counts
        return AnnotatedRowsAnswer(object="annotated_rows", file=file, counts=counts, **annotated.report)

    @REST.get(
        "/data/annotations/queue",
        may="log.read",
        refuses=(),
        at_once=AT_ONCE,
        example=RowQueue(object="list", data=[ROW], more=False),
    )
    def list_row_queue(self, request: Request, query: RowQueueQuery) -> RowQueue:
        """List the rows that wait for a person."""
        waiting = self._labels.queue(tenant_of(request))
        rows = [QueuedRow.model_validate(queued_row(placed)) for placed in waiting[: query.limit]]
        return RowQueue(object="list", data=rows, more=len(waiting) > query.limit)

    @REST.post(
        "/data/annotations/{row_id}",
        may=MAY_JUDGE,
        at_once=AT_ONCE,
        ids="GET /data/annotations/queue lists rows that wait for a person",
        sends={"verdict": "promote", "reason": "it is right"},
        example=RecordedLabel(
            **ROW.model_dump(),
            object="row_label",
            verdict="promote",
            labeller="person",
            actor="user ann",
            rationale="it is right",
            rubric="useful@1",
            supersedes=ROW.verdict_id,
            recorded_at="streamward.annotations[3]@1041",
        ),
    )
    def label_row(self, request: Request, row_id: str, body: VerdictBody) -> RecordedLabel:
        """Say whether a row is good enough to learn from."""
        with refusals():
            placed = self._labels.decide(row_id, tenant_of(request), body.decision(request))
        return RecordedLabel.model_validate({"object": "row_label"} | recorded_label(placed))


def queued_row(placed: PlacedLabel) -> dict[str, Any]:
    """Return a row that waits for a person, without what a machine said."""
    event = placed.event
    row = recorded_fields(event)
    return {
        "row_id": event.row_id,
        "place": event.place,
        "tenant": event.tenant,
        "question": question_of(row),
        "row": row,
        "verdict_id": event.event_id,
        "created_at": moment(event.created_at),
    }


def recorded_label(placed: PlacedLabel) -> dict[str, Any]:
    """Return a label of a row."""
    names = ("verdict", "labeller", "actor", "rationale", "rubric", "supersedes")
    fields = {name: getattr(placed.event, name) for name in names}
    return queued_row(placed) | fields | {"recorded_at": str(placed.at)}
