"""JSON-RPC 2.0, by the examples of its specification (https://www.jsonrpc.org/specification, section 7)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.http.jsonrpc import RpcError, RpcMethod, answer


async def subtract(given: dict[str, Any]) -> int:
    return int(given["minuend"]) - int(given["subtrahend"])


async def total(given: dict[str, Any]) -> int:
    return sum(given["*"])


async def data(given: dict[str, Any]) -> list[Any]:
    return ["hello", 5]


async def nothing(given: dict[str, Any]) -> None:
    return None


async def breaks(given: dict[str, Any]) -> None:
    raise ZeroDivisionError


async def refuses(given: dict[str, Any]) -> None:
    raise RpcError(-32001, "Not found", {"message": "there is no job"})


METHODS = {
    "subtract": RpcMethod(subtract, ("minuend", "subtrahend")),
    "sum": RpcMethod(total),
    "get_data": RpcMethod(data),
    "update": RpcMethod(nothing),
    "notify_hello": RpcMethod(nothing),
    "notify_sum": RpcMethod(nothing),
    "breaks": RpcMethod(breaks),
    "refuses": RpcMethod(refuses),
}
INVALID = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": None}


def answered(text: str) -> Any:
    """Return what is answered, without what explains an error further: the specification leaves that open."""
    found = asyncio.run(answer(text.encode(), METHODS))
    for one in found if isinstance(found, list) else [found] if found else []:
        if "error" in one:
            one["error"].pop("data", None)
    return found


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ('{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
         {"jsonrpc": "2.0", "result": 19, "id": 1}),
        ('{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
         {"jsonrpc": "2.0", "result": -19, "id": 2}),
        ('{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
         {"jsonrpc": "2.0", "result": 19, "id": 3}),
        ('{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
         {"jsonrpc": "2.0", "result": 19, "id": 4}),
        ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
        ('{"jsonrpc": "2.0", "method": "foobar"}', None),
        ('{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
         {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}),
        ('{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
         {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}),
        ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', INVALID),
        ('[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]',
         {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}),
        ("[]", INVALID),
        ("[1]", [INVALID]),
        ("[1,2,3]", [INVALID, INVALID, INVALID]),
        ('[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
         ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},'
         ' {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},'
         ' {"foo": "boo"},'
         ' {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
         ' {"jsonrpc": "2.0", "method": "get_data", "id": "9"}]',
         [{"jsonrpc": "2.0", "result": 7, "id": "1"}, {"jsonrpc": "2.0", "result": 19, "id": "2"}, INVALID,
          {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
          {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}]),
        ('[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
         ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]', None),
    ],
)  # fmt: skip
def test_an_example_of_the_specification_is_answered_as_it_says(sent: str, expected: Any) -> None:
    assert answered(sent) == expected


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"jsonrpc": "2.0", "method": "subtract", "params": [1, 2, 3], "id": 1}, -32602),
        ({"jsonrpc": "2.0", "method": "breaks", "id": 1}, -32603),
        ({"jsonrpc": "2.0", "method": "refuses", "id": 1}, -32001),
        ({"jsonrpc": "1.0", "method": "get_data", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "method": "get_data", "params": 1, "id": 1}, -32600),
        ({"jsonrpc": "2.0", "method": "get_data", "id": True}, -32600),
        ({"jsonrpc": "2.0", "method": "get_data", "id": [1]}, -32600),
        ({"jsonrpc": "2.0", "method": "get_data", "id": float("inf")}, -32600),
        ({"jsonrpc": "2.0", "method": "get_data", "id": float("nan")}, -32600),
    ],
)
def test_each_kind_of_mistake_has_its_code(request_: dict[str, Any], code: int) -> None:
    found = answered(json.dumps(request_))
    assert found["error"]["code"] == code
    assert found["id"] == (None if code == -32600 else 1)


def test_a_request_with_the_id_null_is_answered_and_one_without_is_not() -> None:
    assert answered('{"jsonrpc": "2.0", "method": "get_data", "id": null}')["id"] is None
    assert answered('{"jsonrpc": "2.0", "method": "breaks"}') is None


def test_a_batch_that_is_too_long_is_refused_whole() -> None:
    one = {"jsonrpc": "2.0", "method": "get_data", "id": 1}
    assert answered(json.dumps([one] * 1001)) == INVALID


KEYS = st.sampled_from(["jsonrpc", "method", "params", "id", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(JSON | st.binary(max_size=20))
def test_whatever_is_sent_gets_an_answer_and_ends_nothing(value: Any) -> None:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = asyncio.run(answer(raw, METHODS))
    for one in found if isinstance(found, list) else [found] if found else []:
        assert one["jsonrpc"] == "2.0" and ("result" in one) != ("error" in one)
