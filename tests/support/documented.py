"""Whether a server answers what the committed description of the interface says: status, type, and every field.

httpx.Response ──► its operation in gateway/openapi.json ──► what differs
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from gateway.document import FILE

PREFIXED = re.compile(r"/agents/[^/]+(?:/trajectories/[^/]+)?(?=/v1/)|/api/v1(?!/jsonrpc)")
OTHER_NAME = {"/jsonrpc": "/api/v1/jsonrpc"}


@cache
def document() -> dict[str, Any]:
    """Return the description."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def operation(method: str, path: str) -> dict[str, Any] | None:
    """Return what is said of a request; None if there is no such operation."""
    path = OTHER_NAME.get(path, PREFIXED.sub("", path))
    for template, operations in document()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template.replace(".", r"\.")), path):
            found: dict[str, Any] | None = operations.get(method.lower())
            return found
    return None


def valid(schema: dict[str, Any], value: Any) -> list[str]:
    """Return how a value differs from a schema of the description."""
    validator = Draft202012Validator({**schema, "components": document()["components"]})
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]


def differences(answer: httpx.Response) -> Iterator[str]:
    """Yield how an answer differs from what is said of it; nothing for what is no operation, such as another path."""
    said = operation(answer.request.method, answer.request.url.path)
    if said is None or answer.status_code == 405:
        return
    told = said["responses"].get(str(answer.status_code))
    if told is None:
        yield f"status {answer.status_code} is not one of {', '.join(said['responses'])}"
        return
    if "$ref" in told:
        told = document()["components"]["responses"][told["$ref"].rpartition("/")[2]]
    kind = answer.headers.get("content-type", "").partition(";")[0]
    content = told.get("content")
    if content is None or kind not in content:
        if content is not None or answer.read():
            yield f"type {kind or 'none'} is not one of {', '.join(content or ['none'])}"
    elif kind == "application/json":
        answer.read()
        yield from valid(content[kind]["schema"], answer.json())


def as_documented(answer: httpx.Response) -> None:
    """Raise AssertionError if an answer is not what is said of it: a hook of httpx's clients."""
    found = list(differences(answer))
    assert not found, f"{answer.request.method} {answer.request.url.path} {answer.status_code}: {found}"


HOOKS: dict[str, list[Any]] = {"response": [as_documented]}
