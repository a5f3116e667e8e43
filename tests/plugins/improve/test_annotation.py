"""Rows of a file get labels: by a scorer, by a judge once people agree with it, by people above both."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from plugins.data.cleaning.data_rows import UnreadableRow
from plugins.data.cleaning.steps import DataRow
from plugins.improve.annotation.annotate import AnnotatedRows, AnnotationOrder, annotate
from plugins.improve.annotation.annotation_log import AnnotationLog, RowLabel, RowRubric, event_of
from plugins.improve.annotation.annotation_state import PlacedLabel, RowLabels
from plugins.improve.annotation.labelled_row import ANNOTATION, MOST_ROW_BYTES, LabelledRow
from plugins.improve.curation.curation_log import PersonDecision
from plugins.improve.rooms.row_labels import RowLabelRoutes
from plugins.improve.settings import Improve
from schemas.events import AnnotationEvent, Coordinates, GateResult, problems
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka import admin
from streams.scorers import ScoreError
from streams.settings.model import Adapters, Scoring, Settings
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from tests.plugins.improve.runs import judge_of
from tests.support.doubles.judge import JudgeServer, judging, raw
from tests.support.log.whole_run import SETTINGS, Written, ends
from tests.support.processes import read

LOG = Settings(topics=SETTINGS.topics)


def rows_of(*fields: dict[str, Any]) -> list[DataRow]:
    return [DataRow(f"rows:{number}", row) for number, row in enumerate(fields, 1)]


def sums(*, right: int, wrong: int) -> list[DataRow]:
    answers = [(number, number + 1 + (number >= right)) for number in range(right + wrong)]
    return rows_of(*({"question": f"{number} + 1 =", "response": str(given)} for number, given in answers))


def column(made: AnnotatedRows, name: str = "verdict") -> list[Any]:
    return [row.fields[ANNOTATION].get(name) for row in made.cleaned.rows]


def by(labeller: str, **changes: Any) -> AnnotationOrder:
    return AnnotationOrder(labeller=labeller, actor="ann", **changes)


def decision(verdict: Any, actor: str = "ann", expect: str | None = None) -> PersonDecision:
    return PersonDecision(verdict=verdict, actor=actor, reason="I looked", expect=expect)


def rates_sums(handler: Any) -> None:
    """Promote an example whose sum is right."""
    prompt = handler.asked["messages"][0]["content"]
    assert "You judge an example that a model may learn from." in prompt
    found = re.search(r'"(\d+) \+ 1 ="}\n.*"value":"(\d+)"', prompt)
    is_right = found is not None and int(found[1]) + 1 == int(found[2])
    verdict = {"verdict": "promote" if is_right else "reject", "rationale": "I added it up."}
    choice = {"message": {"role": "assistant", "content": json.dumps(verdict)}}
    raw(json.dumps({"model": "judge-1", "choices": [choice]}).encode())(handler)


def with_judge(settings: Settings, judge: JudgeServer, **rule: Any) -> Settings:
    scoring = Scoring(judge_url=judge.url, judge_model="m", retries=0)
    return settings.model_copy(update={"scoring": scoring, "improve": Improve(min_runs=10, window=40, **rule)})


def decide_sums(log: AnnotationLog, events: Iterable[AnnotationEvent], *, agreeing: bool = True) -> None:
    """Let a person label these rows: as the sums are, or the other way round."""
    for event in events:
        row = json.loads(event.row)
        is_right = int(row["question"].split()[0]) + 1 == int(row["response"])
        log.decide(event.row_id, None, decision("promote" if is_right is agreeing else "reject"))


def waiting(log: AnnotationLog, count: int | None = None) -> list[AnnotationEvent]:
    return [placed.event for placed in log.queue(None)[:count]]


# --- by a scorer ------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_scorer_labels_rows_by_its_bound_and_what_it_cannot_score_waits_for_a_person(settings: Settings) -> None:
    admin.apply_topics(settings)
    log = AnnotationLog(settings)
    chat = [{"role": "user", "content": "4 + 7 ="}, {"role": "assistant", "content": "11"}]
    rows: list[DataRow | UnreadableRow] = [
        *rows_of(
            {"messages": chat, "answer": "11"},
            {"question": "4 + 7 =", "answer": "11", "response": "12"},
            {"question": "4 + 7 =", "answer": "11", "response": "11"},
            {"question": "4 + 7 ="},
            {"question": "4 + 7 =", "response": "11"},
            {"question": "x" * MOST_ROW_BYTES, "answer": "x"},
        ),
        UnreadableRow("rows:7", "not JSON"),
    ]
    made = annotate(settings, rows, by("exact"), log)
    assert column(made) == ["promote", "reject", "promote", "needs_human", "needs_human"]
    assert made.report["verdicts"] == {"needs_human": 2, "promote": 2, "reject": 1}
    assert made.report["labellers"] == {"nobody": 2, "scorer": 3}
    assert made.cleaned.dropped_by == {"annotate": 1, "read": 1}
    assert "no answer" in column(made, "rationale")[3] and "verifier" in column(made, "rationale")[4]
    assert {placed.event.place for placed in log.queue(None)} == {"rows:4", "rows:5"}
    events = [event for _, event in read(settings, AnnotationEvent)]
    again = annotate(settings, made.cleaned.rows, by("exact", promoted_only=True), AnnotationLog(settings))
    assert len(events) == 5 == len(read(settings, AnnotationEvent)), "labelled rows are known by their content"
    assert column(again) == ["promote", "promote"] and again.cleaned.dropped_by == {"annotate": 3}
    stricter = annotate(settings, rows[:1], by("exact", bound=2), log)
    assert column(stricter) == ["reject"]
    with pytest.raises(SettingsError, match="exat"):
        annotate(settings, rows[:1], by("exat"), log)


# --- by a judge -------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_judges_labels_count_once_people_agree_on_a_sample_and_no_row_is_asked_twice(settings: Settings) -> None:
    admin.apply_topics(settings)
    rows = sums(right=20, wrong=20)
    with judging(rates_sums) as judge:
        judged = with_judge(settings, judge)
        log = AnnotationLog(judged)
        early = annotate(judged, rows, by("judge"), log)
        assert early.report["verdicts"] == {"needs_human": 40}
        assert "0 rows have both verdicts, expected 10" in column(early, "rationale")[0]
        assert len(log.queue(None)) == 40
        decide_sums(log, waiting(log, 24))
        late = annotate(judged, rows, by("judge"), log)
        assert len(judge.requests) == 40
    assert column(late) == ["promote"] * 20 + ["reject"] * 20
    assert late.report["labellers"] == {"judge": 16, "person": 24}
    [agreement] = late.report["judges"]
    assert (agreement["runs"], agreement["kappa"], agreement["promotes_alone"]) == (24, 1.0, True)
    assert {label for label in column(late, "model")} == {None, "judge-1"}
    assert len(log.queue(None)) < 16, "a share is shown to people still"


@pytest.mark.kafka
def test_a_judge_with_which_people_disagree_labels_no_row_and_never_one_that_it_made(settings: Settings) -> None:
    admin.apply_topics(settings)
    rows = sums(right=12, wrong=12)
    own = DataRow("own", {"question": "90 + 1 =", "response": "91", "origin": {"by": "model", "model": "judge-1"}})
    with judging(rates_sums) as judge:
        judged = with_judge(settings, judge)
        log = AnnotationLog(judged)
        annotate(judged, rows, by("judge"), log)
        sample = waiting(log)
        decide_sums(log, sample[:10], agreeing=False)
        made = annotate(judged, [*rows, own], by("judge"), log)
        assert "agrees too little with people: kappa" in made.report["judges"][0]["reason"]
        assert made.report["labellers"] == {"nobody": 15, "person": 10}
        decide_sums(log, sample)
        made = annotate(judged, [own], by("judge"), log)
    assert made.report["judges"][0]["promotes_alone"] is True
    assert column(made) == ["needs_human"] and "made the row itself" in column(made, "rationale")[0]


@pytest.mark.kafka
def test_what_was_labelled_before_the_judge_went_away_is_kept_and_the_next_run_continues(settings: Settings) -> None:
    admin.apply_topics(settings)
    rows = sums(right=6, wrong=0)
    with judging(*[rates_sums] * 3, raw(b"{}", 401)) as judge, pytest.raises(ScoreError):
        annotate(with_judge(settings, judge), rows, by("judge"), AnnotationLog(settings))
    written = len(read(settings, AnnotationEvent))
    assert written <= 3
    with judging(rates_sums) as judge:
        annotate(with_judge(settings, judge), rows, by("judge"), AnnotationLog(settings))
        assert len(judge.requests) == 6 - written
    assert len(read(settings, AnnotationEvent)) == 6


# --- by people --------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_people_label_over_rest_above_every_machine_and_a_tenant_its_own_rows(settings: Settings) -> None:
    admin.apply_topics(settings)
    log = AnnotationLog(settings)
    red = replace(by("people"), tenant="red")
    annotate(settings, sums(right=1, wrong=0), red, log)
    with pytest.raises(NotFoundError):
        log.decide(log.queue("red")[0].event.row_id, "blue", decision("promote"))
    assert log.queue("blue") == []
    room = RowLabelRoutes(settings.model_copy(update={"adapters": Adapters(store=str(settings.adapters.store))}))
    with TestClient(Application([room], version="0", max_body_bytes=1_000_000)) as client:
        sent = [{"question": "1 + 1 =", "answer": "3"}, {"question": "2 + 2 =", "answer": "4", "response": "4"}]
        made = client.post("/data/annotate", json={"rows": sent, "labeller": "people"}).json()
        assert made["verdicts"] == {"needs_human": 2} and made["file"].startswith("file-")
        queue = client.get("/data/annotations/queue?limit=2").json()
        assert queue["more"] is True, "the tenant's row waits, too"
        rows = {row["question"]: row for row in client.get("/data/annotations/queue").json()["data"]}
        row = rows["1 + 1 ="]
        body = {"verdict": "reject", "reason": "it is 2", "expected": row["verdict_id"]}
        first = client.post(f"/data/annotations/{row['row_id'][:12]}", json=body)
        assert first.status_code == 200, first.text
        assert (first.status_code, first.json()["labeller"], first.json()["supersedes"]) == (
            200, "person", row["verdict_id"],
        )  # fmt: skip
        again = client.post(f"/data/annotations/{row['row_id']}", json=body)
        assert again.json()["verdict_id"] == first.json()["verdict_id"]
        stale = client.post(f"/data/annotations/{row['row_id']}", json=body | {"verdict": "promote"})
        assert (stale.status_code, stale.json()["error"]["param"]) == (409, "expected")
        scored = client.post("/data/annotate", json={"rows": sent, "labeller": "exact", "promoted_only": True}).json()
    assert scored["labellers"] == {"person": 1, "scorer": 1} and scored["counts"]["kept"] == 1
    nowhere = settings.model_copy(
        update={"scoring": Scoring(judge_url="http://127.0.0.1:9/v1", judge_model="m", retries=0)}
    )
    statuses = {}
    for labeller, settings_of_room in (("judge", nowhere), ("exat", settings)):
        room = RowLabelRoutes(settings_of_room)
        with TestClient(Application([room], version="0", max_body_bytes=1_000_000)) as client:
            statuses[labeller] = client.post("/data/annotate", json={"rows": sent, "labeller": labeller}).status_code
    assert statuses == {"judge": 503, "exat": 400}
    annotate(settings, sums(right=17, wrong=0), by("people"), log)
    digits = Counter(event.row_id[0] for event in waiting(log))
    with pytest.raises(RefusedError, match="rows begin with"):
        log.decide(digits.most_common(1)[0][0], None, decision("promote"))


# --- the audit --------------------------------------------------------------------------------------------------------


def labels_of_a_row() -> list[AnnotationEvent]:
    """The labels of one row: a judge's, a scorer's, and a person's after them."""
    row, labels = LabelledRow.of(DataRow("rows:1", {"question": "4 + 7 =", "response": "11"})), RowLabels()
    score = GateResult(gate="exact", value=1.0, bound=1.0, passed=True)
    events = []
    for number, label in enumerate(
        (
            RowLabel(verdict="promote", labeller="judge", actor="annotate", rationale="so", judge=judge_of()),
            RowLabel(verdict="promote", labeller="scorer", actor="exact", rationale="so", score=score),
            RowLabel(verdict="reject", labeller="person", actor="ann", rationale="so"),
        )
    ):
        event = event_of(row, RowRubric("useful@1", "a" * 64), labels, label, "red")
        assert list(problems(event)) == []
        labels.take(PlacedLabel(Coordinates("annotations", 0, number), event))
        events.append(event)
    return events


def wrong(*events: AnnotationEvent) -> list[str]:
    log = Written()
    for event in events:
        log.write(event, event.created_at)
    report = recount(log.records, LOG, Reach(ends=ends(log.records), settled=True))
    assert report.plain()["labels of rows"] == len({event.event_id for event in events})
    return [f"{finding.category}: {finding.what}" for finding in report.wrong]


def test_the_audit_names_a_label_that_does_not_follow_from_its_row_or_its_score() -> None:
    judged, scored, decided = labels_of_a_row()
    assert wrong(judged, scored, scored, decided) == []
    assert scored.score is not None
    harms = {
        "phantom: its id": replace(decided, actor="bob"),
        "contradictory: its row_id": replace(decided, row='{"question":"4 + 8 ="}'),
        "contradictory: exact says promote with 0.5": replace(scored, score=replace(scored.score, value=0.5)),
    }
    for expected, event in harms.items():
        log = [event if one.event_id == event.event_id else one for one in (judged, scored, decided)]
        assert [text.startswith(expected) for text in wrong(*log)] == [True], expected
    assert ["lost: it supersedes" in text for text in wrong(judged, decided)] == [True]
