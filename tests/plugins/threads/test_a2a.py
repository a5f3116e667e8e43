"""A2A as other agents meet it: cards, tasks and streams, several keys, and kill -9."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.rooms.routes import ROUTES
from plugins.agents.registry.registration import register
from plugins.threads.a2a.agent_tasks import PUSH_METHODS
from plugins.threads.acp.thread_interfaces import A2A, A2A_CARDS
from schemas.events import AccessRole, AgentEvent, ThreadEvent, Tool, Turn
from streams.access.roles import ROLES, allowed_to
from streams.kafka import admin
from tests.plugins.threads.strangers import suite
from tests.plugins.threads.thread_server import SCRIPT, SLOW, Client, Served, served_with_keys
from tests.plugins.threads.tool_server import register_all, with_tools
from tests.strangers import exchanges
from tests.strangers.replay import differences
from tests.support.agent_server import ServeProcess, audited, settings_of
from tests.support.processes import read

pytestmark = pytest.mark.kafka
VERSION = {"A2A-Version": "1.0"}
AGENTS: dict[str, dict[str, Any]] = {
    "friend": {"capabilities": ("arithmetic",)},
    "calc": {},
    "caller": {"tools": (Tool(name="add", description="Add two numbers."),)},
    "odd": {"capabilities": ("ap.io.voice",)},
    "red.clerk": {},
}


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = settings_of(kafka_bootstrap, tmp_path_factory.mktemp("a2a"), SCRIPT, auth="keys")
    admin.apply_topics(settings)
    for name, fields in AGENTS.items():
        agent = {"name": name.title(), "type": "FINE_TUNED", "model_id": "sums", **fields}
        register(settings, AgentEvent(event_id="", agent_id=name, created_at=0, kind="registered", **agent))
    with served_with_keys(settings) as server:
        yield server


@pytest.fixture(scope="module")
def slow(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with audited(settings_of(kafka_bootstrap, tmp_path_factory.mktemp("slow"), SLOW)) as url:
        yield Client(url, {})


@pytest.fixture
def red(served: Served) -> Client:
    return served.client("red")


def ask(client: Client, method: str, parameters: Any = None, agent: str = "default", **headers: str) -> httpx.Response:
    """Call a method of an agent."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters or {}}
    return httpx.post(
        f"{client.url}/a2a/{agent}", json=body, headers={**VERSION, **headers, **client.headers}, timeout=300
    )


def call(client: Client, method: str, parameters: Any = None, agent: str = "default") -> Any:
    """Return the result of a method."""
    answer = ask(client, method, parameters, agent)
    assert answer.status_code == 200, answer.text
    assert "result" in answer.json(), answer.text
    return answer.json()["result"]


def refusal(client: Client, method: str, parameters: Any = None, agent: str = "default") -> tuple[int, str]:
    """Return code and reason of a method that is refused."""
    error = ask(client, method, parameters, agent).json()["error"]
    return error["code"], error["data"][0]["reason"]


