"""The description of the interface: what each route says of itself, and the document that all of them make.

    requested, described: name, body, answer, statuses ──► FastAPI ──► describe: errors, keys, examples ──► the document

Bodies are described by what requests are read into, answers by the models beside the code that makes them; that these
are true is tested on what a server really answers. The document of the whole gateway is committed (document.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from gateway.http import errors
from gateway.http.body import Body, PathQuery
from gateway.http.examples import ANSWERED, ASKED

REFERENCE = "#/components/schemas/{model}"
JSON, EVENTS = "application/json", "text/event-stream"
PAGE: dict[str, Any] = {"text/html": {"schema": {"type": "string"}}}
AS_PAGE = "x-page"
"""Marks an operation until its failures are described."""
ANYTHING: dict[str, Any] = {JSON: {"schema": {"type": "object"}}}
STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("Invalid", "A parameter is wrong, unknown or not supported; the error names it"),
    401: ("Unauthorized", "No key and no access token that is valid; or, to log in, a wrong name or password"),
    403: ("Forbidden", "Whoever asks may not; the error says who may"),
    404: ("NotFound", "There is none; the error says of what"),
    408: ("TooSlow", "The body did not arrive within serve.body_s"),
    409: ("Conflict", "It contradicts what is recorded, or path and header disagree"),
    413: ("TooLarge", "The body, or the conversation, is too long"),
    429: ("TooMany", "Too often, or too much at once; see Retry-After"),
    500: ("Failed", "The engine failed"),
    503: ("Busy", "The log, the engine or the store cannot take it now; see Retry-After"),
    504: ("TimedOut", "There is no answer after serve.answer_s"),
}
OF_A_BODY, OF_A_QUERY = (400, 408, 413), (400,)
AT_THE_DOOR = (401, 403, 429)
ANYWHERE = (503, 504)
WAIT = {"Retry-After": {"description": "seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
OF_CALLS: Mapping[str, Any] = {
    name: {"description": what, "schema": {"type": "string"}}
    for name, what in (
        ("x-request-id", "the turn that the log has of it"),
        ("x-streamward-trajectory", "the trajectory that the turn belongs to"),
        ("x-streamward-model", "the version that answered"),
        ("x-streamward-ignored", "parameters that were sent and change no answer"),
    )
}
"""Headers of an answer to a call of an agent."""
EVENT = {
    "type": "object",
    "description": "with `stream`: one of the events that the protocol has",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or `[DONE]`"}},
    "required": ["data"],
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a request that is sent again with it has its effect once",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}
CALL_KEY = {**IDEMPOTENCY_KEY, "schema": {"type": "string"}}
AGENT_ID = {
    "name": "X-Agent-ID",
    "in": "header",
    "description": "who calls, as `/agents/AGENT_ID` before the path says it, too; default: the agent `default`",
    "schema": {"type": "string", "pattern": r"^([A-Za-z0-9][A-Za-z0-9._:-]{0,127})?$"},
}
KEYS = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "a key of `streamward access keys create`, or an access token of `POST /auth/login`",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "the same, as Anthropic sends it"},
}


class Answer(BaseModel):
    """An object in an answer, which has these fields and no others."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


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


FAILURES = ErrorAnswer, RestErrorAnswer, MessagesErrorAnswer, RpcErrorAnswer


def requested(body: type[Body], **said: Any) -> dict[str, Any]:
    """Return what a route says of itself that takes a body of JSON; `said` as of `described`."""
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return described({JSON: {"schema": schema}}, **said)


def described(
    content: dict[str, Any] | None = None,
    query: type[PathQuery] | None = None,
    *,
    name: str | None = None,
    answer: Any = ANYTHING,
    status: int | None = None,
    refuses: Sequence[int] = (404, 409),
    parameters: Sequence[Mapping[str, Any]] = (),
    call: bool = False,
    page: bool = False,
) -> dict[str, Any]:
    """Return what a route says of itself: what it takes, and what it answers.

    `content`: the body, by its type. `name`: of the operation, which clients call a method by. `answer`: a model;
    content by its type; None: no body. `refuses`: statuses beside those that all such routes have. `parameters`: those
    of header and query that are read one by one. `call`: it is one of an agent, which can be streamed. `page`: a
    browser is told the same by a page.
    """
    extra: dict[str, Any] = {} if content is None else {"requestBody": {"required": True, "content": content}}
    fields = {} if query is None else query.model_json_schema()["properties"]
    of_query = [{"name": field, "in": "query", "schema": schema} for field, schema in fields.items()]
    if of_query or parameters:
        extra["parameters"] = [*of_query, *parameters]
    refused = {*refuses, *(OF_A_BODY if content else ()), *(OF_A_QUERY if query else ())}
    said: dict[str, Any] = {"description": "Done"}
    if isinstance(answer, dict):
        said["content"] = answer
    elif answer is not None:
        said["model"] = answer
    if page:
        said["content"], extra[AS_PAGE] = dict(PAGE), True
    if call:
        said |= {"content": {EVENTS: {"itemSchema": EVENT}}, "headers": dict(OF_CALLS)}
    told: dict[str, Any] = {
        "openapi_extra": extra,
        "responses": {status or 200: said, **{code: {} for code in sorted(refused)}},
    }
    if name is not None:
        told |= {"operation_id": name, "summary": name.replace("_", " ").capitalize()}
    return told if status is None else told | {"status_code": status}


