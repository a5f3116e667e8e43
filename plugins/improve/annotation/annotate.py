"""Label the rows of a file: by a scorer, a judge, or people, and write a new file with the labels that count.

    rows ──► those without a label by this rubric ──► scorer, judge, or an order for people ──► annotations
    rows, annotations ──► a person's label, else the machine's if it counts ──► rows with `annotation`, fates, report

The log has the labels, so what was labelled is not asked again: not after a kill, nor for another file with the same
row. The same rows over the same labels give the same bytes. A judge's labels count once people's agree with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from plugins.data.cleaning.clean import CleanedRows, clean
from plugins.data.cleaning.data_rows import UnreadableRow
from plugins.data.cleaning.steps import DataRow
from plugins.data.synthetic_rows import question_task
from plugins.improve.annotation.annotation_log import AnnotationLog, RowLabel, RowRubric, event_of
from plugins.improve.annotation.annotation_state import AnnotationState, RowLabels
from plugins.improve.annotation.labelled_row import ANNOTATION, MOST_ROW_BYTES, LabelledRow, text_digest
from plugins.improve.curation import curation_view
from plugins.improve.curation.agreement import Agreement, JudgeIdentity
from plugins.improve.curation.rubric import ROW
from plugins.improve.curation.verifier import VerifierAgent
from plugins.improve.settings import Improve
from schemas.events import AnnotationEvent, GateResult, RewardSource, RowLabeller
from streams.kafka.producer import Producer
from streams.scorers.execution import JUDGE_THREADS
from streams.settings.model import Settings
from streams.stages.scoring.trial import source_of, try_answers

STAGE = "annotate"
"""The actor of a judge's labels; the step that leaves out a row."""
JUDGE, PEOPLE = "judge", "people"
"""Labellers by name; another name is a scorer's."""
NOT_ASKED = "it waits for its labeller"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationOrder:
    """The labeller, and which rows are written."""

    labeller: str
    """JUDGE, PEOPLE, or a scorer: NAME or NAME=JSON."""
    bound: float = 1.0
    """The least score of a scorer that promotes a row."""
    promoted_only: bool = False
    """Whether other rows are left out."""
    actor: str
    """The user who ordered it."""
    tenant: str | None = None
    limit: int | None = None
    """Rows that are labelled now; None: all."""

    @property
    def source(self) -> RewardSource | None:
        """The scorer; None: a judge, or people. Raises SettingsError for one that cannot run."""
        if self.labeller in (JUDGE, PEOPLE):
            return None
        return source_of(self.labeller, question_task("", "-", None))

    @property
    def kind(self) -> RowLabeller:
        """The labeller in its events."""
        kinds: Mapping[str, RowLabeller] = {JUDGE: "judge", PEOPLE: "order"}
        return kinds.get(self.labeller, "scorer")

    def rubric(self, rule: Improve) -> RowRubric:
        """Return what it labels by."""
        if (source := self.source) is None:
            return RowRubric.of_judge(rule)
        about = json.dumps([source.name, source.settings, self.bound])
        return RowRubric(f"{self.labeller} >= {self.bound:g}", text_digest(about))


@dataclass(slots=True, kw_only=True)
class AnnotatedRows:
    """The rows of a file with their labels, and what became of each."""

    cleaned: CleanedRows
    report: dict[str, Any]
    """Labels by verdict and by labeller, rows that wait, agreement of the judge with people."""


def annotate(
    settings: Settings, rows: Iterable[DataRow | UnreadableRow], order: AnnotationOrder, log: AnnotationLog
) -> AnnotatedRows:
    """Label rows, and return them with the labels that count.

    Raises SettingsError for a scorer or a judge that cannot be used, ScoreError if the judge is unreachable, LogError;
    the labels until then are written.
    """
    rubric = order.rubric(settings.of_plugin(Improve))
    read = [_readable(row) for row in rows]
    by_id = {row.row_id: row for row in read if isinstance(row, LabelledRow)}
    with log.now() as state:
        labels = {row_id: state.labels(order.tenant, row_id) for row_id in by_id}
        pending = [row for row_id, row in by_id.items() if not _is_labelled(labels[row_id], order.kind, rubric)]
    chosen = pending[: order.limit]
    with Producer(settings, linger_ms=0) as producer:
        for row, label in _new_labels(settings, chosen, order) if chosen else ():
            before = labels[row.row_id]
            if label.labeller != "order" or (label.labeller, rubric.digest) not in before.machines:
                producer.send(event_of(row, rubric, before, label, order.tenant))
    with log.now() as state:
        return _with_labels(settings, read, order, state, unasked=len(pending) - len(chosen))


def _readable(row: DataRow | UnreadableRow) -> LabelledRow | UnreadableRow:
    if not isinstance(row, DataRow):
        return row
    labelled = LabelledRow.of(row)
    if len(labelled.text) <= MOST_ROW_BYTES:
        return labelled
    return UnreadableRow(row.place, f"it has {len(labelled.text):,} bytes; expected {MOST_ROW_BYTES:,} or less", STAGE)


def _is_labelled(labels: RowLabels, kind: RowLabeller, rubric: RowRubric) -> bool:
    """Return whether a row has what is ordered."""
    return (kind, rubric.digest) in labels.machines or (kind == "order" and labels.person is not None)


# --- labels -----------------------------------------------------------------------------------------------------------


