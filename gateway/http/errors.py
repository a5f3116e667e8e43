"""Errors as clients read them: the status, and a body in the dialect of the route.

CallError of a route            ──┐
401, 403, 429, 503, 504 before it ┴──► Dialect: OPENAI, REST, MESSAGES or RPC ──► a model ──► JSON
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from starlette.responses import Response

from gateway.http.body import Answer
from streams.access.credentials import mask
from streams.errors import (
    CallError,
    CallErrorKind,
    JobRequestError,
    LogError,
    LoginRefused,
    NotFoundError,
    ProviderError,
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
    "unsupported_media_type": 415,
    "context_length_exceeded": 400,
    "conflict": 409,
    "permission_denied": 403,
    "request_timeout": 408,
    "gone": 410,
    "content_filter": 400,
    "busy": 503,
    "internal": 500,
}
RETRY_AFTER_S = 1.0
"""Default time after which a client may retry a refused request."""
ACTIONS: dict[CallErrorKind, str] = {
    "invalid": "correct what the message names, and send it again",
    "unknown_parameter": "leave it out, or correct its name",
    "unsupported": "leave it out, or do what the message says",
    "not_found": "check what the message names",
    "permission_denied": "leave it out, or use a key of a role that may; GET /auth/permissions lists what yours does",
    "unsupported_media_type": "send the body as it is, or compressed as the message says",
    "too_large": "send less; if the message names a setting, that can be raised",
    "conflict": "look at it as it is now, and decide anew; an Idempotency-Key of another request cannot be used again",
    "context_length_exceeded": "shorten the conversation",
    "request_timeout": "send it faster, or less of it; or raise serve.body_s",
    "gone": "begin anew: what was named has ended for good",
    "content_filter": "change what the message names, or ask the operator of this server",
    "busy": "try again; `streamward doctor` says what is wrong if it stays so",
    "internal": "report it with the server's output",
}
MESSAGES_TYPES: Mapping[CallErrorKind, str] = {
    "not_found": "not_found_error",
    "permission_denied": "permission_error",
    "too_large": "request_too_large",
    "request_timeout": "timeout_error",
    "busy": "overloaded_error",
    "internal": "api_error",
}
"""Anthropic's type of an error; of the other kinds it is invalid_request_error."""
REFUSALS: Mapping[int, tuple[str, str]] = {
    401: ("invalid_api_key", "authentication_error"),
    403: ("permission_denied", "permission_error"),
    421: ("misdirected_request", "invalid_request_error"),
    429: ("rate_limit_exceeded", "rate_limit_error"),
    503: ("busy", "overloaded_error"),
    504: ("timeout", "timeout_error"),
}
"""Code and type of an error before any route, by its status; OpenAI and Anthropic call the types alike."""
UNAUTHORIZED = {"WWW-Authenticate": 'Bearer realm="streamward"'}
RPC_INVALID_REQUEST = -32600
RPC_REFUSED = -32000
"""From this the status of a refusal is subtracted."""


# --- what errors look like --------------------------------------------------------------------------------------------


class ErrorDetails(Answer):
    """What is wrong, in a message for people and a code for programs."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Answer):
    """Why a request has no other answer, as OpenAI has it."""

    error: ErrorDetails


class SuggestedAction(Answer):
    """What to do about an error; with a conflict, what is there instead."""

    parameter: str | None
    suggested_action: str
    responses: list[dict[str, Any]] | None = None
    serving: dict[str, Any] | None = None


class RestErrorDetails(ErrorDetails):
    """What is wrong, and when that was."""

    timestamp: str
    details: SuggestedAction | None = None


class RestErrorAnswer(Answer):
    """Why a request has no other answer, with what to do about it."""

    error: RestErrorDetails


class MessagesErrorDetails(Answer):
    """What is wrong."""

    type: str
    message: str


class MessagesErrorAnswer(Answer):
    """Why a request has no other answer, as Anthropic has it."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str | None


class RpcFailure(Answer):
    """Why a request in JSON-RPC has no result."""

    code: int
    message: str
    data: Any = None


class RpcErrorAnswer(Answer):
    """Why none of the requests was looked at."""

    jsonrpc: Literal["2.0"]
    error: RpcFailure
    id: None


# --- dialects ---------------------------------------------------------------------------------------------------------


class Dialect(ABC):
    """How the errors of a route are written."""

    model: type[Answer]
    refuses_bodies: tuple[int, ...] = (400, 408, 413, 415)
    """Statuses of a route that takes a body."""
    invalid_status = 400
    """Status of a request that says something wrong."""

    def status(self, kind: CallErrorKind) -> int:
        """Return the status of an error."""
        return self.invalid_status if STATUS[kind] == 400 else STATUS[kind]

    @abstractmethod
    def problem(self, error: CallError) -> Answer:
        """Return the body for a request that has no other answer."""

    @abstractmethod
    def refusal(self, status: int, message: str) -> Answer:
        """Return the body for a request that reached no route."""