def describe(app: FastAPI, bodies: Sequence[type[Body]], *, opened: Sequence[str] = (), keys: bool = False) -> None:
    """Let the description of `app` define the bodies that its routes name, and their errors.

    `opened`: the paths that need no key, where others need one (`keys`).
    """

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
            schemas = found.setdefault("components", {}).setdefault("schemas", {})
            for models in ([(one, "validation") for one in bodies], [(one, "serialization") for one in FAILURES]):
                schemas.update(models_json_schema(models, ref_template=REFERENCE)[1]["$defs"])
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            _complete(found, opened, keys=keys)
            app.openapi_schema = _tidied(found)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


ABOUT = """Agents, jobs, files, people and the log of a server that `streamward serve` runs.

The paths of calls (`/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`, `/v1/feedback`,
`/v1/models`) are also below `/agents/AGENT_ID` and `/agents/AGENT_ID/trajectories/TRAJECTORY_ID`, those of Streamward's
own REST (`/finetune`, `/rl`, `/tasks`, `/rewards`, `/score`, `/groups`, `/query`, `/adapters`) below `/api/v1`.
"""


def _complete(found: dict[str, Any], opened: Sequence[str], *, keys: bool) -> None:
    """Add what follows from the paths: errors, keys, examples."""
    shared = found["components"].setdefault("responses", {})
    if keys:
        found["components"]["securitySchemes"] = KEYS
        found["security"] = [{name: []} for name in KEYS]
    for path, operations in found["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            answers.pop("422", None)  # FastAPI's own checks, which no route here uses
            codes = {int(code) for code in answers if int(code) >= 400}
            if path not in opened:
                codes |= {*(AT_THE_DOOR if keys else ()), *ANYWHERE}
            elif keys:
                operation["security"] = []
            as_page = operation.pop(AS_PAGE, False)
            for code in sorted(codes):
                if as_page and code in (401, 429):
                    failed = _failed(code, path)
                    answers[str(code)] = failed | {"content": failed["content"] | PAGE}
                    continue
                name, answers[str(code)] = _failure(code, path)
                shared[name] = _failed(code, path)
            operation["responses"] = dict(sorted(answers.items()))
            _exemplify(operation)
    found["components"]["responses"] = dict(sorted(shared.items()))


def _failure(code: int, path: str) -> tuple[str, dict[str, Any]]:
    name = STATUSES[code][0] + _format(path).__name__.removesuffix("Answer")
    return name, {"$ref": f"#/components/responses/{name}"}


def _failed(code: int, path: str) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=_format(path).__name__)}
    failed = {"description": STATUSES[code][1], "content": {JSON: {"schema": schema}}}
    return failed | ({"headers": WAIT} if code in (429, 503) else {})


def _format(path: str) -> type[Answer]:
    """Return how errors of a path are written."""
    if path in errors.RPC_PATHS:
        return RpcErrorAnswer
    if errors.is_rest(path):
        return RestErrorAnswer
    return MessagesErrorAnswer if errors.speaks_anthropic(path) else ErrorAnswer


def _exemplify(operation: dict[str, Any]) -> None:
    """Add an example of the body, and one of the answer."""
    name = operation["operationId"]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if name in ASKED:
            content["example"] = ASKED[name]
    for code, answer in operation["responses"].items():
        if int(code) < 300 and name in ANSWERED and JSON in answer.get("content", {}):
            answer["content"][JSON]["example"] = ANSWERED[name]


BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Of numbers, as pydantic leaves them where a validator comes before, by what JSON Schema calls them."""


def _tidied(value: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names, and with bounds as JSON Schema has them."""
    if isinstance(value, list):
        return [_tidied(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    bounds = BOUNDS if "type" in value else {}
    return {
        bounds.get(name, name): inner if name == "example" else _tidied(inner)
        for name, inner in value.items()
        if not (name == "title" and isinstance(inner, str) and "version" not in value)
    }
