"""What a key may ask, how much at once, and how long a request may take; told in the words of each protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits, TimeLimits, spend_tokens
from gateway.http.request_record import RECORD
from gateway.rooms.routes import TABLE
from streams.access.token_bucket import ROUNDING, TokenBucket, take
from streams.settings.model import Serve, Settings
from tests.support.callers import BEARER, Known
from tests.support.rooms import every_room

SECONDS = st.floats(0, 100, allow_subnormal=False)
PATHS = ("/v1/chat/completions", "/v1/messages", "/jsonrpc", "/finetune/jobs")


# --- the bucket -------------------------------------------------------------------------------------------------------


@given(st.lists(SECONDS, max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_no_span_of_time_lets_more_through_than_burst_and_rate(gaps: list[float], rate: float, burst: int) -> None:
    bucket: TokenBucket | None = None
    now, let_in = 0.0, list[float]()
    for gap in gaps:
        now += gap / 50
        bucket, wait_s = take(bucket, now, rate=rate, burst=burst)
        if not wait_s:
            let_in.append(now)
    for first, since in enumerate(let_in):
        for last, until in enumerate(let_in[first:], first):
            assert last - first + 1 <= burst + rate * (until - since) + len(gaps) * ROUNDING


@given(st.lists(SECONDS, max_size=60), st.integers(0, 59), st.floats(0.1, 50), st.integers(1, 20))
def test_servers_that_replace_each_other_let_no_more_through_than_one(
    gaps: list[float], moves: int, rate: float, burst: int
) -> None:
    rule, clock, let_in = Serve(auth="keys", key_per_s=rate, key_burst=burst, key_at_once=0), [0.0], 0
    limits = KeyLimits(rule, lambda: clock[-1])
    for number, gap in enumerate(gaps):
        if number == moves:
            limits = KeyLimits(rule, lambda: clock[-1], empty_at=clock[-1])
        clock.append(clock[-1] + gap / 50)
        let_in += limits.begin("key") is None
        assert let_in <= burst + rate * clock[-1] + len(gaps) * ROUNDING


@given(st.lists(st.tuples(SECONDS, st.integers(0, 500)), max_size=40), st.integers(0, 39))
def test_tokens_that_a_key_owes_are_owed_to_the_server_that_replaces_another(
    asked: list[tuple[float, int]], moves: int
) -> None:
    rule, clock, used = Serve(auth="keys", key_per_s=0, key_at_once=0, key_tokens_per_min=60), [0.0], 0
    limits, written = KeyLimits(rule, lambda: clock[-1]), TokenBucket(0.0, 0.0)
    for number, (gap, tokens) in enumerate(asked):
        if number == moves:
            limits = KeyLimits(rule, lambda: clock[-1], empty_at=clock[-1], spent={"key": written})
        clock.append(clock[-1] + gap)
        if limits.begin("key") is None:
            assert used <= 60 + clock[-1] + 1e-6, "it owed tokens, and was let in"
            limits.end("key", tokens)
            written, used = spend_tokens(written, clock[-1], tokens, rule), used + tokens


@given(st.floats(0, 20), SECONDS, st.floats(0.01, 1000), st.integers(1, 20))
def test_who_waits_as_long_as_was_said_gets_its_answer_and_no_sooner(
    tokens: float, now: float, rate: float, burst: int
) -> None:
    bucket, wait_s = take(TokenBucket(min(tokens, burst), now), now, rate=rate, burst=burst)
    if wait_s:
        assert take(bucket, now + wait_s, rate=rate, burst=burst)[1] == 0
        assert take(bucket, now + wait_s / 2, rate=rate, burst=burst)[1] > 0


@given(st.floats(0, 20), SECONDS, SECONDS)
def test_a_clock_that_goes_back_gives_nothing(tokens: float, at: float, back: float) -> None:
    before = TokenBucket(tokens, at)
    found, wait_s = take(before, at - back, rate=5, burst=20)
    assert found.at_s == at and found.tokens <= tokens
    assert (wait_s == 0) == (tokens >= 1 - ROUNDING)


# --- keys -------------------------------------------------------------------------------------------------------------


class Hands:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_that_asks_too_often_waits_and_others_do_not() -> None:
    clock = Hands()
    limits = KeyLimits(Serve(auth="keys", key_per_s=2, key_burst=3), clock)
    assert [limits.begin("a") for _ in range(3)] == [None] * 3
    refused = limits.begin("a")
    assert refused is not None and refused.retry_after_s == pytest.approx(0.5)
    assert limits.begin("b") is None
    clock.now = 0.5
    assert limits.begin("a") is None


def test_a_key_has_so_many_requests_at_once_and_one_that_ends_makes_room() -> None:
    limits = KeyLimits(Serve(auth="keys", key_per_s=0, key_at_once=2))
    assert [limits.begin("a") for _ in range(2)] == [None] * 2
    refused = limits.begin("a")
    assert refused is not None and "serve.key_at_once" in refused.why
    limits.end("a")
    assert limits.begin("a") is None


def test_a_key_that_has_used_its_tokens_waits_until_they_have_come_in_again() -> None:
    clock = Hands()
    limits = KeyLimits(Serve(auth="keys", key_per_s=0, key_tokens_per_min=60), clock)
    assert limits.begin("a") is None
    limits.end("a", 90)
    refused = limits.begin("a")
    assert refused is not None and "serve.key_tokens_per_min" in refused.why
    assert refused.retry_after_s == pytest.approx(30)
    assert limits.begin("b") is None
    clock.now = 30.0
    assert limits.begin("a") is None


def test_tokens_of_an_answer_are_those_that_its_route_recorded() -> None:
    async def answers(scope: Any, receive: Any, send: Any) -> None:
        scope[RECORD].prompt_tokens, scope[RECORD].completion_tokens = 40, 30
        await PlainTextResponse("reached")(scope, receive, send)

    rule = Serve(auth="keys", key_tokens_per_min=60)
    http = TestClient(Door(answers, TABLE, Known("admin"), KeyLimits(rule)))
    assert [http.post(PATHS[0], headers=BEARER).status_code for _ in range(2)] == [200, 429]


def test_a_limit_of_keys_without_keys_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="key_per_s has no effect without keys"):
        Serve(key_per_s=1)


@pytest.mark.parametrize("path", PATHS)
def test_each_protocol_says_that_a_key_has_to_wait(path: str) -> None:
    rule = Serve(auth="keys", key_per_s=0.1, key_burst=1)
    http = TestClient(Door(PlainTextResponse("reached"), TABLE, Known("admin"), KeyLimits(rule)))
    assert http.post(path, headers=BEARER).text == "reached"
    answer = http.post(path, headers=BEARER)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
    body = answer.json()
    if path == "/jsonrpc":
        assert (body["jsonrpc"], body["error"]["code"]) == ("2.0", -32429)
    else:
        assert body["error"]["type"] == "rate_limit_error"
        assert (body.get("type") == "error") == (path == "/v1/messages")


def test_a_stream_counts_until_it_ends() -> None:
    rule = Serve(auth="keys", key_at_once=1)
    statuses = []

    async def streamed(scope: Any, receive: Any, send: Any) -> None:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one"
            if len(statuses) < 1:
                statuses.append((await second(door)).status_code)
            yield b"two"

        await StreamingResponse(parts())(scope, receive, send)

    door = Door(streamed, TABLE, Known("admin"), KeyLimits(rule))

    async def second(app: ASGIApp) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
            return await client.get("/v1/models", headers=BEARER)

    assert asyncio.run(second(door)).text == "onetwo"
    assert statuses == [429]
    assert asyncio.run(second(door)).status_code == 200


# --- time and size ----------------------------------------------------------------------------------------------------


def asked(app: ASGIApp, path: str, body: AsyncIterator[bytes] | bytes) -> httpx.Response:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
            return await client.post(path, content=body, headers={"Content-Type": "application/json"})

    return asyncio.run(post())


def application() -> Application:
    return Application(every_room(Settings()), version="0", max_body_bytes=1_000)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_never_ends_and_one_that_is_too_long_are_refused_in_each_protocols_words(path: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    app = TimeLimits(application(), TABLE, Serve(body_s=0.01))
    late, long = asked(app, path, endless()), asked(app, path, b"x" * 2_000)
    assert (late.status_code, long.status_code) == (408, 413)
    for answer, setting in ((late, "serve.body_s"), (long, "serve.max_body_mb")):
        body = answer.json()
        assert setting in answer.text
        assert ("jsonrpc" in body) == (path == "/jsonrpc")
        assert (body.get("type") == "error") == (path == "/v1/messages")
        assert ("timestamp" in body["error"]) == (path == "/finetune/jobs")


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_never_comes_is_given_up(path: str) -> None:
    ended = []

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(path)

    answer = asked(TimeLimits(stuck, TABLE, Serve(answer_s=0.01)), path, b"{}")
    assert (answer.status_code, ended, answer.headers["connection"]) == (504, [path], "close")
    assert "serve.answer_s" in answer.text


def test_a_stream_that_never_ends_is_cut_off_and_its_source_closed() -> None:
    closed = []

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def streamed(request: Request) -> StreamingResponse:
        await request.body()
        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/v1/chat/completions", streamed, methods=["POST"])])
    with pytest.raises(AssertionError):  # httpx's: the answer was never completed
        asked(TimeLimits(app, TABLE, Serve(answer_s=0.05)), "/v1/chat/completions", b"{}")
    assert closed == [True]


def test_a_timeout_of_the_application_itself_is_not_taken_for_the_limit() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        asked(TimeLimits(fails, TABLE, Serve()), "/v1/models", b"")
