"""The OpenAPI document, made from the declared routes.

    Route ──► operation: types, statuses, parameters, examples ──► document ──► /openapi.json, gateway/openapi.json

Bodies and answers are described by the models that read and make them. Tests compare this with a running server's
answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.routing import compile_path

from gateway.http.route import ANYWHERE, Route

REFERENCE = "#/components/schemas/{model}"
JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"
PAGE: dict[str, Any] = {HTML: {"schema": {"type": "string"}}}
STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("Invalid", "A parameter is wrong, unknown or not supported; the error names it"),
    401: ("Unauthorized", "No key and no access token that is valid; or, to log in, a wrong name or password"),
    403: ("Forbidden", "Whoever asks may not; the error says who may"),
    404: ("NotFound", "There is none; the error says of what"),
    408: ("TooSlow", "The body did not arrive within serve.body_s"),
    409: ("Conflict", "It contradicts what is recorded, or path and header disagree"),
    413: ("TooLarge", "The body, or the conversation, is too long"),
    415: ("NotRead", "The body is compressed in a way that is not read here; the error names those that are"),
    429: ("TooMany", "Too often, or too much at once; see Retry-After"),
    500: ("Failed", "The engine failed"),
    503: ("Busy", "The log, the engine or the store cannot take it now; see Retry-After"),
    504: ("TimedOut", "There is no answer after serve.answer_s"),
}
QUERY_STATUSES = (400,)
DOOR_STATUSES = (401, 403, 429)
WAIT = {"Retry-After": {"description": "seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
CALL_HEADERS: Mapping[str, Any] = {
    name: {"description": description, "schema": {"type": "string"}}
    for name, description in (
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
KEYS = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "a key, or the access token of a login",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "the same, as Anthropic sends it"},
}
ABOUT = """Agents, jobs, files, people and the log of a server that `streamward serve` runs.

The paths of calls (`/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`, `/v1/feedback`,
`/v1/models`) are also below `/agents/AGENT_ID` and `/agents/AGENT_ID/trajectories/TRAJECTORY_ID`, those of Streamward's
own REST (`/finetune`, `/rl`, `/tasks`, `/rewards`, `/score`, `/groups`, `/query`, `/adapters`) below `/api/v1`.

Described elsewhere, and not listed here: MCP below `/mcp` (docs/mcp.md; `tools/list` describes it)"""
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's names of number bounds, where a validator comes first, by their JSON Schema names."""


def document(routes: Sequence[Route], *, title: str, version: str, keys: bool) -> dict[str, Any]:
    """Return the description of a server with these routes; `keys`: whether it asks for keys."""
    description = _Description(keys)
    for route in routes:
        if not route.interface.described_in:
            description.add(route)
    result = {
        "openapi": "3.1.0",
        "info": {"title": title, "description": f"{ABOUT}{_elsewhere(routes)}.\n", "version": version},
        "paths": description.paths,
        "components": description.components(),
        **({"security": [{name: []} for name in KEYS]} if keys else {}),
    }
    return {name: _tidied(value) for name, value in result.items()}


def _elsewhere(routes: Iterable[Route]) -> str:
    """Return which pages describe the other routes."""
    prefixes: dict[str, dict[str, None]] = {}
    for route in (route for route in routes if route.interface.described_in and route.path != "/"):
        below = route.interface.prefixes[0] or f"/{route.path.split('/')[1]}"
        prefixes.setdefault(route.interface.described_in, {})[below] = None
    return "".join(
        f",\nother routes below {' and '.join(f'`{prefix}`' for prefix in below)} (docs/{page})"
        for page, below in prefixes.items()
    )


