"""How much a body may have: bytes and values by route, before anything of it is parsed.

Not covered: the time of a body (test_limits.py), and what comes before it (test_connection.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import re
import threading
import zlib
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, strategies as st
from starlette.requests import Request

from gateway.http import body as bodies, openapi
from gateway.http.application import Application
from gateway.http.body import Body, read
from gateway.http.form_data import HEAD_BYTES, parts
from gateway.http.intake import LARGE_BYTES, MOST_LEVELS, Intake
from gateway.http.route import Route
from gateway.rooms.routes import ROUTES
from schemas import json_text
from schemas.conversation import Conversation
from schemas.faults import LONGEST_PATH
from streams.adapters import training_files
from streams.errors import CallError, CallErrorKind, JobRequestError
from streams.settings.model import Settings
from tests.support.documented import document
from tests.support.rooms import every_room

TAKING_JSON = [route for route in ROUTES if route.takes_json]


def values_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_of, inner))


def levels_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels_of, inner), default=0)


# --- counting ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from('",:[]{}\\/é🎈\n'), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


@given(JSON, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"]))
def test_values_and_levels_are_counted_whatever_is_inside_of_texts(value: Any, is_ascii: bool, encoding: str) -> None:
    raw = json.dumps([value] * 60, ensure_ascii=is_ascii).encode(encoding)  # more than are counted without a look
    values, levels = values_of([value] * 60), levels_of([value] * 60)
    empty = raw.decode(encoding).replace(" ", "")
    counted = json_text.check_extent(raw, 10_000, levels)
    assert values <= counted <= values + empty.count("[]") + empty.count("{}")
    with pytest.raises(json_text.ExtentError, match="more than"):
        json_text.check_extent(raw, values - 1)
    with pytest.raises(json_text.ExtentError, match="nested deeper than"):
        json_text.check_extent(raw, 10_000, levels - 1)


@given(st.text(st.sampled_from('",:[]{}\\ a1'), max_size=400))
def test_of_any_text_no_more_is_parsed_than_was_counted(text: str) -> None:
    counted, read_values = json_text.check_extent(text, 10_000), 0

    def count(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal read_values
        read_values += len(pairs)
        return dict(pairs)

    with contextlib.suppress(ValueError):
        json.JSONDecoder(object_pairs_hook=count).decode(text)
    assert read_values <= counted


def test_what_is_a_text_is_one_value_however_long() -> None:
    raw = json.dumps({"prompt": 'a, b: [c], {d} "e" \\ ' * 10_000}).encode()
    assert json_text.check_extent(raw, 3) <= 3


def test_a_key_that_is_there_twice_is_found_among_many() -> None:
    text = "{" + ",".join(f'"k{n}": 1' for n in range(100_000)) + ', "k99999": 2}'
    with pytest.raises(json_text.RepeatedKeyError, match='"k99999" is there twice'):
        json_text.parse(text)


# --- routes -----------------------------------------------------------------------------------------------------------


def application() -> Application:
    return Application(every_room(Settings()), version="0", max_body_bytes=16_000_000)


def posted(app: Application, route: Route, raw: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    path = re.sub(r"{\w+}", "x", route.paths[0])

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            return await client.request(route.method, path, content=raw, headers=headers)

    return asyncio.run(post())


@pytest.mark.parametrize("route", TAKING_JSON, ids=lambda route: route.name)
def test_no_route_parses_a_body_of_too_many_values_or_levels(route: Route) -> None:
    fields = 2 * route.max_values + 1 if route.max_numbers else route.max_values  # numbers have a bound of their own
    many = b"{" + b",".join(b'"k%d":1' % n for n in range(fields)) + b","  # parsed, it would be no JSON
    deep = b'{"a":' * (MOST_LEVELS + 1)
    says = {many: f"it has more than {route.max_values:,} values", deep: f"deeper than {MOST_LEVELS} levels"}
    app = application()
    for raw, problem in says.items():
        if route.max_bytes is not None and len(raw) > route.max_bytes:
            problem = "the most that this route takes"
        answer = posted(app, route, raw)
        assert answer.status_code == 413 and problem in answer.text


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.takes is not None and route.max_bytes], ids=lambda route: route.name
)
def test_a_body_longer_than_its_route_takes_is_refused(route: Route) -> None:
    assert route.max_bytes is not None
    answer = posted(application(), route, b" " * (route.max_bytes + 1))
    assert answer.status_code == 413 and "the most that this route takes" in answer.text


@pytest.mark.parametrize("name", ["create_chat_completion", "call_jsonrpc", "create_training_job"])
def test_a_long_body_is_read_in_a_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def to_thread(call: Any, *arguments: Any) -> Any:
        calls.append(call)
        return call(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    [route] = [route for route in ROUTES if route.name == name]
    for raw, threads in ((b'{"x": "short"}', 0), (json.dumps({"x": "a" * LARGE_BYTES}).encode(), 2)):
        calls.clear()
        posted(application(), route, raw)
        assert len(calls) == threads


def test_the_description_is_made_in_a_thread_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def made(*_: Any, **__: Any) -> dict[str, Any]:
        threads.add(threading.current_thread())
        return document()

    monkeypatch.setattr(openapi, "document", made)
    app = application()

    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            return await asyncio.gather(*[client.get("/openapi.json") for _ in range(2)])

    assert [answer.json() for answer in asyncio.run(both())] == [document()] * 2
    assert len(threads) == 1 and threading.current_thread() not in threads


@pytest.mark.parametrize(("headers", "read_parts"), [([], 11), ([(b"content-length", b"10000")], 0)])
def test_a_body_is_read_no_further_than_it_may_be_long(headers: list[tuple[bytes, bytes]], read_parts: int) -> None:
    count = 0

    async def receive() -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": count < 100}

    with pytest.raises(CallError, match="longer than 1000 bytes"):
        asyncio.run(Intake(max_bytes=1000).body(Request({"type": "http", "headers": headers}, receive)))
    assert count == read_parts


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_a_body_is_unpacked_no_further_than_it_may_be_long(coding: str) -> None:
    whole = random.Random(1).randbytes(LARGE_BYTES).hex().encode()  # its ratio alone would let it through
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}[coding](whole)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": packed}

    request = Request({"type": "http", "headers": [(b"content-encoding", coding.encode())]}, receive)
    assert len(packed) < LARGE_BYTES * 1.5 < len(whole)
    with pytest.raises(CallError, match=f"longer than {len(whole) - 1} bytes once it is unpacked"):
        asyncio.run(Intake(max_bytes=len(whole) - 1).body(request))


# --- what is packed ---------------------------------------------------------------------------------------------------


def zstd(raw: bytes, **parameters: Any) -> bytes:
    packed: bytes = zstandard.ZstdCompressor(**parameters).compress(raw)
    return packed


DEEP = b'{"a":' * (MOST_LEVELS + 1)
PACKED = {
    "gzip": gzip.compress(DEEP),
    "x-gzip": gzip.compress(DEEP),
    "Deflate": zlib.compress(DEEP),
    "deflate": zlib.compress(DEEP, wbits=-15),
    "zstd": zstd(DEEP),
}


@pytest.mark.parametrize("route", TAKING_JSON, ids=lambda route: route.name)
def test_a_compressed_body_is_unpacked_for_every_route(route: Route) -> None:
    app = application()
    for coding, raw in PACKED.items():
        answer = posted(app, route, raw, {"content-encoding": coding})
        assert answer.status_code == 413 and f"deeper than {MOST_LEVELS} levels" in answer.text


WIDE = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
).compressobj()
"""A frame that asks for 16 MiB of memory."""
FALSE_HEADERS: list[tuple[bytes, str, CallErrorKind, str]] = [
    (DEEP, "br", "unsupported_media_type", "Content-Encoding br: expected gzip, deflate, zstd, or none"),
    (DEEP, "gzip, zstd", "unsupported_media_type", "Content-Encoding gzip, zstd: expected"),
    (DEEP, "gzip", "invalid", "Content-Encoding gzip: the body is none"),
    (DEEP, "deflate", "invalid", "Content-Encoding deflate: the body is none"),
    (DEEP, "zstd", "invalid", "Content-Encoding zstd: the body is none"),
    (PACKED["gzip"][:-9], "gzip", "invalid", "ends too early"),
    (PACKED["gzip"] + b"more", "gzip", "invalid", "continues after its end"),
    (PACKED["deflate"][:-5], "deflate", "invalid", "ends too early"),
    (PACKED["zstd"][:-5], "zstd", "invalid", "ends too early"),
    (WIDE.compress(DEEP) + WIDE.flush(), "zstd", "invalid", "the body is none"),
]


@pytest.mark.parametrize("route", TAKING_JSON, ids=lambda route: route.name)
def test_a_body_that_is_not_as_its_header_says_is_refused_by_every_route(route: Route) -> None:
    app = application()
    for raw, coding, kind, says in FALSE_HEADERS:
        answer = posted(app, route, raw, {"content-encoding": coding})
        assert answer.status_code == route.interface.dialect.status(kind) and says in answer.text


# --- errors -----------------------------------------------------------------------------------------------------------


class Form(Body):
    """One text."""

    text: str


def test_an_error_of_many_unknown_parameters_names_some_and_counts_the_rest() -> None:
    raw = json.dumps({f"k{n}": n for n in range(5_000)} | {"text": "a"}).encode()
    with pytest.raises(CallError, match=r"there is no field k0; .* \| and 4990 more$"):
        read(Form, raw)


def test_a_name_that_is_long_is_cut_in_the_error() -> None:
    with pytest.raises(CallError) as raised:
        read(Form, json.dumps({"text": "a", "k" * 900_000: 1}).encode())
    assert len(raised.value.message) < 3 * LONGEST_PATH and len(raised.value.parameter or "") == LONGEST_PATH


# --- text that is JSON, in a body -------------------------------------------------------------------------------------


class Talk(Body):
    """Messages."""

    messages: Conversation


def test_arguments_of_calls_have_a_bound_together() -> None:
    def talk(values: int, calls: int) -> bytes:
        call = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"a": [1] * values})}}
        return json.dumps({"messages": [{"role": "assistant", "tool_calls": [call] * calls}]}).encode()

    assert len(read(Talk, talk(9_000, 10)).messages) == 1
    for raw in (talk(9_000, 12), talk(bodies.MOST_TEXT_VALUES, 1)):
        with pytest.raises(CallError, match=r"they are not JSON: it has more than .* values"):
            read(Talk, raw)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"a": [' + b"1," * training_files.MOST_VALUES + b"1]}", "line 1: it has more than 10,000 values"),
        (b"{}\n" * (training_files.MOST_LINES + 1), "the file has more than 500,000 lines"),
    ],
)
def test_a_file_of_questions_has_bounds_too(raw: bytes, says: str) -> None:
    with pytest.raises(JobRequestError, match=says):
        training_files.lines_of(raw)


def test_the_headers_of_a_field_of_a_form_are_cut_off() -> None:
    head = b"Content-Disposition: form-data; name=a" + b"; x=y" * HEAD_BYTES
    with pytest.raises(CallError, match="longer than 8192 bytes"):
        parts("multipart/form-data; boundary=b", b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--\r\n")


class AnyValue(Body):
    """A body with JSON of any shape."""

    value: dict[str, Any]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400", "9" * 310 + ".0"])
def test_a_number_that_json_does_not_have_is_refused_wherever_it_is_in_a_body(number: str) -> None:
    raw = b'{"value": {"a": [{"b": %s}]}}' % number.encode()
    with pytest.raises(CallError, match="no numbers of JSON; send null"):
        read(AnyValue, raw)


def test_what_only_looks_like_such_a_number_is_read() -> None:
    value = {"a": "NaN, Infinity, 1e999", "b": 1e308, "c": int("9" * 400), "d": 1e-300}
    raw = json.dumps({"value": value}).encode()
    assert read(AnyValue, raw).value == value