def _new_labels(
    settings: Settings, rows: Sequence[LabelledRow], order: AnnotationOrder
) -> Iterator[tuple[LabelledRow, RowLabel]]:
    if order.labeller == PEOPLE:
        return ((row, _order(order, "a person is to label it")) for row in rows)
    if (source := order.source) is None:
        return _judge_rows(settings, rows, order)
    return _score_rows(settings, rows, order, source)


def _order(order: AnnotationOrder, reason: str) -> RowLabel:
    return RowLabel(verdict="needs_human", labeller="order", actor=order.actor, rationale=reason)


def _score_rows(
    settings: Settings, rows: Sequence[LabelledRow], order: AnnotationOrder, source: RewardSource
) -> Iterator[tuple[LabelledRow, RowLabel]]:
    answered = []
    for row in rows:
        if (answer := row.scored_answer()) is None:
            yield row, _order(order, "it has no answer to score")
        else:
            answered.append((row, answer))
    outcomes = try_answers(settings.scoring, source, [answer for _, answer in answered])
    for (row, _), outcome in zip(answered, outcomes, strict=True):
        if outcome.value is None:
            yield row, _order(order, f"{source.name} gives no score: {outcome.error or 'it has no opinion'}")
            continue
        passed = outcome.value >= order.bound
        yield (
            row,
            RowLabel(
                verdict="promote" if passed else "reject",
                labeller="scorer",
                actor=source.name,
                rationale=outcome.rationale or f"{source.name} gives {outcome.value:g}",
                score=GateResult(gate=source.name, value=outcome.value, bound=order.bound, passed=passed),
            ),
        )


def _judge_rows(
    settings: Settings, rows: Sequence[LabelledRow], order: AnnotationOrder
) -> Iterator[tuple[LabelledRow, RowLabel]]:
    longest = settings.of_plugin(Improve).transcript_characters
    transcripts = [(row, row.transcript) for row in rows]
    for row, transcript in transcripts:
        if len(transcript.text) > longest:
            yield (
                row,
                _order(order, f"it is longer than improve.transcript_characters: {longest:,}"),
            )
    with closing(VerifierAgent(settings, subject=ROW)) as verifier:
        threads = ThreadPoolExecutor(JUDGE_THREADS, thread_name_prefix="judge")
        try:
            futures = {
                threads.submit(verifier.verify, transcript): row
                for row, transcript in transcripts
                if len(transcript.text) <= longest
            }
            for future in as_completed(futures):
                judge, rationale = future.result()
                verdict = judge.verdict or "needs_human"
                yield (
                    futures[future],
                    RowLabel(verdict=verdict, labeller="judge", actor=STAGE, rationale=rationale, judge=judge),
                )
        finally:
            threads.shutdown(cancel_futures=True)


# --- the new file -----------------------------------------------------------------------------------------------------


def _with_labels(
    settings: Settings,
    rows: Sequence[LabelledRow | UnreadableRow],
    order: AnnotationOrder,
    state: AnnotationState,
    *,
    unasked: int,
) -> AnnotatedRows:
    """Return the rows with the labels that count, the others dropped where only promoted ones are wanted."""
    rule, by_judge = settings.of_plugin(Improve), state.agreements()
    rubric = order.rubric(rule)
    verdicts, labellers = Counter[str](), Counter[str]()
    judges: dict[JudgeIdentity, Agreement] = {}

    def outcomes() -> Iterator[DataRow | UnreadableRow]:
        for row in rows:
            if not isinstance(row, LabelledRow):
                yield row
                continue
            labels = state.labels(order.tenant, row.row_id)
            placed = labels.person or labels.machines.get((order.kind, rubric.digest))
            placed = placed or labels.machines.get(("order", rubric.digest))
            doubt = NOT_ASKED if placed is None else state.doubt(placed.event, by_judge)
            label = _column(placed and placed.event, doubt)
            verdicts[label["verdict"]] += 1
            labellers[label.get("labeller", "nobody")] += 1
            if placed is not None and placed.event.judge is not None:
                judge = JudgeIdentity.of(placed.event.judge)
                judges[judge] = by_judge.get(judge) or Agreement.none(placed.event.judge)
            if order.promoted_only and label["verdict"] != "promote":
                yield UnreadableRow(row.place, f"{label['verdict']}: {label['rationale']}", STAGE)
            else:
                yield DataRow(row.place, {**row.fields, ANNOTATION: label})

    cleaned = clean(outcomes(), ())
    report = {
        "rubric": rubric.name,
        "verdicts": dict(sorted(verdicts.items())),
        "labellers": dict(sorted(labellers.items())),
        "not_asked": unasked,
        "judges": [curation_view.agreement(agreement, rule, "rows") for agreement in judges.values()],
        "counted": list(state.counted),
    }
    return AnnotatedRows(cleaned=cleaned, report=report)


def _column(event: AnnotationEvent | None, doubt: str | None) -> dict[str, Any]:
    """Return the label of a row as its file has it; one that does not count is none."""
    if event is None or doubt is not None:
        return {"verdict": "needs_human", "rationale": doubt}
    return {
        "verdict": event.verdict,
        "rationale": event.rationale,
        "labeller": event.labeller,
        "actor": event.actor,
        "model": None if event.judge is None else event.judge.model,
        "rubric": event.rubric,
        "event_id": event.event_id,
    }
