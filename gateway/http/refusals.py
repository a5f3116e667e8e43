"""What a client gets before any route is asked: 401, 403, 429, 503, 504, in the words of the path's protocol."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from gateway.http import errors
from streams.kafka import times
from streams.output import moment

WORDS: dict[int, tuple[str, str]] = {
    401: ("invalid_api_key", "authentication_error"),
    403: ("permission_denied", "permission_error"),
    429: ("rate_limit_exceeded", "rate_limit_error"),
    503: ("busy", "overloaded_error"),
    504: ("timeout", "timeout_error"),
}
"""Code and type of an error, by its status; OpenAI and Anthropic call the types alike."""
BUSY_RETRY_S = 1.0
"""When what cannot be answered now is worth trying again, unless more is known."""


def refusal(status: int, why: str, path: str, *, retry_after_s: float | None = None) -> JSONResponse:
    """Return the answer; `retry_after_s`: when it is worth trying again."""
    code, kind = WORDS[status]
    headers = {"WWW-Authenticate": 'Bearer realm="streamward"'} if status == 401 else {}
    if status == 503 and retry_after_s is None:
        retry_after_s = BUSY_RETRY_S
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    error: dict[str, Any] = {"message": why, "type": kind, "param": None, "code": code}
    body: dict[str, Any]
    if path in errors.RPC_PATHS:
        body = {"jsonrpc": "2.0", "error": {"code": -32000 - status, "message": code, "data": why}, "id": None}
    elif errors.speaks_anthropic(path):
        body = {"type": "error", "error": {"type": kind, "message": why}, "request_id": None}
    elif errors.is_rest(path):
        body = {"error": error | {"timestamp": moment(times.now_ms())}}
    else:
        body = {"error": error}
    return JSONResponse(body, status, headers)
