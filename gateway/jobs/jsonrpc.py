"""JSON-RPC 2.0: one request or a batch of them, as bytes, and what is answered.

    bytes ──► Parse error, or each request ──► Invalid Request, Method not found, Invalid params, or its result
                                          └──► a notification: done, and not answered

Methods are functions of named parameters; positional ones are named in the order that a method gives them. The
specification is https://www.jsonrpc.org/specification. Requests of a batch are done one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from schemas import json_text

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
MEANING = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid Request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
    INTERNAL_ERROR: "Internal error",
}
MOST_REQUESTS = 1000
"""Longest batch."""

log = logging.getLogger("streamward.jobs")


class RpcError(Exception):
    """Why a request has no result; `data` is what else there is to say."""

    def __init__(self, code: int, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or MEANING[code])
        self.code, self.data = code, data


class RpcMethod(NamedTuple):
    """What can be called: a function of named parameters, and their order."""

    call: Callable[[dict[str, Any]], Awaitable[Any]]
    parameters: tuple[str, ...] | None = None
    """None: the call takes positional parameters as `*`, whatever their number."""


async def answer(raw: bytes, methods: Mapping[str, RpcMethod]) -> Any:
    """Return what is answered, ready for JSON; None if nothing is."""
    try:
        given = json_text.parse(raw)
    except (ValueError, RecursionError):
        return _failed(None, RpcError(PARSE_ERROR))
    if not isinstance(given, list):
        return await _one(given, methods)
    if not given:
        return _failed(None, RpcError(INVALID_REQUEST))
    if len(given) > MOST_REQUESTS:
        return _failed(None, RpcError(INVALID_REQUEST, data=f"a batch has at most {MOST_REQUESTS} requests"))
    answers = [await _one(request, methods) for request in given]
    return [one for one in answers if one is not None] or None


async def _one(request: Any, methods: Mapping[str, RpcMethod]) -> dict[str, Any] | None:
    """Return the answer to one request; None if it is a notification."""
    if (why := _invalid(request)) is not None:
        return _failed(None, RpcError(INVALID_REQUEST, data=why))  # no id: what is no request has none
    try:
        result = await _called(request, methods)
    except RpcError as exc:
        failed = _failed(request.get("id"), exc)
    except Exception:  # a client gets no more than that it is our fault, whatever it was
        log.exception("%s failed", request["method"])
        failed = _failed(request.get("id"), RpcError(INTERNAL_ERROR))
    else:
        failed = {"jsonrpc": "2.0", "result": result, "id": request.get("id")}
    return failed if "id" in request else None


async def _called(request: Mapping[str, Any], methods: Mapping[str, RpcMethod]) -> Any:
    method = methods.get(request["method"])
    if method is None:
        raise RpcError(METHOD_NOT_FOUND)
    given = request.get("params", {})
    if isinstance(given, dict):
        return await method.call(given)
    if method.parameters is None:
        return await method.call({"*": given})
    if len(given) > len(method.parameters):
        raise RpcError(INVALID_PARAMS, data=f"expected at most {len(method.parameters)} parameters, got {len(given)}")
    return await method.call(dict(zip(method.parameters, given, strict=False)))


def _invalid(request: Any) -> str | None:
    """Return why this is no request; None if it is one."""
    if not isinstance(request, dict):
        return "a request is an object"
    if request.get("jsonrpc") != "2.0":
        return 'jsonrpc has to be "2.0"'
    if not isinstance(request.get("method"), str):
        return "method has to be a text"
    if "params" in request and not isinstance(request["params"], dict | list):
        return "params has to be an object or an array"
    if "id" in request and not _is_id(request["id"]):
        return "id has to be a text, a number or null"
    return None


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _failed(request_id: Any, why: RpcError) -> dict[str, Any]:
    error: dict[str, Any] = {"code": why.code, "message": str(why)}
    return {"jsonrpc": "2.0", "error": error if why.data is None else error | {"data": why.data}, "id": request_id}
