"""`streamward serve` as its users meet it: the official client, a real log, and kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import (
    APIConnectionError,
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
    PermissionDeniedError,
)

from schemas.events import Message, Reward, Sampling, TrajectoryEvent, Turn
from schemas.tokens import TokenIds
from streams.engines.build import build_tokens
from streams.engines.token_stream import Generation, TokenStream
from streams.kafka import admin
from streams.observability.metrics import OFF
from streams.settings.model import Metrics, Policy, Serve, Settings
from streams.stages.agents.recording.calls import Delta, Done, ModelCall
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.service import open_recorder
from streams.stages.agents.trajectories.fold import of_each
from tests.support.agent_server import ServeProcess
from tests.support.commands import invoke
from tests.support.log.keys import open_keys
from tests.support.log.secured_node import free_ports
from tests.support.log.shared_node import own_prefix, own_topics
from tests.support.processes import read, said, until

pytestmark = pytest.mark.kafka

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
SCRIPT = {
    "context_tokens": 1_000_000,
    "replies": [
        {"when": "weather in Ulm", "reply": "Let me look. " + CALL},
        {"when": "sunny", "reply": "Wear a hat."},
        {"when": "at length", "reply": "x" * 100_000, "token_ms": 1},
        {"when": "ä and ü", "reply": "ä, ü and 🎈"},
    ],
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Server(ServeProcess):
    """`streamward serve` of a log of its own."""

    def client(self, agent: str, **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/agents/{agent}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def post(self, body: bytes) -> tuple[int, Any]:
        answer = httpx.post(self.url + "/v1/chat/completions", content=body, timeout=300)
        return answer.status_code, answer.json()

    def turns(self, agent: str) -> list[Turn]:
        return [turn for _, turn in read(self.settings, Turn) if turn.agent_id == agent]


def on_a_log_of_its_own(settings: Settings, rule: Serve) -> Settings:
    topics = settings.topics.model_copy(update={"prefix": own_prefix()})
    made = settings.model_copy(update={"serve": rule, "metrics": Metrics(), "topics": topics})
    admin.apply_topics(made)
    return made


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port, scraped = free_ports(2)
    settings = own_topics(
        kafka_bootstrap,
        policy=Policy(name="sums", engine="scripted", script=json.dumps(SCRIPT)),
        serve=Serve(port=port, max_body_mb=1),
        metrics=Metrics(port=scraped),
    )
    server = Server(settings, tmp_path_factory.mktemp("serve"))
    yield server
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(300) == 0, said(server.folder)


def test_a_server_is_ready_before_there_is_anything_in_its_log(server: Server) -> None:
    url = f"http://127.0.0.1:{server.settings.metrics.port}/readyz"
    until(lambda: httpx.get(url, timeout=300).text == "ok\n", "the server is ready", folder=server.folder)


def test_with_keys_a_client_is_answered_until_its_key_is_revoked(server: Server, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = on_a_log_of_its_own(server.settings, Serve(port=port, auth="keys"))
    with open_keys(settings) as person:
        key = person.create(role="submitter", actor="ann")
        guarded = Server(settings, tmp_path)
        try:
            asked: dict[str, Any] = {"model": "sums", "messages": [user("hello")]}
            client = guarded.client("keyed", api_key=key.text)
            assert client.chat.completions.create(**asked).choices[0].message.content == "hello"
            with pytest.raises(AuthenticationError):
                guarded.client("keyed", api_key="none").chat.completions.create(**asked)
            with pytest.raises(PermissionDeniedError):
                client.with_options(base_url=guarded.url + "/rl").post("/environments", cast_to=object)
            person.revoke(key.key_id, actor="ann", reason="lost")
            until(lambda: _status(guarded, key.text) == 401, "the key is revoked", folder=tmp_path)
        finally:
            guarded.process.send_signal(signal.SIGTERM)
            assert guarded.process.wait(300) == 0, said(tmp_path)
    assert key.secret not in said(tmp_path) + (tmp_path / "serve.log").read_text()


def _status(server: Server, key: str) -> int:
    return httpx.get(server.url + "/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=300).status_code


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def test_a_conversation_is_recorded_token_by_token_and_each_prompt_begins_with_the_one_before(server: Server) -> None:
    client, messages = server.client("walker"), [user("4 + 7 = 11")]
    for question in ("and twice that?", "thank you"):
        answer = client.chat.completions.create(model="sums", messages=messages, logprobs=True)
        assert answer.model == "sums@0"
        messages += [answer.choices[0].message.model_dump(include={"role", "content"}), user(question)]
    last = client.chat.completions.create(model="sums@0", messages=messages)

    turns = server.turns("walker")
    assert [turn.continuity for turn in turns] == ["first", "extends", "extends"]
    assert [turn.number for turn in turns] == [0, 1, 2]
    assert turns[2].turn_id == last.id.removeprefix("chatcmpl-")
    assert turns[2].reply.content == last.choices[0].message.content == "thank you"
    assert [len(turn.messages) for turn in turns] == [1, 1, 1]
    known = sum(len(turn.prompt_token_ids) + len(turn.completion_token_ids) for turn in turns[:2])
    assert last.usage is not None and last.usage.prompt_tokens == known + len(turns[2].prompt_token_ids)
    assert last.usage.prompt_tokens_details is not None and last.usage.prompt_tokens_details.cached_tokens == known
    [trajectory] = of_each(turns).values()
    assert str(trajectory) == "3 of 3 calls delivered"


def test_a_stream_gives_the_text_and_logprobs_of_the_whole_answer(server: Server) -> None:
    client = server.client("reader")
    whole = client.chat.completions.create(model="sums", messages=[user("ä and ü")], logprobs=True, seed=7)
    chunks = list(
        client.chat.completions.create(model="sums", messages=[user("ä and ü")], logprobs=True, seed=7, stream=True)
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.choices[0].message.content == "ä, ü and 🎈"
    assert whole.choices[0].logprobs is not None
    streamed = [
        token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == whole.choices[0].logprobs.content
    first, second = server.turns("reader")
    assert (first.completion_token_ids, first.logprobs) == (second.completion_token_ids, second.logprobs)
    assert [round(token.logprob, 5) for token in streamed] == [round(one, 5) for one in first.logprobs]


def test_calls_at_once_are_answered_side_by_side(server: Server) -> None:
    async def ask() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{server.url}/agents/crowd/v1", api_key="none") as client:
            asked = [client.chat.completions.create(model="sums", messages=[user(f"word {n}")], n=2) for n in range(8)]
            return [choice.message.content for answer in await asyncio.gather(*asked) for choice in answer.choices]

    assert asyncio.run(ask()) == [f"word {n}" for n in range(8) for _ in range(2)]
    turns = server.turns("crowd")
    assert sorted((turn.reply.content, turn.choice) for turn in turns) == [
        (f"word {n}", c) for n in range(8) for c in (0, 1)
    ]
    assert len({turn.turn_id for turn in turns}) == 16


def test_a_tool_call_comes_whole_and_its_result_continues_the_turn(server: Server) -> None:
    client, messages = server.client("tourist"), [user("What is the weather in Ulm?")]
    asked: dict[str, Any] = {"model": "sums", "tools": [WEATHER]}
    chunks = list(client.chat.completions.create(messages=messages, stream=True, **asked))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    [call] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert (said, chunks[-1].choices[0].finish_reason) == ("Let me look.", "tool_calls")
    assert call.function is not None and json.loads(call.function.arguments or "") == {"city": "Ulm"}
    messages += [
        {
            "role": "assistant",
            "content": said,
            "tool_calls": [
                {"id": "other", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "other", "content": "sunny"},
    ]
    assert client.chat.completions.create(messages=messages, **asked).choices[0].message.content == "Wear a hat."
    first, second = server.turns("tourist")
    assert (second.parent_id, second.continuity) == (first.turn_id, "extends")


def test_what_cannot_be_answered_says_why_in_the_format_of_the_api(server: Server) -> None:
    client = server.client("fool")
    with pytest.raises(BadRequestError, match="colour"):
        client.chat.completions.create(model="sums", messages=[user("hi")], extra_body={"colour": "blue"})
    with pytest.raises(NotFoundError, match="this server has sums"):
        client.chat.completions.create(model="gpt-5", messages=[user("hi")])
    with pytest.raises(NotFoundError, match="its newest is 0"):
        client.chat.completions.create(model="sums@7", messages=[user("hi")])
    assert server.post(b"{")[0] == 400
    status, body = server.post(b" " * 1_100_000)
    assert (status, body["error"]["code"]) == (413, "too_large") and "serve.max_body_mb" in body["error"]["message"]
    assert [model.id for model in client.models.list()] == ["sums", "sums@0"]
    assert client.models.retrieve("sums@0").id == "sums@0"
    assert server.turns("fool") == []


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (431, [b"GET /healthz HTTP/1.1\r\nHost: x\r\n", *[b"X: a\r\n" * 1000] * 100]),
        (431, [b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", *[b"a" * 10_000] * 100]),
        (431, [b"GET /healthz?", *[b"a" * 10_000] * 100]),
        (400, [b"GET /healthz\r\n\r\n"]),
        (400, [b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"]),
    ],
)
def test_what_needs_no_key_has_a_bound_too(server: Server, status: int, parts: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", server.settings.serve.port), timeout=300) as peer:
        with contextlib.suppress(OSError):  # closed while more is sent
            for part in parts:
                peer.sendall(part)
        assert peer.recv(100).startswith(b"HTTP/1.1 %d " % status)


def test_connections_beyond_the_settings_are_told_so(server: Server, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    narrow = Server(on_a_log_of_its_own(server.settings, Serve(port=port, address_connections=3)), tmp_path)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            refused = httpx.get(narrow.url + "/healthz", timeout=300)
        assert refused.status_code == 503 and "serve.address_connections" in refused.text
    finally:
        narrow.process.send_signal(signal.SIGTERM)
        assert narrow.process.wait(300) == 0


def test_feedback_on_an_answer_becomes_one_reward_however_often_it_is_sent(server: Server) -> None:
    client = server.client("rated")
    asked = client.chat.completions.create(model="sums", messages=[user("how was it?")], n=2)

    def give(**body: Any) -> tuple[int, Any]:
        answer = httpx.post(
            f"{server.url}/agents/rated/v1/feedback", json={"id": asked.id, "value": 1, **body}, timeout=300
        )
        return answer.status_code, answer.json()

    status, told = give(reason="short")
    assert (status, told["source"], told["value"]) == (200, "feedback/rated", 1)
    assert give(reason="short") == (200, told)
    assert give(source="ada", value=0.25, choice=1)[0] == 200
    status, refused = give(value=0)
    assert (status, refused["error"]["param"]) == (409, "value") and "another source" in refused["error"]["message"]
    assert give(id="chatcmpl-nothing")[0] == give(choice=2)[0] == 404
    assert [give(**bad)[0] for bad in ({"value": "good"}, {"value": None}, {"value": 1e13}, {"stars": 5})] == [400] * 4
    first, second = sorted(server.turns("rated"), key=lambda turn: turn.choice)
    assert give(id=first.trajectory_id, value=0.5)[0] == 200
    kept = [one for _, one in read(server.settings, Reward) if one.task_id == first.task_id]
    assert [(one.response_id, one.source, one.value, one.rationale) for one in kept] == [
        (first.turn_id, "feedback/rated", 1, "short"),
        (second.turn_id, "feedback/ada", 0.25, None),
        (first.trajectory_id, "feedback/rated", 0.5, None),
    ]
    events = [event for _, event in read(server.settings, TrajectoryEvent) if event.agent_id == "rated"]
    assert [event.kind for event in events] == ["started"]


def test_who_chats_can_say_what_the_answer_was_worth(server: Server) -> None:
    said = "/good\nhello\n/bad\nhello again\n/good well put\n"
    result = invoke(server.settings, "chat", input=said)
    assert (result.exit_code, result.stdout) == (0, "hello\nhello again\n")
    assert "no answer to rate yet" in result.stderr
    answers = {turn.turn_id: turn.reply.content for turn in server.turns("chat")}
    kept = [one for _, one in read(server.settings, Reward) if one.response_id in answers]
    assert [(answers[one.response_id], one.value, one.rationale) for one in kept] == [
        ("hello", 0, None),
        ("hello again", 1, "well put"),
    ]


def test_a_retry_gets_the_same_answer_and_no_second_turn(server: Server) -> None:
    client = server.client("twice")
    ask = client.chat.completions.create
    first = ask(model="sums", messages=[user("once")], extra_headers={"Idempotency-Key": "k1"})
    again = ask(model="sums", messages=[user("once")], extra_headers={"Idempotency-Key": "k1"})
    assert (again.id, again.choices[0].message.content) == (first.id, "once")
    assert len(server.turns("twice")) == 1
    others: list[dict[str, str]] = [{"Idempotency-Key": "k2"}, {}, {"x-stainless-retry-count": "1"}]
    assert len({first.id, *(ask(model="sums", messages=[user("once")], extra_headers=each).id for each in others)}) == 4


def call_of(server: Server, agent: str, *, stream: bool, text: str = "once more", **body: Any) -> httpx.Request:
    body |= {"model": "sums", "messages": [user(text)], "stream": stream}
    return httpx.Request("POST", f"{server.url}/agents/{agent}/v1/chat/completions", json=body)


def in_bytes(request: httpx.Request) -> bytes:
    lines = [f"POST {request.url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + request.content


def read_answer(connection: socket.socket, end: bytes) -> str:
    """Read an answer to its end, and return the id of its turn."""
    received = b""
    while not received.endswith(end):
        received += connection.recv(65536)
    [turn_id] = re.findall(rb"\r\nx-request-id: (\S+)", received)
    return str(turn_id, "ascii")


def retry(call: httpx.Request) -> str:
    """Send a call as a client does that got no answer, and return the id of the turn that answers it."""
    call.headers.update({"x-stainless-retry-count": "1"})
    with httpx.Client(timeout=300) as client:
        return client.send(call).headers["x-request-id"]


STREAMED = pytest.mark.parametrize(("stream", "end"), [(True, b"\r\n0\r\n\r\n"), (False, b"}")])


@STREAMED
@pytest.mark.parametrize("kept", [True, False])
def test_a_retry_gets_the_answer_that_reached_its_client_and_was_not_read(
    server: Server, stream: bool, end: bytes, kept: bool
) -> None:
    """`kept`: the connection had an answer to the same call before, and that one was read."""
    agent, before = f"unread-{stream}-{kept}", list[str]()
    call = call_of(server, agent, stream=stream)
    with socket.create_connection(("127.0.0.1", server.settings.serve.port), timeout=300) as connection:
        if kept:
            connection.sendall(in_bytes(call))
            before.append(read_answer(connection, end))
        connection.sendall(in_bytes(call))
        until(lambda: connection.recv(65536, socket.MSG_PEEK).endswith(end), "the answer", folder=server.folder)
    again = retry(call)
    assert sorted(turn.turn_id for turn in server.turns(agent)) == sorted([*before, again])


@STREAMED
def test_a_retry_gets_an_answer_of_its_own_if_the_first_one_was_read(server: Server, stream: bool, end: bytes) -> None:
    """Whoever has read the answer to a call does not send it again: another process did."""
    agent = f"read-{stream}"
    call = call_of(server, agent, stream=stream)
    with socket.create_connection(("127.0.0.1", server.settings.serve.port), timeout=300) as connection:
        connection.sendall(in_bytes(call))
        first = read_answer(connection, end)
    again = retry(call)
    assert first != again
    assert sorted(turn.turn_id for turn in server.turns(agent)) == sorted([first, again])


def test_calls_at_once_with_the_same_body_share_an_answer_only_under_the_same_key(server: Server) -> None:
    with contextlib.ExitStack() as stack:

        def begun(**headers: str) -> str:
            chunks = server.client("twins").chat.completions.create(
                model="sums",
                messages=[user("at length")],
                max_tokens=2_000,
                stream=True,
                extra_headers={name.replace("_", "-"): value for name, value in headers.items()},
            )
            return next(iter(stack.enter_context(chunks))).id

        first, second, again = begun(Idempotency_Key="k1"), begun(Idempotency_Key="k2"), begun(Idempotency_Key="k1")
        assert first == again != second
        assert begun() != begun(x_stainless_retry_count="1"), "a retry that may be of another client's call"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_whose_client_hangs_up_is_recorded_and_not_delivered(server: Server, stream: bool) -> None:
    """The client leaves when the first token is drawn; the whole answer would take 100 s."""
    until(
        lambda: measured(server, 'answers_open{state="running"}') == 0, "no other answer is drawn", folder=server.folder
    )
    agent, before = f"shy-{stream}", measured(server, "tokens_sampled_total")
    call = call_of(server, agent, stream=stream, text="at length", max_tokens=200_000)
    with socket.create_connection(("127.0.0.1", server.settings.serve.port), timeout=300) as connection:
        connection.sendall(in_bytes(call))
        until(lambda: measured(server, "tokens_sampled_total") > before, "its first token", folder=server.folder)
    until(lambda: len(server.turns(agent)) == 1, "the turn is in the log", folder=server.folder)
    [turn] = server.turns(agent)
    assert (turn.delivered, turn.finish_reason) == (False, "cancelled")
    assert 0 < len(turn.completion_token_ids) < 100_000


def measured(server: Server, name: str) -> float:
    lines = httpx.get(f"http://127.0.0.1:{server.settings.metrics.port}/metrics", timeout=300).text.splitlines()
    [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"streamward_serve_{name} ")]
    return float(value)


@pytest.mark.kills
def test_after_kill_9_every_finished_answer_is_in_the_log_and_conversations_continue(server: Server) -> None:
    client, told = server.client("survivor"), []
    before = client.chat.completions.create(model="sums", messages=[user("remember me")])
    enough = threading.Event()

    def chat(name: int) -> None:
        for n in range(10_000):
            with contextlib.suppress(APIError):
                chunks = list(
                    client.chat.completions.create(model="sums", messages=[user(f"{name} says {n}")], stream=True)
                )
                if chunks[-1].choices[0].finish_reason is None:
                    return
                told.append(chunks[-1].id)
                if len(told) > 40:
                    enough.set()
                continue
            return

    threads = [threading.Thread(target=chat, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(300), said(server.folder)
    server.kill()
    for thread in threads:
        thread.join()
    with pytest.raises(APIConnectionError):
        client.chat.completions.create(model="sums", messages=[user("anybody there?")])

    server.start()
    recorded = {f"chatcmpl-{turn.turn_id}" for turn in server.turns("survivor")}
    assert set(told) - recorded == set()
    again = client.chat.completions.create(
        model="sums", messages=[user("remember me")], extra_headers={"x-stainless-retry-count": "1"}
    )
    assert again.id == before.id
    messages = [user("remember me"), {"role": "assistant", "content": "remember me"}, user("still?")]
    after = client.chat.completions.create(model="sums", messages=messages)
    turns = {f"chatcmpl-{turn.turn_id}": turn for turn in server.turns("survivor")}
    parent = turns[before.id]
    assert turns[after.id].parent_id == parent.turn_id and turns[after.id].trajectory_id == parent.trajectory_id
    whole = bytes(
        token for part in (parent.prompt_token_ids, parent.completion_token_ids) for token in part if token < 256
    )
    assert whole == b"user: remember me\nassistant: remember me"
    assert turns[after.id].prompt_token_ids == TokenIds.of(b"\nuser: still?\nassistant: ")
    begun = {event.trajectory_id for _, event in read(server.settings, TrajectoryEvent) if event.kind == "started"}
    assert {turn.trajectory_id for turn in turns.values()} - begun == set()


@pytest.mark.model
def test_what_smollm2_drew_is_what_is_recorded_and_each_prompt_begins_with_it(made: Settings) -> None:
    engine, rendering = build_tokens(made)
    drawn: list[TokenStream] = []
    submit = engine.submit

    def watched(generation: Generation) -> TokenStream:
        drawn.append(submit(generation))
        return drawn[-1]

    engine.submit = watched  # type: ignore[method-assign]
    stop = threading.Event()

    async def converse(recorder: Recorder) -> None:
        messages: list[Message] = []
        for n, question in enumerate(["What is 3 + 4?", "Why?", "Say it in French: ä, 🎈."]):
            messages.append(Message(role="user", content=question))
            call = ModelCall(
                agent_id="a",
                model="default",
                protocol="chat",
                messages=tuple(messages),
                sampling=Sampling(max_tokens=4 if n == 1 else 24, temperature=0.9),
                request_digest=str(n),
            )
            pieces = [piece async for piece in recorder.answer(call)]
            [done] = [piece for piece in pieces if isinstance(piece, Done)]
            assert "".join(piece.text for piece in pieces if isinstance(piece, Delta)) == done.message.content
            messages.append(done.message)

    try:
        with open_recorder(made, (engine, rendering), stop, OFF) as recorder:
            asyncio.run(converse(recorder))
    finally:
        engine.close()
    turns = [turn for _, turn in read(made, Turn)]
    known: tuple[int, ...] = ()
    for turn, stream in zip(turns, drawn, strict=True):
        assert stream.generation.prompt_token_ids == (*known, *turn.prompt_token_ids)
        assert [*zip(turn.completion_token_ids, turn.logprobs, strict=True)] == stream.drawn
        known = (*stream.generation.prompt_token_ids, *turn.completion_token_ids)
    assert [turn.continuity for turn in turns] == ["first", "extends", "extends"]
