"""Verdicts of people over REST, as they are in the log afterwards; and what a tenant may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from schemas.events import RequestEvent
from streams.access.roles import ROLES
from streams.kafka import admin
from streams.settings.model import Settings
from tests.plugins.improve.judged_runs import SECRET, judge_runs, verdicts
from tests.support.agent_server import serving, settings_of
from tests.support.documented import HOOKS
from tests.support.log.keys import open_keys
from tests.support.processes import read

pytestmark = pytest.mark.kafka


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


@pytest.fixture(scope="module")
def guarded(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    settings = settings_of(kafka_bootstrap, folder, {"replies": []}, auth="keys")
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys = {role: person.create(role=role, actor="ann").text for role in ROLES}
        for tenant in ("red", "blue"):
            keys[tenant] = person.create(role="trainer", tenant=tenant, actor="ann").text
    judge_runs(settings, {"own": "calc", "of-red": "red.calc", "of-blue": "blue.calc", "other": "calc"})
    with serving(settings) as url:
        yield Guarded(settings, url, keys)


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