def message(text: str = "1 + 7 =", context: str | None = None, **fields: Any) -> dict[str, Any]:
    names = {"messageId": str(uuid.uuid4())} | ({} if context is None else {"contextId": context})
    return {"message": {**names, "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


def stream(client: Client, method: str, parameters: Any, agent: str = "default") -> Iterator[dict[str, Any]]:
    """Yield the results of a stream."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    headers = {**VERSION, **client.headers}
    with httpx.stream("POST", f"{client.url}/a2a/{agent}", json=body, headers=headers, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))["result"]


def text_of(task: Any) -> str:
    return str(task["artifacts"][0]["parts"][0]["text"])


def card(client: Client, agent: str = "default") -> httpx.Response:
    return client.ask("GET", f"/a2a/{agent}/.well-known/agent-card.json")


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_message_begins_a_task_and_the_next_one_reads_what_was_said(red: Client, served: Served) -> None:
    first = call(red, "SendMessage", message())["task"]
    second = call(red, "SendMessage", message("and twice that?", first["contextId"]))["task"]
    assert (first["status"]["state"], text_of(first), text_of(second)) == ("TASK_STATE_COMPLETED", "8", "16")
    assert second["contextId"] == first["contextId"]
    assert call(red, "GetTask", {"id": second["id"]}) == second
    thread = red.send("GET", f"/threads/{first['contextId']}")
    assert [each["content"] for each in thread["messages"]] == ["1 + 7 =", "8", "and twice that?", "16"]
    turns = [turn for _, turn in read(served.settings, Turn) if turn.trajectory_id == second["id"]]
    assert [(turn.agent_id, turn.reply.content) for turn in turns] == [("red.default", "16")]


def test_a_run_of_a_thread_is_a_task_of_its_context(red: Client) -> None:
    thread = red.thread()
    run = red.run(thread)["run"]["run_id"]
    task = call(red, "GetTask", {"id": run})
    assert (task["contextId"], text_of(task), task["history"][0]["parts"]) == (thread, "8", [{"text": "1 + 7 ="}])


def test_a_message_that_is_sent_again_gets_its_task_and_another_text_is_refused(red: Client) -> None:
    sent = message()
    task = call(red, "SendMessage", sent)["task"]
    assert call(red, "SendMessage", sent)["task"] == task
    other = {"message": {**sent["message"], "parts": [{"text": "2"}]}}
    assert refusal(red, "SendMessage", other) == (-32602, "INVALID_PARAMS")


def test_tasks_are_listed_page_by_page_the_newest_first(red: Client) -> None:
    context = call(red, "SendMessage", message())["task"]["contextId"]
    tasks = [call(red, "SendMessage", message("and twice that?", context))["task"]["id"] for _ in range(2)]
    query = {"contextId": context, "pageSize": 2}
    page = call(red, "ListTasks", query)
    assert [task["id"] for task in page["tasks"]] == [*reversed(tasks)]
    assert (page["totalSize"], "artifacts" in page["tasks"][0]) == (3, False)
    rest = call(red, "ListTasks", {**query, "pageToken": page["nextPageToken"], "includeArtifacts": True})
    assert ([text_of(task) for task in rest["tasks"]], rest["nextPageToken"]) == (["8"], "")
    assert call(red, "ListTasks", {**query, "status": "TASK_STATE_FAILED"})["tasks"] == []
    assert refusal(red, "ListTasks", {"pageToken": "x"}) == (-32602, "INVALID_PARAMS")


def test_a_stream_has_the_task_its_answer_piece_by_piece_and_its_end(slow: Client) -> None:
    events = list(stream(slow, "SendStreamingMessage", message()))
    assert list(events[0]) == ["task"]
    pieces = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    assert "".join(piece["artifact"]["parts"][0]["text"] for piece in pieces) == "8"
    assert len({piece["artifact"]["artifactId"] for piece in pieces}) == 1
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert refusal(slow, "SubscribeToTask", {"id": events[0]["task"]["id"]}) == (-32004, "UNSUPPORTED_OPERATION")


def test_a_task_of_a_busy_context_waits_and_one_in_progress_is_cancelled_once(slow: Client) -> None:
    now = {"configuration": {"returnImmediately": True}}
    first = call(slow, "SendMessage", message("slowly") | now)["task"]
    second = call(slow, "SendMessage", message(context=first["contextId"]) | now)["task"]
    assert [each["status"]["state"] for each in (first, second)] == ["TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"]
    assert call(slow, "CancelTask", {"id": first["id"]})["status"]["state"] == "TASK_STATE_CANCELED"
    assert refusal(slow, "CancelTask", {"id": first["id"]}) == (-32002, "TASK_NOT_CANCELABLE")
    joined = list(stream(slow, "SubscribeToTask", {"id": second["id"]}))
    assert joined[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("method", "parameters", "code"),
    [
        *((method, {"taskId": "t"}, -32003) for method in PUSH_METHODS),
        ("SendMessage", message() | {"configuration": {"taskPushNotificationConfig": {"url": "http://a"}}}, -32003),
        ("GetExtendedAgentCard", {}, -32007),
        ("SendMessage", message(parts=[{"url": "http://a/b.png"}]), -32005),
        ("SendMessage", message() | {"configuration": {"acceptedOutputModes": ["image/png"]}}, -32005),
        ("SendMessage", message(taskId=str(uuid.uuid4())), -32001),
        ("GetTask", {"id": str(uuid.uuid4())}, -32001),
        ("CancelTask", {"id": "none"}, -32001),
        ("SendMessage", message(contextId="none"), -32602),
        ("SendMessage", message(role="ROLE_AGENT"), -32602),
        ("SendMessage", message(extensions=["urn:x"]), -32602),
        ("SendMessage", message() | {"tenant": "blue"}, -32602),
    ],
)
def test_what_is_not_offered_is_refused_by_the_protocols_own_error(
    red: Client, method: str, parameters: Any, code: int
) -> None:
    assert refusal(red, method, parameters)[0] == code


def test_other_versions_other_methods_and_batches_are_refused(red: Client) -> None:
    old = ask(red, "GetTask", {"id": "t"}, **{"A2A-Version": "0.3"}).json()["error"]
    assert old["code"] == -32009
    older = ask(red, "message/send").json()["error"]
    assert older["code"] == -32009 and "a client of A2A 1.0, whose method is SendMessage" in older["message"]
    assert ask(red, "message/other").json()["error"]["code"] == -32601
    batch = red.ask("POST", "/a2a/default", [{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}])
    assert batch.json()["error"]["code"] == -32600


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An agent with tools of the server, and one of its client."""
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("tools")) as tools, audited(tools.settings) as url:
        client = Client(url, {})
        register_all(client)
        yield client


def test_the_steps_of_a_task_are_updates_of_its_status(host: Client) -> None:
    events = list(stream(host, "SendStreamingMessage", message("weather in Ulm?"), "host"))
    updates = [event["statusUpdate"]["status"] for event in events if "statusUpdate" in event]
    said = [status["message"]["parts"][0]["text"] for status in updates if "message" in status]
    assert said == ['Let me look.\nweather({"city": "Ulm"})', "31 degrees in Ulm"]
    assert updates[-1]["state"] == "TASK_STATE_COMPLETED"
    task = call(host, "GetTask", {"id": events[0]["task"]["id"]}, "host")
    assert text_of(task) == "Hot."


def test_a_task_that_waits_needs_input_and_goes_on_with_it(host: Client) -> None:
    task = call(host, "SendMessage", message("book the Lamb"), "host")["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert card(host, "host").json()["defaultInputModes"] == ["text/plain", "application/json"]
    [wait] = task["status"]["message"]["parts"][1]["data"]["calls"]
    assert (wait["name"], wait["waits_for"]) == ("book", "consent")
    waiting = call(host, "ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"}, "host")["tasks"]
    assert task["id"] in [each["id"] for each in waiting]
    decision = message(taskId=task["id"], parts=[{"data": {wait["tool_call_id"]: True}}])
    ended = call(host, "SendMessage", decision, "host")["task"]
    assert (ended["id"], text_of(ended)) == (task["id"], "You sleep at the Lamb.")
    assert call(host, "SendMessage", decision, "host")["task"] == ended, "a message that is sent again does nothing"
    assert refusal(host, "SendMessage", message("yes", taskId=task["id"]), "host") == (-32004, "UNSUPPORTED_OPERATION")
    cancelled = call(host, "SendMessage", message("which size?"), "host")["task"]
    assert call(host, "CancelTask", {"id": cancelled["id"]}, "host")["status"]["state"] == "TASK_STATE_CANCELED"


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["default", *AGENTS])
@pytest.mark.parametrize("key", [*ROLES, "red", "blue", "calc"])
def test_a_card_promises_what_its_reader_may_do_and_no_more(served: Served, key: str, agent: str) -> None:
    client = served.client(key)
    answer, called = card(client, agent), ask(client, "SendMessage", message(), agent)
    assert (answer.status_code, called.status_code) in [(code, code) for code in (200, 403, 404, 409)]
    if answer.status_code != 200:
        return
    assert called.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    promised = answer.json()
    assert promised["capabilities"] == {"streaming": True, "pushNotifications": False, "extendedAgentCard": False}
    assert [each["url"] for each in promised["supportedInterfaces"]] == [f"{served.url}/a2a/{agent}"]
    assert [each["protocolBinding"] for each in promised["supportedInterfaces"]] == ["JSONRPC"]
    capabilities = AGENTS.get(agent, {}).get("capabilities", ())
    assert [skill["id"] for skill in promised["skills"]] == ["conversation", *capabilities]


