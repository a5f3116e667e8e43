"""What a client gets for a call without an answer: the status, and the body in the words of its protocol."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from gateway import anthropic
from streams.stages.agents.calls import CallError, CallErrorKind

STATUS: dict[CallErrorKind, int] = {
    "invalid": 400,
    "unknown_parameter": 400,
    "unsupported": 400,
    "not_found": 404,
    "too_large": 413,
    "conflict": 409,
    "busy": 503,
    "internal": 500,
}
RETRY_AFTER_S = 1
"""When a client may try again what could not be taken."""


def openai(problem: CallError) -> dict[str, Any]:
    """Return the body of OpenAI's error, which is also the last event of a stream that breaks off."""
    kind = "server_error" if STATUS[problem.kind] >= 500 else "invalid_request_error"
    return {
        "error": {"message": problem.message, "type": kind, "param": problem.parameter, "code": problem.kind},
    }


def response(problem: CallError, path: str) -> JSONResponse:
    """Return the answer to a request of `path`."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if problem.kind == "busy" else None
    body = anthropic.error(problem) if speaks_anthropic(path) else openai(problem)
    return JSONResponse(body, STATUS[problem.kind], headers)


def speaks_anthropic(path: str) -> bool:
    """Return whether a path is one of Anthropic's own."""
    return path.rstrip("/").endswith(("/messages", "/messages/count_tokens"))
