"""What a client gets for a request without an answer: the status, and the body in the words of its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.responses import JSONResponse

from gateway.agents import anthropic
from streams.access.keys import masked
from streams.errors import (
    CallError,
    CallErrorKind,
    JobRequestError,
    LogError,
    LoginRefused,
    NotFoundError,
    RefusedError,
    SettingsError,
)
from streams.kafka import times
from streams.output import moment

T = TypeVar("T")

STATUS: dict[CallErrorKind, int] = {
    "invalid": 400,
    "unknown_parameter": 400,
    "unsupported": 400,
    "not_found": 404,
    "too_large": 413,
    "conflict": 409,
    "permission_denied": 403,
    "request_timeout": 408,
    "busy": 503,
    "internal": 500,
}
RETRY_AFTER_S = 1
"""When a client may try again what could not be taken."""
REST = ("/finetune/", "/rl/", "/tasks", "/rewards", "/score", "/groups/", "/query", "/adapters")
"""How the paths of Streamward's own REST begin, behind their prefix."""
REST_PREFIXES = ("", "/api/v1")
RPC_PATHS = ("/api/v1/jsonrpc", "/jsonrpc")
"""Where JSON-RPC is spoken."""
ACTIONS: dict[CallErrorKind, str] = {
    "invalid": "correct what the message names, and send it again",
    "unknown_parameter": "leave it out, or correct its name",
    "unsupported": "leave it out, or do what the message says",
    "not_found": "check the id: GET /v1/fine_tuning/jobs lists jobs, GET /v1/models what can be trained",
    "permission_denied": "leave it out, or ask who has a key of a role that may: `streamward access check` says which",
    "too_large": "send less, or raise serve.max_body_mb",
    "conflict": "look at it as it is now, and decide anew; an Idempotency-Key of another request cannot be used again",
    "request_timeout": "send it faster, or less of it; or raise serve.body_s",
    "busy": "try again; `streamward doctor` says what is wrong if it stays so",
    "internal": "report it with the server's output",
}


def openai(problem: CallError) -> dict[str, Any]:
    """Return the body of OpenAI's error, which is also the last event of a stream that breaks off."""
    kind = "server_error" if STATUS[problem.kind] >= 500 else "invalid_request_error"
    if problem.kind == "permission_denied":
        kind = "permission_error"
    return {
        "error": {"message": problem.message, "type": kind, "param": problem.parameter, "code": problem.kind},
    }


def rest(problem: CallError) -> dict[str, Any]:
    """Return OpenAI's error with what to do about it, and when it was."""
    error = openai(problem)["error"]
    details = {"parameter": problem.parameter, "suggested_action": ACTIONS[problem.kind], **(problem.found or {})}
    return {"error": error | {"details": details, "timestamp": moment(times.now_ms())}}


def response(problem: CallError, path: str) -> JSONResponse:
    """Return the answer to a request of `path`. A key or token that it repeats of the request is cut short in it."""
    parameter = None if problem.parameter is None else masked(problem.parameter)
    problem = CallError(problem.kind, masked(problem.message), parameter, found=problem.found)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if problem.kind == "busy" else None
    if problem.kind == "conflict":
        headers = {"x-should-retry": "false"}  # OpenAI's clients would send it again, and be told the same
    speaks = rest if is_rest(path) else anthropic.error if speaks_anthropic(path) else openai
    if problem.kind == "request_timeout":
        headers = {"Connection": "close"}  # the rest of the body may still come
    body = speaks(problem)
    return JSONResponse(body, STATUS[problem.kind], headers)


async def apart(call: Callable[..., T], *given: Any) -> T:
    """Return what `call` returns, in a thread: it waits for a broker or a store. Raises CallError for its errors,
    and LoginRefused."""
    try:
        return await asyncio.to_thread(call, *given)
    except JobRequestError as exc:
        raise CallError("invalid", str(exc), exc.parameter) from exc
    except NotFoundError as exc:
        raise CallError("not_found", str(exc)) from exc
    except LoginRefused:  # an answer of its own: auth.py
        raise
    except RefusedError as exc:
        raise CallError("conflict", str(exc)) from exc
    except (LogError, SettingsError) as exc:  # the broker, or the store
        raise CallError("busy", str(exc)) from exc


def is_rest(path: str) -> bool:
    """Return whether a path is of Streamward's own REST."""
    return path.startswith(tuple(prefix + begin for prefix in REST_PREFIXES for begin in REST))


def speaks_anthropic(path: str) -> bool:
    """Return whether a path is one of Anthropic's own."""
    return path.rstrip("/").endswith(("/messages", "/messages/count_tokens"))
