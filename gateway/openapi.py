"""The description of the interface at /openapi.json, made of the bodies that requests are read into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from gateway.body import Body, PathQuery

REFERENCE = "#/components/schemas/{model}"
JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A parameter is wrong, unknown or not supported; the error names it", "content": JSON},
    401: {"description": "No key that is valid, with serve.auth=keys", "content": JSON},
    403: {"description": "The key may not; the error says who may", "content": JSON},
    404: {"description": "No such model, version, trajectory, response, job or file", "content": JSON},
    409: {"description": "It contradicts what is recorded, or path and header disagree", "content": JSON},
    408: {"description": "The body did not arrive within serve.body_s", "content": JSON},
    413: {"description": "The body, or the conversation, is too long", "content": JSON},
    429: {"description": "The key asks too often, or too much at once; see Retry-After", "content": JSON},
    503: {"description": "The log or the engine cannot take it now", "content": JSON},
    504: {"description": "There is no answer after serve.answer_s", "content": JSON},
}


def requested(body: type[Body]) -> dict[str, Any]:
    """Return what a route says of itself: the body it takes, and its answers."""
    schema = {"$ref": REFERENCE.format(model=body.__name__)}
    return described({"application/json": {"schema": schema}})


def described(content: dict[str, Any] | None = None, query: type[PathQuery] | None = None) -> dict[str, Any]:
    """Return what a route says of itself: the body that it takes, by its type, its parameters, and its answers."""
    extra: dict[str, Any] = {} if content is None else {"requestBody": {"required": True, "content": content}}
    if query is not None:
        fields = query.model_json_schema()["properties"]
        extra["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]
    return {"openapi_extra": extra, "responses": ANSWERS}


def describe(app: FastAPI, bodies: Sequence[type[Body]]) -> None:
    """Let the description of `app` define the bodies that its routes name."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REFERENCE)
            found.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]
