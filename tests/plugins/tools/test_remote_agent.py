"""The edges of an agent of another server: what its card, its answers and its connections may not be."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings, strategies as st

from plugins.environments.episodes.environment import EpisodeError
from plugins.environments.settings import Environments
from plugins.tools.registry import remote_agent
from plugins.tools.registry.remote_agent import MOST_BYTES, RemoteAgent
from plugins.tools.registry.tool_body import read_body
from plugins.tools.registry.tool_caller import ToolCaller
from schemas.events import Tool
from streams.egress import retry_budget
from streams.egress.retry_budget import BURST, SPACING_S, budget_of
from streams.settings.model import Settings
from tests.support.doubles.loopback_http import serving

TOOL = Tool(name="far", parameters='{"type": "object"}')
CARD_FIELDS = ("supportedInterfaces", "skills", "name", "description", "version", "url", "protocolBinding")
TASK_FIELDS = ("task", "id", "status", "state", "message", "parts", "text", "artifacts", "history", "messageId")
Reply = tuple[int, dict[str, str], bytes]
Answers = Callable[[str, str, bytes], Reply]
"""Method, path, body ──► status, headers, body."""


def ok(value: Any) -> Reply:
    return 200, {}, json.dumps(value).encode()


def card(url: str, binding: str = "JSONRPC", version: str = "1.0") -> dict[str, Any]:
    interface = {"url": url, "protocolBinding": binding, "protocolVersion": version}
    return {"name": "far", "description": "Answers.", "version": "7", "supportedInterfaces": [interface]}


@contextmanager
def peer(answers: Answers) -> Iterator[str]:
    """Yield the URL of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, sent = answers(self.command, self.path, body)
            self.send_response(status)
            for name, value in {"content-length": str(len(sent)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _answer

        def log_message(self, *_: object) -> None:
            return

    with serving(Handler) as address:
        yield f"http://{address}"


class Call:
    """A call that something follows."""

    def __init__(self, task_id: str | None = None, answer: str | None = None) -> None:
        self.message_id, self.task_id, self.answer, self.is_stopped = "m1", task_id, answer, False

    def accept(self, task_id: str) -> None:
        self.task_id = task_id

    def arm(self, kill: Callable[[], None]) -> None:
        return


def task(state: str, **fields: Any) -> dict[str, Any]:
    return {"id": "t1", "contextId": "c1", "status": {"state": state}, **fields}


def opened(url: str, limit_s: float = 20.0) -> RemoteAgent:
    agent = RemoteAgent(url, "", limit_s)
    agent.offer(TOOL)
    return agent


def test_the_description_is_the_cards_and_another_version_of_it_changes_no_digest() -> None:
    cards = [{**card("http://127.0.0.1"), "skills": [{"name": "fly", "description": "books flights"}]}]
    with peer(lambda *_: ok(cards[-1])) as url:
        cards[0]["supportedInterfaces"][0]["url"] = f"{url}/rpc"
        first = RemoteAgent(url, "", 20).offer(TOOL)
        assert first.tools[0].description == "far: Answers.\n- fly: books flights" and first.version == "7"
        cards.append({**cards[0], "version": "8"})
        assert RemoteAgent(url, "", 20).offer(TOOL).digest == first.digest
        cards.append({**cards[0], "provider": {"organization": "another"}})
        assert RemoteAgent(url, "", 20).offer(TOOL).digest != first.digest


def test_looks_at_a_task_of_a_server_that_fails_share_the_budget_of_its_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(remote_agent, "time", SimpleNamespace(sleep=waits.append, monotonic=lambda: 1000.0))
    monkeypatch.setattr(retry_budget, "monotonic", lambda: 1000.0)
    for _ in range(BURST + 50):  # of others that wait for this server
        budget_of("http://budget.invalid/agent").pause_s(1)
    failures = iter([EpisodeError("no answer", reason="crashed")])

    def read() -> dict[str, Any]:
        if (error := next(failures, None)) is not None:
            raise error
        return {"read": True}

    assert remote_agent._patiently(read, "http://budget.invalid/rpc", Call("t1")) == {"read": True}
    assert waits == pytest.approx([51 * SPACING_S])


@pytest.mark.parametrize(
    ("reply", "reason", "text"),
    [
        (ok(card("http://127.0.0.1:1/rpc")), "not_allowed", "a card may name its own host alone"),
        (ok(card("x", version="0.3.0")), "bad_result", "no interface of A2A 1.0 by JSONRPC, only JSONRPC 0.3.0"),
        (ok(card("x", binding="GRPC")), "bad_result", "only GRPC 1.0"),
        (ok([]), "bad_result", "expected a JSON object"),
        ((200, {}, b"<html>"), "bad_result", "expected a JSON object"),
        ((200, {}, b" " * (MOST_BYTES + 1)), "too_large", "more than 262144 bytes"),
        ((302, {"location": "http://127.0.0.1:1/"}, b""), "bad_result", "answered 302"),
        ((503, {}, b""), "crashed", "answered 503"),
    ],
)
def test_a_card_that_cannot_be_used_is_refused_by_name(reply: Reply, reason: str, text: str) -> None:
    with peer(lambda *_: reply) as url, pytest.raises(EpisodeError, match=text) as caught:
        opened(url)
    assert caught.value.reason == reason


def test_an_agent_that_is_not_listed_is_not_asked() -> None:
    body = read_body({"tool_id": "far", "endpoint": "a2a:http://169.254.169.254/latest"})
    listed = Settings().model_copy(update={"environments": Environments(servers="a2a:http://127.0.0.1:1")})
    with ToolCaller(listed) as caller, pytest.raises(EpisodeError, match=r"add a2a:http://169\.254") as caught:
        caller.describe(body.order("far"), body.tool)
    assert caught.value.reason == "not_allowed"


def test_a_server_that_takes_too_long_is_left_in_time() -> None:
    release = threading.Event()

    def answers(*_: Any) -> Reply:
        release.wait(300)
        return ok({})

    with peer(answers) as url:
        with pytest.raises(EpisodeError, match=r"environments\.timeout_s") as caught:
            opened(url, 0.3)
        release.set()
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize(
    ("result", "text", "error"),
    [
        ({"message": {"messageId": "a", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}, "hi", None),
        ({"task": task("TASK_STATE_COMPLETED", artifacts=[{"parts": [{"text": "a"}, {"url": "x"}]}])}, "a", None),
        ({"task": task("TASK_STATE_REJECTED")}, "gave no answer: rejected", "rejected"),
        ({"task": task("TASK_STATE_AUTH_REQUIRED")}, "gave no answer: auth_required", "auth_required"),
        ({"task": task("TASK_STATE_INPUT_REQUIRED")}, "it asks for input", "input_required"),
    ],
)
def test_what_a_task_comes_to_is_a_text_or_an_error_by_name(result: Any, text: str, error: str | None) -> None:
    with peer(lambda method, *_: ok(card(url) if method == "GET" else {"result": result})) as url:
        output = opened(url).answer("hello", Call())
    assert text in output.text and output.error == error


def test_an_answer_to_its_question_is_sent_once_and_a_server_that_is_away_is_waited_for() -> None:
    sent: list[dict[str, Any]] = []
    away = iter([True, True])

    def answers(method: str, _: str, body: bytes) -> Reply:
        if method == "GET":
            return ok(card(url))
        call = json.loads(body)
        if call["method"] == "SendMessage":
            sent.append(call["params"]["message"])
        elif next(away, False):
            return 503, {}, b""
        history = [{"messageId": message["messageId"]} for message in sent]
        state = "TASK_STATE_COMPLETED" if sent and call["method"] == "GetTask" else "TASK_STATE_INPUT_REQUIRED"
        value = task(state, history=history)
        if call["method"] == "SendMessage":
            value["status"] = {"state": "TASK_STATE_WORKING"}
        return ok({"result": value if call["method"] == "GetTask" else {"task": value}})

    with peer(answers) as url:
        output = opened(url).answer("", Call("t1", "large"))
        assert output.error is None
        assert [(message["taskId"], message["contextId"], message["parts"]) for message in sent] == [
            ("t1", "c1", [{"text": "large"}])
        ]
        opened(url).answer("", Call("t1", "large"))
    assert len(sent) == 1


def json_of(fields: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Return any JSON object with some of these fields, at any depth."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(fields), inner, max_size=6),
        max_leaves=12,
    )
    return st.dictionaries(st.sampled_from(fields), values)


class Anything(NamedTuple):
    """A server that sends what is in `sent`: a card, and a result."""

    url: str
    sent: list[Any]


@pytest.fixture(scope="module")
def anything() -> Iterator[Anything]:
    sent: list[Any] = [None, None]
    with peer(lambda method, *_: ok(sent[0] if method == "GET" else {"result": sent[1]})) as url:
        yield Anything(url, sent)


@settings(deadline=None)
@given(json_of(CARD_FIELDS), json_of(TASK_FIELDS))
@example({"skills": 5}, {})
@example({"supportedInterfaces": 5}, {})
@example({}, {"task": task("TASK_STATE_COMPLETED", artifacts=[{"parts": 5}], history=5)})
@example({}, {"task": task("TASK_STATE_COMPLETED", artifacts=5)})
def test_whatever_a_server_sends_is_an_offer_and_an_output_or_an_error_by_name(
    anything: Anything, about: Any, result: Any
) -> None:
    anything.sent[:] = [{**card(anything.url), **about}, result]
    agent = RemoteAgent(anything.url, "", 60)
    with contextlib.suppress(EpisodeError):
        agent.offer(TOOL)
        assert isinstance(agent.answer("hello", Call()).text, str)


def test_a_direct_call_ends_in_time_and_cancels_its_task() -> None:
    methods: list[str] = []

    def answers(method: str, _: str, body: bytes) -> Reply:
        if method == "GET":
            return ok(card(url))
        methods.append(json.loads(body)["method"])
        working = task("TASK_STATE_WORKING")
        return ok({"result": {"task": working} if methods[-1] == "SendMessage" else working})

    with peer(answers) as url:
        output = opened(url, 0.5).answer_in_time("hello")
    assert output.error == "timeout" and methods[0] == "SendMessage" and methods[-1] == "CancelTask"
