"""Tasks, scores, groups, statements and decisions over HTTP, as they are in the log afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from schemas.events import AdapterEvent, RequestEvent, Reward, Task
from streams.access.roles import ROLES
from streams.errors import RefusedError
from streams.kafka import admin
from streams.settings.model import Settings
from streams.stages.tasks.task_index import TaskIndex
from tests.support.agent_server import serving, settings_of
from tests.support.documented import HOOKS
from tests.support.factories import response, task, trained
from tests.support.log.keys import open_keys
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka


class Guarded(NamedTuple):
    """A server with the log behind its door, and a key of each role."""

    settings: Settings
    url: str
    keys: dict[str, str]

    def ask(self, role: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        with httpx.Client(timeout=300, event_hooks=HOOKS) as client:
            return client.request(method, self.url + path, headers=headers, json=body)


@pytest.fixture(scope="module")
def guarded(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    settings = settings_of(kafka_bootstrap, folder, {"replies": []}, auth="keys", outside_scorers="people:ann")
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys = {role: person.create(role=role, actor="ann").text for role in ROLES}
    with serving(settings) as url:
        yield Guarded(settings, url, keys)


def test_a_task_is_written_once_and_another_of_its_id_is_refused(guarded: Guarded) -> None:
    body = {"task_id": "once", "input": "4 + 7 =", "answer": 11, "metadata": {"topic": "sums"}}
    first = guarded.ask("submitter", "POST", "/tasks", body)
    assert first.status_code == 201, first.text
    again = [guarded.ask("submitter", "POST", path, body) for path in ("/tasks", "/api/v1/tasks")]
    assert [(one.status_code, one.json()) for one in again] == [(201, first.json())] * 2
    other = guarded.ask("submitter", "POST", "/tasks", body | {"answer": 12})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert first.json()["recorded_at"] in other.json()["error"]["message"]
    [(record, written)] = [(at, one) for at, one in read(guarded.settings, Task) if one.task_id == "once"]
    assert str(record.at) == first.json()["recorded_at"] and written.metadata["topic"] == "sums"
    assert guarded.ask("viewer", "POST", "/tasks", body).status_code == 403
    run = guarded.ask("submitter", "POST", "/tasks", {"input": "?", "reward_sources": ["mine:quick"]})
    assert (run.status_code, "code.run is for: admin" in run.text) == (403, True)


def test_of_two_servers_that_get_different_tasks_of_one_id_one_says_that_it_is_taken(guarded: Guarded) -> None:
    settings = guarded.settings

    def sent(index: TaskIndex, size: int) -> str:
        try:
            return f"written with {index.submit(task(task_id='raced', group_size=size)).task.group_size}"
        except RefusedError:
            return "refused"

    with TaskIndex(settings) as one, TaskIndex(settings) as two, ThreadPoolExecutor(2) as pool:
        assert one.is_read(60) and two.is_read(60)
        said = list(pool.map(sent, (one, two), (2, 3)))
        first = next(made for _, made in read(settings, Task) if made.task_id == "raced")
        assert sorted(said) == ["refused", f"written with {first.group_size}"]
        found = [index.find("raced") for index in (one, two)]
        assert found[0] == found[1] and found[0] is not None and found[0].task == first


def test_a_score_is_a_reward_of_the_answer_that_it_names(guarded: Guarded) -> None:
    asked = {"task_id": "rated", "input": "Say hello.", "group_size": 2, "reward_sources": ["people:ann"]}
    assert guarded.ask("admin", "POST", "/tasks", asked).status_code == 201
    about = {"task_id": "rated", "policy": "sums", "group_size": 2}
    answers = [response(slot=slot, text=f"Hi {slot}", **about) for slot in range(2)]
    write(guarded.settings, *answers)
    body = {"task_id": "rated", "score": 0.5, "scoring_agent_id": "people:ann", "metadata": {"criteria": "tone"}}
    vague = guarded.ask("submitter", "POST", "/rewards", body)
    listed = [{"slot": one.slot, "response_id": one.response_id} for one in answers]
    assert (vague.status_code, vague.json()["error"]["details"]["responses"]) == (400, listed)
    said = [guarded.ask("submitter", "POST", "/rewards", body | {"slot": 1}) for _ in range(2)]
    assert [one.status_code for one in said] == [201, 201] and said[0].json() == said[1].json()
    assert (said[0].json()["response_id"], said[0].json()["enters_group"]) == (answers[1].response_id, True)
    changed = guarded.ask("submitter", "POST", "/rewards", body | {"slot": 1, "score": 0.75})
    assert (changed.status_code, "gave" in changed.text) == (409, True)
    opinion = body | {"slot": 0, "scoring_agent_id": "bob"}
    assert guarded.ask("submitter", "POST", "/rewards", opinion).json()["source"] == "feedback/bob"
    found = [one for _, one in read(guarded.settings, Reward) if one.task_id == "rated"]
    assert [(one.slot, one.source, one.value, one.metadata) for one in found] == [
        (1, "people:ann", 0.5, {"criteria": "tone"}),
        (0, "feedback/bob", 0.5, {"criteria": "tone"}),
    ]
    assert guarded.ask("submitter", "POST", "/rewards", body | {"task_id": "none"}).status_code == 404

    def slots() -> list[Any]:
        shown = guarded.ask("viewer", "GET", "/groups/rated")
        return shown.json()["slots"] if shown.is_success else []

    until(lambda: any(slot["opinions"] for slot in slots()), "the group is shown with what was said")
    assert [(slot["text"], [one["value"] for one in slot["rewards"]]) for slot in slots()] == [
        ("Hi 0", []),
        ("Hi 1", [0.5]),
    ]
    sql = "SELECT slot, source FROM rewards WHERE task_id = 'rated' ORDER BY slot"
    rows = guarded.ask("viewer", "POST", "/query", {"sql": sql}).json()
    assert (rows["rows"], rows["more"]) == ([[0, "feedback/bob"], [1, "people:ann"]], False)
    hashes = guarded.ask("admin", "POST", "/query", {"sql": "FROM query_table('access')"})
    assert hashes.status_code == 400, "a name that is no word of the statement shows nothing of it either"
    assert "query_table() is refused" in hashes.json()["error"]["message"]


def test_a_decision_is_made_against_the_version_that_it_expects(guarded: Guarded) -> None:
    settings = guarded.settings
    write(settings, trained(1, policy="sums"), trained(2, policy="sums", parent_version=1))
    body = {"version": 1, "expected": 0, "reason": "11 of 12 are right"}
    assert guarded.ask("submitter", "POST", "/adapters/sums/promote", body).status_code == 403
    stale = guarded.ask("promoter", "POST", "/adapters/sums/promote", body | {"expected": 2})
    assert (stale.status_code, stale.json()["error"]["details"]["serving"]["primary"]) == (409, 0)
    made = [guarded.ask("promoter", "POST", "/adapters/sums/promote", body) for _ in range(2)]
    assert [one.status_code for one in made] == [200, 200] and [one.json().pop("again") for one in made] == [
        False,
        True,
    ]
    assert made[0].json() | {"again": True} == made[1].json()
    assert (made[0].json()["before"], made[0].json()["serving"]["primary"]) == (0, 1)
    lost = guarded.ask("admin", "POST", "/adapters/sums/reject", {"version": 2, "expected": 0, "reason": "worse"})
    assert (lost.status_code, lost.json()["error"]["details"]["serving"]["primary"]) == (409, 1)
    gone = guarded.ask("promoter", "POST", "/adapters/sums/reject", {"version": 2, "expected": 1, "reason": "worse"})
    assert gone.json()["kind"] == "rejected"
    back = guarded.ask("promoter", "POST", "/adapters/sums/rollback", {"expected": 1, "reason": "slow"})
    assert (back.status_code, back.json()["version"], back.json()["serving"]["primary"]) == (200, 0, 0)
    [found] = guarded.ask("viewer", "GET", "/adapters?policy=sums").json()["data"]
    statuses = [(one["version"], one["status"]) for one in found["versions"]]
    assert statuses == [(0, "primary"), (1, "rolled_back"), (2, "rejected")]
    for path, given in (("/adapters/nobody/promote", body), ("/adapters/sums/promote", body | {"version": 9})):
        assert guarded.ask("promoter", "POST", path, given).status_code == 404
    key_id = guarded.keys["promoter"].split("_")[1]
    decided = [one for _, one in read(settings, AdapterEvent) if one.actor == f"key {key_id}"]
    assert [one.kind for one in decided] == ["promoted", "rejected", "rolled_back"]

    def denied() -> list[RequestEvent]:
        return [one for _, one in read(settings, RequestEvent) if one.action == "adapters.promote" and not one.allowed]

    until(denied, "an event of what was refused")
    assert [(one.status, one.resource) for one in denied()] == [(403, "/adapters/sums/promote")]


CATALOGUE = {
    "name": "arithmetic",
    "scenarios": [{"name": "sums", "questions": [{"question": f"{n} + 7 =", "expected": n + 7} for n in range(3)]}],
}


def test_a_run_of_self_play_is_asked_once_for_a_key_and_by_those_alone_who_may_submit(guarded: Guarded) -> None:
    def ask(role: str, catalogue: Any, key: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {guarded.keys[role]}", "Idempotency-Key": key}
        with httpx.Client(timeout=300, event_hooks=HOOKS) as client:
            return client.post(f"{guarded.url}/run", headers=headers, json={"catalogue": catalogue})

    started, again = (ask("submitter", CATALOGUE, "monday") for _ in range(2))
    assert started.status_code == again.status_code == 201 and started.json() == again.json()
    written = {event.task_id: event for _, event in read(guarded.settings, Task) if "selfplay" in event.metadata}
    assert sorted(written) == sorted(started.json()["task_ids"]) and len(written) == 3
    assert ask("submitter", CATALOGUE | {"max_tokens": 7}, "monday").status_code == 409
    assert ask("submitter", CATALOGUE, "tuesday").json()["run_id"] != started.json()["run_id"]
    assert ask("viewer", CATALOGUE, "a").status_code == 403
    wrong = ask("submitter", {"name": "arithmetic", "scenarios": [{"name": "a"}]}, "b")
    assert wrong.status_code == 400 and "needs questions or a generator" in wrong.text
    code = ask("submitter", CATALOGUE | {"reward_sources": ["mine:quick"]}, "c")
    assert code.status_code == 403
