"""Runs over REST: what a key may see of them, and nothing of other tenants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.log.recorded_runs import RecordedRuns, RunFigures
from gateway.log.sql_rows import LogOverHttp
from gateway.rooms.routes import TABLE
from schemas.events import AccessRole, derive_id
from streams.settings.model import Archive, Serve, Settings
from streams.tools.runs.run_row import FinishedRun
from tests.support.callers import BEARER, Known
from tests.support.factories import T0
from tests.support.log.archive_of import archived
from tests.support.talks import TALK
from tests.unit.test_run_files import by_label
from tests.unit.test_runs_view import chat, direct_answers, failing_thread

RED, BLUE = "red.chat", "blue.chat"
FIRST = derive_id("t1", 0)
"""Of a task of tenant red."""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogOverHttp]:
    settings = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("runs") / "archive")))
    events = [*direct_answers(), *chat(RED), *chat(BLUE, agent_id="blue.calc"), *chat("open", ends=False, agent_id="c")]
    events += failing_thread(agent_id="green.calc")
    archived(settings, by_label(events), count(T0))
    with closing(LogOverHttp(settings, "archive")) as opened:
        yield opened


def client(view: LogOverHttp, role: AccessRole = "viewer", **principal: Any) -> TestClient:
    log: Any = SimpleNamespace(view=view)
    app = Application([RecordedRuns(log)], version="0", max_body_bytes=100_000)
    return TestClient(Door(app, TABLE, Known(role, **principal), KeyLimits(Serve()), None), headers=BEARER)


def ids(http: TestClient, query: str = "") -> set[str]:
    answer = http.get(f"/runs?{query}")
    assert answer.status_code == 200, answer.text
    return {run["answer_id"] for run in answer.json()["data"]}


def test_a_run_over_rest_has_the_figures_of_its_row(view: LogOverHttp) -> None:
    renamed = {"began_ms": "began_at", "ended_ms": "ended_at"}
    names = [renamed.get(field.name, field.name) for field in dataclasses.fields(FinishedRun)]
    assert ["object", *names] == list(RunFigures.model_fields)
    run = client(view).get(f"/api/v1/runs/{RED}").json()
    assert (run["tool_calls"], run["failed_tools"], run["recoveries"], run["escalations"]) == (3, 1, 1, 1)
    assert [turn["continuity"] for turn in run["turn_list"]] == ["first", "auxiliary", "extends", "extends"]
    assert run["score_list"][0]["source"] == "feedback/ada" and run["text"] is None
    answer = client(view).get(f"/runs/{FIRST}").json()
    assert (answer["text"], answer["turn_list"], answer["scores"]) == ("11", [], {"exact": 0.25, "judge": 0.5})


def test_runs_are_listed_page_by_page_the_newest_first(view: LogOverHttp) -> None:
    http = client(view)
    whole = [run["answer_id"] for run in http.get("/runs").json()["data"]]
    pages = [http.get(f"/runs?limit=3&offset={offset}").json() for offset in range(0, 9, 3)]
    assert [run["answer_id"] for page in pages for run in page["data"]] == whole and len(whole) == 9
    assert [page["has_more"] for page in pages] == [True, True, False]
    failed = {RED, BLUE, "open", TALK}
    assert ids(http, "agent=red.calc") == {RED} and ids(http, "failed_tools=true&scenario=chat") == failed


def test_a_conversation_is_listed_once_and_shown_with_the_turns_of_all_its_runs(view: LogOverHttp) -> None:
    http = client(view)
    assert [run["turns"] for run in http.get("/runs?agent=green.calc").json()["data"]] == [3]
    by_run = http.get("/runs/red.run1").json()
    assert by_run == http.get(f"/runs/{TALK}").json() and by_run["run_ids"] == ["red.run0", "red.run1", "red.run2"]
    assert [(turn["run"], turn["number"]) for turn in by_run["turn_list"]] == [(f"red.run{n}", 0) for n in range(3)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("it IS 11.", {RED, BLUE, "open", TALK}),  # the answer
        ("name 4", {RED, BLUE, "open"}),  # the questions of two of its calls
        ("iserror 7", {RED, BLUE, "open", TALK}),  # what a tool gave
        ("you%", set()),
        ("nobody said", set()),
    ],
)
def test_runs_are_found_by_the_words_of_questions_answers_and_results(
    view: LogOverHttp, words: str, expected: set[str]
) -> None:
    assert ids(client(view), f"scenario=chat&text={quote(words)}") == expected


def test_the_words_of_a_task_and_of_its_answer_find_a_run(view: LogOverHttp) -> None:
    of_task = {derive_id("t1", slot) for slot in range(3)}
    assert ids(client(view), "scenario=sums&text=7+4") == of_task
    assert ids(client(view), "scenario=sums&text=7+11") == of_task - {derive_id("t1", 2)}
    assert ids(client(view, tenant="blue"), "text=11") == {BLUE}


@pytest.mark.parametrize(
    ("query", "parameter"), [("verdict=good", "verdict"), ("limit=0", "limit"), ("version=-1", "version"), ("x=1", "x")]
)
def test_a_query_that_is_wrong_is_refused_with_its_parameter(view: LogOverHttp, query: str, parameter: str) -> None:
    answer = client(view).get(f"/runs?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == parameter


def test_a_tenant_sees_its_own_runs_and_nothing_says_that_there_are_others(view: LogOverHttp) -> None:
    red, blue = client(view, tenant="red"), client(view, tenant="blue")
    assert ids(red) == {RED, *(derive_id("t1", slot) for slot in range(3))}
    assert ids(blue) == {BLUE}
    for http, other in ((red, BLUE), (blue, RED), (blue, FIRST), (blue, "nothing")):
        answer = http.get(f"/runs/{other}")
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            404, f"the log has no run '{other}'; /runs lists them",
        )  # fmt: skip
    assert ids(blue, "version=0&failed_tools=true&verdict=none") == {BLUE}


def test_a_key_that_is_bound_to_an_agent_lists_no_runs(view: LogOverHttp) -> None:
    bound = client(view, agent_id="red.calc").get("/runs", headers={"X-Agent-ID": "red.calc"})
    assert bound.status_code == 403
