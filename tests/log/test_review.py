"""Verdicts of people over REST and on the page, as they are in the log afterwards; and what a tenant may see."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from schemas.events import CurationEvent, Message, RequestEvent
from streams.access.access_log import AccessLog
from streams.access.roles import ROLES
from streams.improve.curation.curator import run_once
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Scoring, Settings
from streams.tools.query.finished import FinishedSelection
from tests.support.agent_server import serving, settings_of
from tests.support.documented import HOOKS
from tests.support.doubles.judge import judging, says
from tests.support.factories import trajectory
from tests.support.processes import read
from tests.support.runs import chat_turn, finished

pytestmark = pytest.mark.kafka
SECRET = "The judge finds it PERFECT."


class Guarded(NamedTuple):
    """A server with judged runs in its log, and a key of each role, and of each tenant."""

    settings: Settings
    url: str
    keys: dict[str, str]

    def ask(self, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        with httpx.Client(timeout=300, event_hooks=HOOKS) as client:
            return client.request(method, self.url + path, headers=headers, json=body)

    def queue(self, key: str) -> dict[str, Any]:
        answer = self.ask(key, "GET", "/curation/queue?limit=100")
        assert answer.status_code == 200, answer.text
        assert SECRET not in answer.text
        return {row["run"]: row for row in answer.json()["data"]}


def judge_runs(settings: Settings, agents: dict[str, str]) -> None:
    """Write runs that have ended, each of an agent, and let a curator with a judge look at them."""
    with Producer(settings) as producer:
        for name, agent in agents.items():
            of_agent = {"agent_id": agent, "policy": "sums"}
            question = Message(role="user", content=f"question of {agent}")
            calls = [chat_turn(0, run=name, messages=(question,), **of_agent)]
            ended = finished(*calls, run=name, **of_agent).ended
            chat = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
            assert ended is not None
            for event in (trajectory("started", trajectory_id=name, task_id=name, **chat, **of_agent), *calls, ended):
                producer.send(event)
        producer.flush()
    with judging(says({"verdict": "promote", "rationale": SECRET})) as judge:
        judged = settings.model_copy(update={"scoring": Scoring(judge_url=judge.url, judge_model="m")})
        run_once(judged, FinishedSelection(purpose="serve", unfit=True), stop=threading.Event())


@pytest.fixture(scope="module")
def guarded(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    settings = settings_of(kafka_bootstrap, folder, {"replies": []}, auth="keys")
    admin.apply_topics(settings)
    with AccessLog(settings) as person:
        keys = {role: person.create(role=role, actor="ann").text for role in ROLES}
        for tenant in ("red", "blue"):
            keys[tenant] = person.create(role="trainer", tenant=tenant, actor="ann").text
    judge_runs(settings, {"own": "calc", "of-red": "red.calc", "of-blue": "blue.calc", "other": "calc"})
    with serving(settings) as url:
        yield Guarded(settings, url, keys)


def verdicts(settings: Settings, run: str) -> list[CurationEvent]:
    return [event for _, event in read(settings, CurationEvent) if event.answer_id == run]


def test_a_person_decides_over_rest_and_is_recorded(guarded: Guarded) -> None:
    queued = guarded.queue("trainer")["own"]
    body = {"verdict": "reject", "reason": "It is wrong.", "expected": queued["verdict_id"]}
    answer = guarded.ask("trainer", "POST", "/runs/own/verdict", body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["verdict"], answer.json()["labeller"]) == ("reject", "person")
    machine, person = verdicts(guarded.settings, "own")
    assert person.supersedes == machine.event_id and person.actor.startswith("key ")
    assert person.transcript_digest == machine.transcript_digest
    assert "own" not in guarded.queue("trainer")
    again = guarded.ask("trainer", "POST", "/api/v1/runs/own/verdict", body)
    assert again.status_code == 200 and again.json()["verdict_id"] == person.event_id
    other = guarded.ask("admin", "POST", "/runs/own/verdict", body | {"verdict": "promote"})
    assert (other.status_code, other.json()["error"]["param"]) == (409, "expected")
    unknown = guarded.ask("trainer", "POST", "/runs/none/verdict", body)
    assert unknown.status_code == 404 and "GET /curation/queue" in unknown.text


def test_only_roles_that_may_judge_do_and_the_request_is_recorded(guarded: Guarded) -> None:
    body = {"verdict": "promote", "reason": "It is right."}
    statuses = {role: guarded.ask(role, "POST", "/runs/none/verdict", body).status_code for role in ROLES}
    assert {role for role, status in statuses.items() if status == 404} == {"trainer", "admin"}
    assert {status for status in statuses.values()} == {403, 404}
    events = [event for _, event in read(guarded.settings, RequestEvent) if event.action == "runs.judge"]
    assert {event.allowed for event in events} == {True, False}


@pytest.mark.parametrize("body", [{}, {"verdict": "good", "reason": "x"}, {"verdict": "promote", "reason": " "}])
def test_a_verdict_that_says_nothing_is_refused(guarded: Guarded, body: dict[str, str]) -> None:
    assert guarded.ask("trainer", "POST", "/runs/other/verdict", body).status_code == 400


def test_a_tenant_sees_and_decides_its_own_runs_alone(guarded: Guarded) -> None:
    assert set(guarded.queue("red")) == {"of-red"} and set(guarded.queue("blue")) == {"of-blue"}
    body = {"verdict": "promote", "reason": "It is right."}
    for run in ("of-blue", "other"):
        refused = guarded.ask("red", "POST", f"/runs/{run}/verdict", body)
        assert refused.status_code == 404 and "question of" not in refused.text
        assert len(verdicts(guarded.settings, run)) == 1
    assert guarded.ask("red", "POST", "/runs/of-red/verdict", body).status_code == 200
    assert verdicts(guarded.settings, "of-red")[-1].tenant == "red"


def test_the_page_shows_a_run_without_the_judges_view_until_its_reader_has_decided(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, {"replies": []})
    admin.apply_topics(settings)
    judge_runs(settings, {"first": "calc", "second": "calc"})
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
        elsewhere = browser.post("/page/curation/queue", data=form, headers={"Origin": "http://elsewhere.example"})
        assert elsewhere.status_code == 403
