"""Threads, runs and the store as their users meet them: a real log, several tenants, and kill -9."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.rooms.routes import ROUTES, TABLE
from plugins.threads.acp.thread_interfaces import ACP
from schemas.events import AccessRole, MemoryEvent, ThreadEvent, Turn
from streams.access.roles import ROLES, allowed_to
from streams.kafka import admin
from tests.plugins.threads.strangers import suite
from tests.plugins.threads.thread_server import SCRIPT, SLOW, Client, Served, served_with_keys
from tests.strangers import exchanges
from tests.strangers.replay import differences
from tests.support.agent_server import ServeProcess, audited, settings_of
from tests.support.processes import read

pytestmark = pytest.mark.kafka
SECRET = {"likes": "sums"}


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_with_keys(settings_of(kafka_bootstrap, tmp_path_factory.mktemp("acp"), SCRIPT, auth="keys")) as server:
        yield server


@pytest.fixture(scope="module")
def slow(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with audited(settings_of(kafka_bootstrap, tmp_path_factory.mktemp("slow"), SLOW)) as url:
        yield Client(url, {})


@pytest.fixture
def red(served: Served) -> Client:
    return served.client("red")


def contents(answer: Any) -> list[str]:
    return [message["content"] for message in answer["messages"]]


# --- threads and runs -------------------------------------------------------------------------------------------------


def test_a_run_answers_its_thread_and_the_next_one_reads_what_was_said(red: Client, served: Served) -> None:
    thread = red.thread(metadata={"topic": "sums"})
    first = red.run(thread)
    second = red.run(thread, "and twice that?")
    assert (first["run"]["status"], contents(first)) == ("success", ["1 + 7 =", "8"])
    assert contents(second) == ["1 + 7 =", "8", "and twice that?", "16"]
    seen = red.send("GET", f"/threads/{thread}")
    assert contents(seen) == contents(second)
    assert (seen["status"], seen["participants"], seen["metadata"]) == ("idle", ["default"], {"topic": "sums"})
    turns = [turn for _, turn in read(served.settings, Turn) if turn.trajectory_id == second["run"]["run_id"]]
    assert [(turn.agent_id, turn.protocol, turn.reply.content) for turn in turns] == [("red.default", "threads", "16")]


def test_a_run_is_in_the_log_when_it_is_acknowledged(red: Client, served: Served) -> None:
    run = red.send("POST", "/runs", {"thread_id": red.thread(), "input": "1 + 7 ="})
    events = [event for _, event in read(served.settings, ThreadEvent) if event.run_id == run["run_id"]]
    assert events[0].kind == "run_requested"
    assert red.send("GET", f"/runs/{run['run_id']}/wait")["run"]["status"] == "success"


def test_a_thread_that_is_there_is_made_again_only_if_that_is_nothing(red: Client) -> None:
    thread = red.thread()
    refused = red.send("POST", "/threads", {"thread_id": thread}, 409)
    assert (refused["code"], refused["metadata"]["parameter"]) == ("conflict", None)
    assert red.thread(thread_id=thread, if_exists="do_nothing") == thread


def test_a_run_on_a_missing_thread_is_refused_or_makes_it(red: Client) -> None:
    missing = str(uuid.uuid4())
    red.send("POST", "/runs", {"thread_id": missing, "input": "1 + 7 ="}, 404)
    assert contents(red.run(missing, if_not_exists="create")) == ["1 + 7 =", "8"]
    assert contents(red.send("GET", f"/threads/{missing}")) == ["1 + 7 =", "8"]


def test_of_two_runs_at_once_on_a_thread_one_wins_and_one_is_told(slow: Client) -> None:
    thread, answers = slow.thread(), []

    def ask() -> None:
        body = {"thread_id": thread, "input": "slowly"}
        answers.append(slow.ask("POST", "/acp/runs", body).status_code)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert sorted(answers) == [200, 409, 409, 409]


def test_a_run_on_a_busy_thread_waits_or_interrupts_if_it_says_so(slow: Client) -> None:
    thread = slow.thread()
    first = slow.send("POST", "/runs", {"thread_id": thread, "input": "slowly"})
    waiting = {"thread_id": thread, "input": "1 + 7 =", "multitask_strategy": "enqueue"}
    later = slow.send("POST", "/runs", waiting)
    assert slow.send("GET", f"/threads/{thread}")["status"] == "busy"
    last = slow.send("POST", "/runs/wait", {**waiting, "multitask_strategy": "interrupt"})
    assert (last["run"]["status"], contents(last)) == ("success", ["slowly", "1 + 7 =", "8"])
    statuses = [slow.send("GET", f"/runs/{run['run_id']}/wait")["run"]["status"] for run in (first, later)]
    assert statuses == ["interrupted", "success"]


def test_a_stream_has_the_answer_as_it_is_sampled_and_goes_on_after_any_event(red: Client) -> None:
    body = {"thread_id": red.thread(), "input": "1 + 7 =", "stream_mode": ["values", "messages", "updates"]}
    events = list(red.stream("POST", "/runs/stream", body))
    names = [event["event"] for event in events]
    assert names[:2] == ["metadata", "values"]
    assert names[-4:] == ["messages/complete", "updates", "values", "end"]
    run = json.loads(events[0]["data"])["run_id"]
    path = f"/runs/{run}/stream?stream_mode=values&stream_mode=messages&stream_mode=updates"
    whole = [event for event in events if event["event"] != "messages/partial"]
    assert list(red.stream("GET", path)) == whole
    for place, event in enumerate(whole[:-1]):
        assert list(red.stream("GET", path, after=event["id"])) == whole[place + 1 :]
    assert list(red.stream("GET", path, after=whole[-1]["id"])) == []


def test_a_cancelled_run_is_interrupted_and_rolled_back_it_never_was(slow: Client) -> None:
    thread = slow.thread()
    run = slow.send("POST", "/runs", {"thread_id": thread, "input": "slowly"})["run_id"]
    slow.send("POST", f"/runs/{run}/cancel", status=204)
    assert slow.send("GET", f"/runs/{run}/wait")["run"]["status"] == "interrupted"
    again = slow.send("POST", "/runs", {"thread_id": thread, "input": "slowly"})["run_id"]
    slow.send("POST", f"/runs/{again}/cancel?action=rollback", status=204)
    slow.send("GET", f"/runs/{again}", status=404)
    assert contents(slow.send("GET", f"/threads/{thread}")) == ["slowly"]


def test_a_thread_deleted_while_a_run_goes_on_takes_its_run_with_it(slow: Client) -> None:
    thread = slow.thread()
    run = slow.send("POST", "/runs", {"thread_id": thread, "input": "slowly"})["run_id"]
    slow.send("DELETE", f"/threads/{thread}", status=204)
    slow.send("GET", f"/threads/{thread}", status=404)
    slow.send("GET", f"/runs/{run}", status=404)
    slow.send("POST", "/runs", {"thread_id": thread, "input": "1 + 7 ="}, 404)
    assert slow.thread(thread_id=thread) == thread
    assert slow.send("GET", f"/threads/{thread}")["messages"] == []


def test_history_has_each_state_and_a_thread_goes_on_from_one_of_them(red: Client) -> None:
    thread = red.thread()
    red.run(thread)
    red.run(thread, "and twice that?")
    states = red.send("GET", f"/threads/{thread}/history")
    assert [len(state["messages"]) for state in states] == [4, 3, 2, 1, 0]
    patched = red.send("PATCH", f"/threads/{thread}", {"checkpoint": states[2]["checkpoint"], "values": {"x": 1}})
    assert (contents(patched), patched["context"]) == (["1 + 7 =", "8"], {"x": 1})
    copy = red.send("POST", f"/threads/{thread}/copy")
    assert (contents(copy), copy["values"]) == (["1 + 7 =", "8"], {"x": 1})
    assert copy["thread_id"] != thread


def test_the_runs_of_a_thread_are_listed_as_far_as_is_asked_for(red: Client) -> None:
    thread = red.thread()
    runs = [red.run(thread)["run"]["run_id"] for _ in range(3)][::-1]
    for query, expected in (
        ("", runs),
        ("?limit=2", runs[:2]),
        ("?limit=1&offset=1", runs[1:2]),
        ("?status=error", []),
    ):
        listed = red.send("GET", f"/threads/{thread}/runs{query}")
        assert [run["run_id"] for run in listed] == expected
    red.send("GET", f"/threads/{thread}/runs?limt=1", status=422)
    red.send("GET", f"/runs/{runs[0]}/stream?stream_mode=messages-tuple", status=422)


def test_messages_that_no_record_can_hold_are_too_large(red: Client) -> None:
    refused = red.send("POST", "/runs", {"thread_id": red.thread(), "input": "x" * 5_000_000}, 413)
    assert refused["code"] == "too_large" and "topics.max_record_bytes" in refused["message"]


def test_a_run_of_no_thread_leaves_none(red: Client) -> None:
    result = red.send("POST", "/runs/wait", {"input": {"messages": [{"type": "human", "content": "1 + 7 ="}]}})
    assert contents(result) == ["1 + 7 =", "8"]
    assert "thread_id" not in result["run"]
    red.send("GET", f"/threads/{result['run']['run_id']}", status=404)
    assert red.send("GET", f"/runs/{result['run']['run_id']}")["status"] == "success"


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("/runs", {"input": "1", "webhook": "http://a.example"}, "webhook"),
        ("/runs", {"input": "1", "thread_id": "nowhere"}, "thread_id"),
        ("/runs", {"input": "1", "multitask_strategy": "rollback"}, "multitask_strategy"),
        ("/runs", {}, "messages"),
        ("/threads", {"ttl": 5}, "ttl"),
        ("/store", {"namespace": ["a.b"], "key": "k", "value": {}}, "namespace"),
        ("/store", {"namespace": [".."], "key": "k", "value": {}}, "namespace"),
        ("/store", {"namespace": [], "key": "k", "value": {}}, "namespace"),
        ("/store/items/search", {"query": "who likes sums?"}, "query"),
        ("/store/items/search", {"filter": {"age": {"$gt": 9}}}, "filter"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(red: Client, path: str, body: Any, parameter: str) -> None:
    refused = red.send("POST", path, body, 422)
    assert refused["metadata"]["parameter"] == parameter


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_tenant_knows_nothing_of_another_ones_threads_runs_and_items(red: Client, served: Served) -> None:
    blue = served.client("blue")
    thread = red.thread()
    run = red.run(thread)["run"]["run_id"]
    red.send("PUT", "/store/items", {"namespace": ["people"], "key": "ann", "value": SECRET}, 204)
    assert thread not in [each["thread_id"] for each in blue.send("POST", "/threads/search", {"limit": 1000})]
    assert run not in [each["run_id"] for each in blue.send("POST", "/runs/search", {"limit": 1000})]
    blue.send("GET", f"/threads/{thread}", status=404)
    blue.send("GET", f"/runs/{run}", status=404)
    blue.send("POST", "/runs", {"thread_id": thread, "input": "1 + 7 ="}, 404)
    blue.send("GET", "/store/items?key=ann&namespace=people", status=404)
    blue.send("GET", "/store/items?key=ann&namespace=red&namespace=people", status=404)
    assert blue.send("POST", "/store/items/search", {"namespace_prefix": []}) == {"items": []}
    assert blue.send("POST", "/store/namespaces", {}) == []
    assert blue.thread(thread_id=thread) == thread, "the id of another tenant's thread is free"
    assert contents(blue.send("GET", f"/threads/{thread}")) == []


def test_a_key_of_an_agent_has_its_own_threads_and_its_own_namespaces(red: Client, served: Served) -> None:
    calc, submitter = served.client("calc"), served.client("submitter")
    submitter.send("POST", "/store", {"namespace": ["people"], "key": "ann", "value": SECRET})
    other = submitter.thread()
    calc.send("GET", f"/threads/{other}", status=404)
    calc.send("GET", "/store/items?key=ann&namespace=people", status=403)
    calc.send("PUT", "/store/items", {"namespace": ["calc", "notes"], "key": "a", "value": {}}, 204)
    assert calc.send("POST", "/store/namespaces", {"prefix": ["calc"]}) == [["calc", "notes"]]
    assert [agent["agent_id"] for agent in calc.send("POST", "/agents/search", {})] in ([], ["calc"])


DENIED = [
    (role, route)
    for route in ROUTES
    if route.interface is ACP
    for role in ROLES
    if route.may is not None and route.may not in allowed_to(role)
]


@pytest.mark.parametrize(("role", "route"), DENIED, ids=lambda value: getattr(value, "name", value))
def test_a_role_that_may_not_call_a_model_may_use_no_thread(served: Served, role: AccessRole, route: Any) -> None:
    path = route.path.format(thread_id=uuid.uuid4(), run_id=uuid.uuid4(), agent_id="default")
    response = served.client(role).ask(route.method, f"/acp{path}", {})
    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


def test_without_a_key_nothing_is_told(served: Served) -> None:
    refused = httpx.post(f"{served.url}/acp/threads/search", json={}, timeout=300)
    assert (refused.status_code, refused.json()["code"]) == (401, "invalid_api_key")


# --- the store --------------------------------------------------------------------------------------------------------


def test_an_item_is_put_found_replaced_and_deleted_and_the_log_has_it_all(red: Client, served: Served) -> None:
    put = red.send("POST", "/store", {"namespace": ["people", "staff"], "key": "bob", "value": SECRET})
    assert (put["namespace"], put["value"]) == (["people", "staff"], SECRET)
    red.send("PUT", "/store/items", {"namespace": ["people", "staff"], "key": "bob", "value": {"likes": "tea"}}, 204)
    replaced = red.send("GET", "/store/items?key=bob&namespace=people.staff")
    assert (replaced["value"], replaced["created_at"]) == ({"likes": "tea"}, put["created_at"])
    assert red.send("GET", "/store/items?key=bob&namespace=people&namespace=staff") == replaced
    found = red.send("POST", "/store/items/search", {"namespace_prefix": ["people"], "filter": {"likes": "tea"}})
    assert found == {"items": [replaced]}
    red.send("DELETE", "/store/items", {"namespace": ["people", "staff"], "key": "bob"}, 204)
    red.send("DELETE", "/store/items", {"namespace": ["people", "staff"], "key": "bob"}, 404)
    events = [event for _, event in read(served.settings, MemoryEvent) if event.key == "bob"]
    assert [(event.namespace, event.kind) for event in events] == [
        ("red.people.staff", "put"),
        ("red.people.staff", "put"),
        ("red.people.staff", "deleted"),
    ]


# --- agents -----------------------------------------------------------------------------------------------------------


def test_what_an_agent_remembers_is_what_its_registration_says(served: Served) -> None:
    admin_client, submitter = served.client("admin"), served.client("submitter")
    agent = {
        "agent_id": "friend",
        "model_id": "sums",
        "memory_config": {"turns": 1, "namespace": ["friends"]},
        "capabilities": ["arithmetic"],
    }
    registered = admin_client.ask("POST", "/rl/agents", agent)
    assert registered.status_code == 201, registered.text
    submitter.send("POST", "/store", {"namespace": ["friends"], "key": "ann", "value": SECRET})
    thread = submitter.thread()
    submitter.run(thread, agent_id="friend")
    run = submitter.run(thread, "and twice that?", agent_id="friend")["run"]["run_id"]
    [turn] = [turn for _, turn in read(served.settings, Turn) if turn.trajectory_id == run]
    assert [message.role for message in turn.messages] == ["system", "user"]
    assert '"friends/ann": {"likes": "sums"}' in turn.messages[0].content
    card = submitter.send("GET", "/agents/friend")
    assert card["capabilities"] == {"ap.io.messages": True, "ap.io.streaming": True, "arithmetic": True}
    for wrong in ({"memory_config": {"window": 1}}, {"capabilities": ["ap.io.voice"]}):
        refused = admin_client.ask("POST", "/rl/agents", {**agent, **wrong})
        assert refused.status_code == 400


@pytest.mark.skipif(TABLE.find("POST", "/prompts/templates") is None, reason="the plugin prompts is not loaded")
def test_every_run_of_a_thread_begins_with_the_version_of_the_prompt_that_its_first_one_had(served: Served) -> None:
    admin_client, submitter = served.client("admin"), served.client("submitter")
    for template in ("Answer in digits.", "Answer in words."):
        made = admin_client.ask("POST", "/prompts/templates", {"name": "digits", "template": template})
        assert made.status_code == 201, made.text
    first = {"alias": "production", "version": 1, "expected": None}
    assert admin_client.ask("POST", "/prompts/templates/digits/activate", first).status_code == 200
    agent = {"agent_id": "teller", "type": "PROMPT_BASED", "model_id": "sums", "prompt": "digits@production"}
    registered = admin_client.ask("POST", "/rl/agents", agent)
    assert registered.status_code == 201, registered.text
    thread = submitter.thread()
    runs = [submitter.run(thread, agent_id="teller")]
    second = {"alias": "production", "version": 2, "expected": 1}
    assert admin_client.ask("POST", "/prompts/templates/digits/activate", second).status_code == 200
    runs += [
        submitter.run(thread, "and twice that?", agent_id="teller"),
        submitter.run(submitter.thread(), agent_id="teller"),
    ]
    turns = {turn.trajectory_id: turn for _, turn in read(served.settings, Turn)}
    uses = [turns[run["run"]["run_id"]].prompt_version for run in runs]
    assert [str(use) for use in uses] == ["digits@1", "digits@1", "digits@2"]
    assert contents(runs[1]) == ["1 + 7 =", "8", "and twice that?", "16"]


# --- other people's programs ------------------------------------------------------------------------------------------


def test_langgraph_sdk_gets_the_answers_that_it_got_when_its_requests_were_recorded(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    recorded = exchanges.recorded(suite.FILE)
    with (
        audited(settings_of(kafka_bootstrap, tmp_path)) as url,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        assert differences(client, recorded, settled=_settled) == []
    assert len(recorded) > 20


def _settled(shape: Any) -> Any:
    """Return the shape of an answer, of a run without its status: it may have ended or not."""
    return {name: each for name, each in shape.items() if name != "status"} if isinstance(shape, dict) else shape


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.kills
def test_after_kill_9_every_acknowledged_run_and_item_is_back_and_a_joined_stream_goes_on(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, SLOW)
    admin.apply_topics(settings)
    server = ServeProcess(settings, tmp_path)
    client = Client(server.url, {})
    thread, other = client.thread(), client.thread()
    client.run(thread)
    client.send("PUT", "/store/items", {"namespace": ["people"], "key": "ann", "value": SECRET}, 204)
    waits = client.send("POST", "/runs", {"thread_id": other, "input": "1 + 7 ="})["run_id"]
    body = {"thread_id": thread, "input": "and twice that?", "stream_mode": ["messages", "values"]}
    events = client.stream("POST", "/runs/stream", body)
    before = [next(events), next(events)]
    run = json.loads(before[0]["data"])["run_id"]
    server.kill()
    events.close()
    server.start()
    path = f"/runs/{run}/stream?stream_mode=messages&stream_mode=values"
    rest = list(client.stream("GET", path, after=before[-1]["id"]))
    assert [event["event"] for event in rest][-3:] == ["messages/complete", "values", "end"]
    assert contents(json.loads(rest[-2]["data"])) == ["1 + 7 =", "8", "and twice that?", "16"]
    assert contents(client.send("GET", f"/runs/{waits}/wait")) == ["1 + 7 =", "8"]
    assert client.send("GET", "/store/items?key=ann&namespace=people")["value"] == SECRET
    ended = [event for _, event in read(settings, ThreadEvent) if event.kind == "run_ended"]
    assert sorted(event.run_id for event in ended if event.run_id in (run, waits)) == sorted([run, waits])
    server.stop()