def test_cards_are_those_of_agents_that_the_key_may_call(served: Served) -> None:
    names = ("default", *AGENTS, "clerk")
    cards = {key: [name for name in names if card(served.client(key), name).is_success] for key in served.keys}
    assert cards["submitter"] == cards["trainer"] == cards["admin"]
    assert "friend" in cards["submitter"]
    assert not {"odd", "red.clerk"} & {name for each in cards.values() for name in each} - {"red.clerk"}
    assert ("clerk" in cards["red"], "clerk" in cards["blue"]) == (True, False)
    assert (cards["calc"], cards["viewer"], cards["promoter"]) == (["calc"], [], [])


def test_a_key_of_an_agent_and_another_tenant_know_nothing_of_a_task(red: Client, served: Served) -> None:
    task = call(red, "SendMessage", message())["task"]
    calc, blue = served.client("calc"), served.client("blue")
    own = call(calc, "SendMessage", message(), "calc")["task"]["id"]
    listed = {each["id"] for each in call(calc, "ListTasks", {}, "calc")["tasks"]}
    assert (own in listed, task["id"] in listed) == (True, False)
    assert refusal(calc, "GetTask", {"id": task["id"]}, "calc")[0] == -32001
    assert ask(calc, "ListTasks").status_code == 403
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        assert refusal(blue, method, {"id": task["id"]})[0] == -32001
    assert task["id"] not in [each["id"] for each in call(blue, "ListTasks")["tasks"]]
    another = call(blue, "SendMessage", message("and twice that?", task["contextId"]))["task"]
    assert len(blue.send("GET", f"/threads/{another['contextId']}")["messages"]) == 2, "a context of its own"
    assert refusal(red, "GetTask", {"id": task["id"]}, "friend")[0] == -32001, "a task of another agent"


