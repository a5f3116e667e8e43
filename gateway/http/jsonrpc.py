"""JSON-RPC 2.0: from the bytes of one request or a batch to the answer.

    bytes ──► Parse error, or each request ──► Invalid Request, Method not found, Invalid params, or its result
                                          └──► a notification: done, and not answered

A whole batch is parsed before any of its requests runs.

Methods are functions of named parameters; positional ones are named in the method's order. The specification is
https://www.jsonrpc.org/specification. The requests of a batch run one after the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from gateway.http.intake import read_apart
from schemas import json_text
from schemas.faults import nearest

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
MEANING = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid Request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
    INTERNAL_ERROR: "Internal error",
}
JsonObject = dict[str, Any]
MOST_REQUESTS = 1000
"""Longest batch."""
NO_BATCH = "requests are taken one by one; send an object"

log = logging.getLogger("streamward.jobs")


class RpcError(Exception):
    """Why a request has no result; `data` has further details."""

    def __init__(self, code: int, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or MEANING[code])
        self.code, self.data = code, data


class RpcMethod(NamedTuple):
    """A method: a function of named parameters, and their order."""

    call: Callable[[dict[str, Any]], Awaitable[Any]]
    parameters: tuple[str, ...] | None = None
    """None: the call takes positional parameters as `*`, whatever their number."""


async def answer(
    raw: bytes, methods: Mapping[str, RpcMethod], *, batches: bool = True
) -> JsonObject | list[JsonObject] | None:
    """Return the outcome, or those of a batch, ready for JSON; None if nothing is answered."""
    try:
        # searched once, however many requests a batch has
        body, is_doubtful = await read_apart(lambda raw: (json_text.parse(raw), json_text.may_be_infinite(raw)), raw)
    except json_text.RepeatedKeyError as exc:
        return refusal(None, RpcError(PARSE_ERROR, data=str(exc)))
    except ValueError:
        return refusal(None, RpcError(PARSE_ERROR))
    if not isinstance(body, list):
        return await _outcome(body, methods, is_doubtful)
    if not batches:
        return refusal(None, RpcError(INVALID_REQUEST, data=NO_BATCH))
    if not body:
        return refusal(None, RpcError(INVALID_REQUEST))
    if len(body) > MOST_REQUESTS:
        return refusal(None, RpcError(INVALID_REQUEST, data=f"a batch has at most {MOST_REQUESTS} requests"))
    outcomes = [await _outcome(request, methods, is_doubtful) for request in body]
    return [outcome for outcome in outcomes if outcome is not None] or None


async def _outcome(request: Any, methods: Mapping[str, RpcMethod], is_doubtful: bool) -> JsonObject | None:
    """Return the outcome of one request; None if it is a notification."""
    if (problem := _problem(request)) is not None:
        return refusal(None, RpcError(INVALID_REQUEST, data=problem))  # no id: an invalid request has none
    request_id = request.get("id")
    try:
        outcome = {"jsonrpc": "2.0", "result": await _call(request, methods, is_doubtful), "id": request_id}
    except RpcError as exc:
        outcome = refusal(request_id, exc)
    except Exception:  # a client is told only that the server failed
        log.exception("%s failed", request["method"])
        outcome = refusal(request_id, RpcError(INTERNAL_ERROR))
    return outcome if "id" in request else None


async def _call(request: Mapping[str, Any], methods: Mapping[str, RpcMethod], is_doubtful: bool) -> Any:
    method = methods.get(request["method"])
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, data={"message": nearest(request["method"], methods)})
    parameters = request.get("params", {})
    try:
        if is_doubtful:
            json_text.check_finite(parameters)
    except ValueError as exc:
        raise RpcError(INVALID_PARAMS, data=f"params: {exc}") from exc
    if isinstance(parameters, dict):
        return await method.call(parameters)
    if method.parameters is None:
        return await method.call({"*": parameters})
    if len(parameters) > len(method.parameters):
        problem = f"expected at most {len(method.parameters)} parameters, got {len(parameters)}"
        raise RpcError(INVALID_PARAMS, data=problem)
    return await method.call(dict(zip(method.parameters, parameters, strict=False)))


def _problem(request: Any) -> str | None:
    """Return why this is not a valid request; None if it is."""
    if not isinstance(request, dict):
        return "a request is an object"
    if request.get("jsonrpc") != "2.0":
        return 'jsonrpc has to be "2.0"'
    if not isinstance(request.get("method"), str):
        return "method has to be a text"
    if "params" in request and not isinstance(request["params"], dict | list):
        return "params has to be an object or an array"
    if "id" in request and not _is_id(request["id"]):
        return "id has to be a text, a finite number or null"
    return None


def _is_id(value: Any) -> bool:
    if isinstance(value, float):  # JSON has no other numbers
        return math.isfinite(value)
    return value is None or (isinstance(value, str | int) and not isinstance(value, bool))


def refusal(request_id: Any, error: RpcError) -> JsonObject:
    """Return the outcome of a request that has no result."""
    data = {} if error.data is None else {"data": error.data}
    return {"jsonrpc": "2.0", "error": {"code": error.code, "message": str(error), **data}, "id": request_id}