class _Description:
    """Operations by path, and the components that they refer to."""

    def __init__(self, keys: bool) -> None:
        self._keys = keys
        self.paths: dict[str, dict[str, Any]] = {}
        self._schemas: dict[str, Any] = {}
        self._responses: dict[str, Any] = {}

    def components(self) -> dict[str, Any]:
        """Return what the operations refer to, by name."""
        components = {"schemas": self._schemas, "responses": self._responses}
        components = {kind: dict(sorted(named.items())) for kind, named in components.items()}
        return components | ({"securitySchemes": KEYS} if self._keys else {})

    def add(self, route: Route) -> None:
        """Describe a route."""
        path = route.paths[0]
        operation: dict[str, Any] = {
            "summary": route.name.replace("_", " ").capitalize(),
            "description": route.description,
            "operationId": route.name,
        }
        if parameters := _parameters(route, path):
            operation["parameters"] = parameters
        operation["responses"] = self._answers(route)
        if route.takes is not None:
            content = self._content(route.takes, "validation")
            if route.sends is not None:
                content[JSON]["example"] = route.sends
            operation["requestBody"] = {"required": True, "content": content}
        if self._keys and route.is_open:
            operation["security"] = []
        self.paths.setdefault(path, {})[route.method.lower()] = operation

    def _answers(self, route: Route) -> dict[str, Any]:
        """Return the responses of a route, by status."""
        answer: dict[str, Any] = {"description": "Done"}
        if route.answers is not None:
            answer["content"] = content = self._content(route.answers, "serialization")
            if route.example is not None:
                content[JSON]["example"] = _as_sent(route.example)
            if route.page:
                content.update(PAGE)
            if route.streams:
                content[EVENTS] = {"itemSchema": EVENT}
                answer["headers"] = dict(CALL_HEADERS)
        answers = {route.status: answer} | {status: {"description": text} for status, text in route.also.items()}
        for status in self._refusals(route):
            answers[status] = self._refusal(route, status)
        return {str(status): answers[status] for status in sorted(answers)}

    def _refusals(self, route: Route) -> set[int]:
        """Return the statuses with which a route may refuse a request."""
        statuses = {*route.refusals}
        if route.takes is not None:
            statuses |= {*route.interface.dialect.refuses_bodies}
        if route.query is not None:
            statuses |= {*QUERY_STATUSES}
        if not route.is_open:
            statuses |= {*ANYWHERE, *(DOOR_STATUSES if self._keys else ())}
        return statuses

    def _refusal(self, route: Route, status: int) -> dict[str, Any]:
        title, description = STATUSES[status]
        model = route.interface.dialect.model
        content = self._content(model, "serialization")
        response: dict[str, Any] = {"description": description, "content": content}
        if status in (429, 503):
            response["headers"] = WAIT
        if route.page and status in (401, 429):
            content.update(PAGE)
            return response
        name = title + model.__name__.removesuffix("Answer")
        self._responses[name] = response
        return {"$ref": f"#/components/responses/{name}"}

    def _content(self, kind: Any, mode: JsonSchemaMode) -> dict[str, Any]:
        """Return a body by its media type; the models in it become components."""
        if isinstance(kind, Mapping):
            return dict(kind)
        schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=REFERENCE)
        if mode == "serialization":
            schema = _without_nulls(schema)
        self._schemas |= schema.pop("$defs", {})
        if isinstance(kind, type):
            self._schemas[kind.__name__] = schema
            schema = {"$ref": REFERENCE.format(model=kind.__name__)}
        return {JSON: {"schema": schema}}


def _parameters(route: Route, path: str) -> list[Mapping[str, Any]]:
    """Return the parameters of path, query and header."""
    of_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in compile_path(path)[2]
    ]
    fields = {} if route.query is None else _without_nulls(route.query.model_json_schema()["properties"])
    of_query = [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]
    return [*of_path, *of_query, *route.parameters]


def _as_sent(example: Any) -> Any:
    return example.model_dump(mode="json", exclude_unset=True) if isinstance(example, BaseModel) else example


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without defaults of null: an answer has no defaults, and a query has no null."""
    result = {}
    for name, value in schema.items():
        if name == "default" and value is None:
            continue
        result[name] = _without_nulls(value) if isinstance(value, dict) else value
    return result


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