DENIED = [
    (role, route)
    for route in ROUTES
    if route.interface in (A2A, A2A_CARDS)
    for role in ROLES
    if route.may is not None and route.may not in allowed_to(role)
]


@pytest.mark.parametrize(("role", "route"), DENIED, ids=lambda value: getattr(value, "name", value))
def test_a_role_that_may_not_call_a_model_gets_no_card_and_no_task(
    served: Served, role: AccessRole, route: Any
) -> None:
    response = served.client(role).ask(route.method, f"/a2a{route.path.format(agent_id='default')}", {})
    assert response.status_code == 403
    assert response.json()["error"]["code"] in ("permission_denied", -32403)


def test_without_a_key_nothing_is_told(served: Served) -> None:
    assert card(Client(served.url, {})).status_code == 401
    assert ask(Client(served.url, {}), "ListTasks").status_code == 401


# --- other people's programs ------------------------------------------------------------------------------------------


def test_a2a_sdk_gets_the_answers_that_it_got_when_its_requests_were_recorded(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    recorded = exchanges.recorded(suite.A2A_FILE)
    with (
        audited(settings_of(kafka_bootstrap, tmp_path)) as url,
        httpx.Client(base_url=url, headers=VERSION, timeout=300) as client,
    ):
        assert differences(client, recorded, settled=_first) == []
    assert len(recorded) > 8


def _first(shape: Any) -> Any:
    """Return the shape of an answer; of a stream, the kind of its first event: the others depend on the time."""
    return list(shape[0][1]["result"]) if isinstance(shape, list) else shape


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.kills
def test_after_kill_9_every_task_is_back_and_a_joined_stream_goes_on(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, SLOW)
    admin.apply_topics(settings)
    server = ServeProcess(settings, tmp_path)
    client = Client(server.url, {})
    whole = call(client, "SendMessage", message())["task"]
    sent = message("and twice that?", whole["contextId"])
    events = stream(client, "SendStreamingMessage", sent)
    task = next(events)["task"]
    server.kill()
    events.close()
    server.start()
    joined = list(stream(client, "SubscribeToTask", {"id": task["id"]}))
    assert joined[0]["task"]["id"] == task["id"]
    assert joined[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    back = call(client, "GetTask", {"id": task["id"]})
    assert (text_of(back), call(client, "SendMessage", sent)["task"]) == ("16", back)
    assert call(client, "GetTask", {"id": whole["id"]}) == whole
    ended = [event.run_id for _, event in read(settings, ThreadEvent) if event.kind == "run_ended"]
    assert sorted(str(run) for run in ended) == sorted([whole["id"], task["id"]])
    server.stop()
