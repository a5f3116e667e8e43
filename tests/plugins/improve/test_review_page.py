"""The review queue on the page: a person decides without the judge's view, and it is in the log afterwards."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from plugins.data.cleaning.steps import DataRow
from plugins.improve.annotation.annotate import AnnotationOrder, annotate
from plugins.improve.annotation.annotation_log import AnnotationLog, RowLabel, RowRubric, event_of as event_of_row
from plugins.improve.annotation.annotation_state import RowLabels
from plugins.improve.annotation.labelled_row import LabelledRow
from plugins.improve.curation.ended_run import ended_run
from plugins.improve.curation.promotion_guard import GroundedVerdict, event_of
from plugins.page import app
from schemas.events import DatasetEvent, Event, Message
from streams.kafka import admin
from streams.kafka.topics import LABELS
from streams.settings.model import Archive, Settings, Topics
from streams.tools.views.log_view import LogView
from tests.plugins.improve.judged_runs import SECRET, judge_runs, verdicts
from tests.plugins.improve.runs import chat_turn, finished, judge_of
from tests.support.agent_server import serving, settings_of
from tests.support.factories import T0, one_of_each, trajectory
from tests.support.log.archive_of import archived

HOSTILE = '<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m \u202e </pre><form action="http://evil.example">'


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    """The page of an archive in which a run waits that says odd things."""
    settings = Settings(
        archive=Archive(store=str(tmp_path / "archive")), topics=Topics(partitions=1, policy_partitions=1)
    )
    question = Message(role="user", content=HOSTILE)
    run = finished(chat_turn(0, messages=(question,)), reason=HOSTILE)
    assert run.run is not None and run.ended is not None
    chat = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
    case = ended_run(run, settings)
    ruling = GroundedVerdict(verdict="needs_human", labeller="judge", rationale=SECRET, judge=judge_of(answer=SECRET))
    log: dict[str, list[Event | bytes]] = {label: [] for label in LABELS}
    log["trajectories"] = [trajectory("started", trajectory_id="run-1", task_id="run-1", **chat), run.ended]
    row = LabelledRow.of(DataRow("rows:1", {"question": HOSTILE, "response": "11"}))
    label = RowLabel(
        verdict="promote", labeller="judge", actor="annotate", rationale=SECRET, judge=judge_of(answer=SECRET)
    )
    log["annotations"] = [event_of_row(row, RowRubric("useful@1", "a" * 64), RowLabels(), label)]
    log["turns"] = [run.run.steps[0].turn]
    log["curation"] = [event_of(case, ruling, actor="curate", before=None, now_ms=T0)]
    drift = {"script": 1.0, "script.bound": 0.5}
    (build,) = (event for event in one_of_each() if isinstance(event, DatasetEvent))
    log["datasets"] = [replace(build, drift_from="c" * 64, drift=drift)]
    archived(settings, log, count(T0, 1000))
    return TestClient(app.create_app(LogView(settings, "archive")), base_url="http://127.0.0.1")


def test_what_a_run_says_is_text_on_the_page_and_what_its_judge_says_is_nowhere(page: TestClient) -> None:
    answer = page.get("/curation/queue")
    assert answer.status_code == 200 and "1 run waits" in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text and "{{ 7 * 7 }}" in answer.text
    assert "<script>alert" not in answer.text and "evil.example&#34;&gt;" in answer.text
    assert not re.search("[\x1b\u202e]", answer.text)
    assert SECRET not in answer.text and "judge-1" not in answer.text
    assert "script moved by 1.00, chance alone by at most 0.50" in answer.text


def test_what_a_row_of_a_file_says_is_text_on_the_page_and_its_judge_is_not_on_it(page: TestClient) -> None:
    text = page.get("/curation/queue/rows").text
    assert "1 row waits" in text and "&lt;script&gt;alert(1)" in text and "<script>alert" not in text
    assert SECRET not in text and "judge-1" not in text and "improve data label" in text and "<form" not in text


def test_a_page_that_only_shows_names_the_command_and_has_no_form(page: TestClient) -> None:
    text = page.get("/curation/queue").text
    assert "streamward improve curate decide run-1 promote" in text and "<form" not in text
    assert page.post("/curation/queue", data={}).status_code == 405


@pytest.mark.kafka
def test_the_page_shows_a_run_without_the_judges_view_until_its_reader_has_decided(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    admin.apply_topics(settings)
    judge_runs(settings, {"first": "calc", "second": "calc"})
    rows = [DataRow(f"rows:{number}", {"question": f"{number} + 1 ="}) for number in range(2)]
    annotate(settings, rows, AnnotationOrder(labeller="people", actor="bob"), AnnotationLog(settings))
    with serving(settings) as url, httpx.Client(base_url=url, timeout=300, follow_redirects=True) as browser:
        page = browser.get("/page/curation/queue")
        assert page.status_code == 200 and "2 runs wait for a person" in page.text
        assert "question of calc" in page.text and "max_escalations" in page.text
        assert SECRET not in page.text and "promote</b>" not in page.text
        assert {match for match in re.findall(r'data-key="(\w)"', page.text)} == {"p", "r", "s"}
        [run] = re.findall(r'name="run" value="([^"]+)"', page.text)
        [expected] = re.findall(r'name="expected" value="([^"]+)"', page.text)
        [following] = re.findall(r'href="/page(/curation/queue\?run=[^"]+)"', page.text)
        skipped = browser.get(f"/page{following}")
        assert f'name="run" value="{run}"' not in skipped.text
        form = {"run": run, "expected": expected, "verdict": "reject", "reason": ""}
        for changes, status, words in (
            ({}, 400, "there is no reason"),
            ({"reason": "so", "verdict": "maybe"}, 400, "expected one of promote, reject"),
            ({"reason": "so", "expected": "another"}, 409, "look at it again"),
        ):
            refused = browser.post("/page/curation/queue", data=form | changes, headers={"Origin": url})
            assert refused.status_code == status and words in refused.text
            assert len(verdicts(settings, run)) == 1
        decided = browser.post("/page/curation/queue", data=form | {"reason": "it is wrong"}, headers={"Origin": url})
        assert decided.status_code == 200 and "1 run waits" in decided.text
        assert "you said <b>reject</b>, it is wrong" in decided.text
        assert "The judge m said <b>promote</b>" in decided.text and SECRET in decided.text
        [_, person] = verdicts(settings, run)
        assert (person.verdict, person.rationale, person.supersedes) == ("reject", "it is wrong", expected)
        page = browser.get("/page/curation/queue/rows")
        row, expected = (re.findall(rf'name="{name}" value="([^"]+)"', page.text)[0] for name in ("row", "expected"))
        form = {"row": row, "expected": expected, "verdict": "promote", "reason": "it is right"}
        labelled = browser.post("/page/curation/queue/rows", data=form, headers={"Origin": url})
        assert labelled.status_code == 200 and "1 row waits" in labelled.text
        with AnnotationLog(settings).now() as state:
            [person] = state.find(None, row).people.values()
        assert (person.event.verdict, person.event.supersedes) == ("promote", expected)
        elsewhere = browser.post("/page/curation/queue", data=form, headers={"Origin": "http://elsewhere.example"})
        assert elsewhere.status_code == 403