class OpenAiDialect(Dialect):
    """Errors as OpenAI has them."""

    model = ErrorAnswer

    def problem(self, error: CallError) -> ErrorAnswer:
        kind = "server_error" if STATUS[error.kind] >= 500 else "invalid_request_error"
        if error.kind == "permission_denied":
            kind = "permission_error"
        return ErrorAnswer(error=ErrorDetails(message=error.message, type=kind, param=error.parameter, code=error.kind))

    def refusal(self, status: int, message: str) -> ErrorAnswer:
        code, kind = REFUSALS[status]
        return ErrorAnswer(error=ErrorDetails(message=message, type=kind, param=None, code=code))


class RestDialect(Dialect):
    """OpenAI's errors with a time, and what to do about them."""

    model = RestErrorAnswer

    def problem(self, error: CallError) -> RestErrorAnswer:
        way_out = error.way_out or ACTIONS[error.kind]
        details = SuggestedAction(parameter=error.parameter, suggested_action=way_out, **(error.found or {}))
        return self._timed(OPENAI.problem(error), details=details)

    def refusal(self, status: int, message: str) -> RestErrorAnswer:
        return self._timed(OPENAI.refusal(status, message))

    @staticmethod
    def _timed(answer: ErrorAnswer, **details: SuggestedAction) -> RestErrorAnswer:
        now = moment(times.now_ms())
        return RestErrorAnswer(error=RestErrorDetails(**answer.error.model_dump(), timestamp=now, **details))


class MessagesDialect(Dialect):
    """Errors as Anthropic has them."""

    model = MessagesErrorAnswer

    def problem(self, error: CallError) -> MessagesErrorAnswer:
        return self._answer(MESSAGES_TYPES.get(error.kind, "invalid_request_error"), error.message)

    def refusal(self, status: int, message: str) -> MessagesErrorAnswer:
        return self._answer(REFUSALS[status][1], message)

    @staticmethod
    def _answer(kind: str, message: str) -> MessagesErrorAnswer:
        return MessagesErrorAnswer(
            type="error", error=MessagesErrorDetails(type=kind, message=message), request_id=None
        )


class RpcDialect(Dialect):
    """Errors of JSON-RPC, before any request in the body is looked at; those that are wrong are answered with 200."""

    model = RpcErrorAnswer
    refuses_bodies = (400, 408, 413, 415)

    def problem(self, error: CallError) -> RpcErrorAnswer:
        return self._answer(RPC_INVALID_REQUEST, "Invalid Request", error.message)

    def refusal(self, status: int, message: str) -> RpcErrorAnswer:
        return self._answer(RPC_REFUSED - status, REFUSALS[status][0], message)

    @staticmethod
    def _answer(code: int, message: str, data: str) -> RpcErrorAnswer:
        return RpcErrorAnswer(jsonrpc="2.0", error=RpcFailure(code=code, message=message, data=data), id=None)


OPENAI, REST, MESSAGES, RPC = OpenAiDialect(), RestDialect(), MessagesDialect(), RpcDialect()


# --- responses --------------------------------------------------------------------------------------------------------


def json_response(answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer as JSON, without the fields that were not set."""
    return Response(answer.model_dump_json(exclude_unset=True), status, headers, media_type="application/json")


def without_secrets(error: CallError) -> CallError:
    """Return an error in which a key or token that it repeats is cut short."""
    parameter = None if error.parameter is None else mask(error.parameter)
    return CallError(error.kind, mask(error.message), parameter, found=error.found, way_out=error.way_out)


def response(error: CallError, dialect: Dialect) -> Response:
    """Return the response to a request that failed, `without_secrets`."""
    error = without_secrets(error)
    headers = {}
    if error.kind == "busy":
        headers["Retry-After"] = _seconds(RETRY_AFTER_S)
    if error.kind == "conflict":
        headers["x-should-retry"] = "false"  # OpenAI's clients would retry it, and get the same answer
    if error.kind == "request_timeout":
        headers["Connection"] = "close"  # the rest of the body may still come
    return json_response(dialect.problem(error), dialect.status(error.kind), headers)


def refusal(status: int, message: str, dialect: Dialect, *, retry_after_s: float | None = None) -> Response:
    """Return the response to a request that reached no route; `retry_after_s`: when it is worth trying again."""
    headers = dict(UNAUTHORIZED) if status == 401 else {}
    if status == 503 and retry_after_s is None:
        retry_after_s = RETRY_AFTER_S
    if retry_after_s is not None:
        headers["Retry-After"] = _seconds(retry_after_s)
    return json_response(dialect.refusal(status, message), status, headers)


def _seconds(wait_s: float) -> str:
    return str(max(1, math.ceil(wait_s)))


async def apart(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Return what `call` returns, in a thread: it waits for a broker or a store.

    Raises CallError for its errors, and LoginRefused.
    """
    try:
        return await asyncio.to_thread(call, *arguments, **options)
    except JobRequestError as exc:
        raise CallError("invalid", str(exc), exc.parameter) from exc
    except NotFoundError as exc:
        raise CallError("not_found", str(exc)) from exc
    except LoginRefused:  # it has a response of its own, where people log in
        raise
    except RefusedError as exc:
        raise CallError("conflict", str(exc)) from exc
    except (LogError, ProviderError, SettingsError) as exc:  # the broker, a provider, or the store
        raise CallError("busy", str(exc)) from exc
