"""The worst bodies of a route, made from its own example or its model: each text, list and object of it in turn.

    route ──► an example ──► a text of braces and spaces here, 10,000 objects there, as many keys ──► bytes
          └─► its bounds ──► too many keys, levels, bytes; zstd that unpacks to much more

Within the bounds of the route the readers have to be quick; beyond them nothing may be read. A route whose own bounds
were too wide would be sent bodies that fill them, as far as the server takes bodies of that length at all.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import zstandard
from pydantic import TypeAdapter

from gateway.http.jsonrpc import MOST_REQUESTS
from gateway.http.route import Route
from gateway.rooms.routes import ROUTES
from tests.support.thoroughness import FULL

BRACES = "{{" * 15_000 + "{{" + " " * 30_000
"""60 KB, which every pattern for a place in a text reads to its end."""
MOST_PLACES = 12
"""Texts, lists and objects of one body that are tried."""
JSON_TYPE = {"content-type": "application/json"}
ZSTD = {"content-type": "application/json", "content-encoding": "zstd"}
BYTES = 12_000_000
MOST_BYTES = 15_000_000
"""Of a body that is to be read; serve.max_body_mb is a little more."""
KEY_BYTES = 22
"""Of a key and its value, at most."""
TAKING = [route for route in ROUTES if route.takes is not None]


class WorstBody(NamedTuple):
    """A body, what it is, and the headers that it comes with."""

    about: str
    raw: bytes
    headers: Mapping[str, str] = JSON_TYPE


Draft = tuple[str, Callable[[], tuple[bytes, Mapping[str, str]]]]
"""What a body is, and what writes it, with its headers."""


def bombs() -> list[WorstBody]:
    """Return what is too much for every route."""
    packed = zstandard.ZstdCompressor()
    keys = ",".join(f'"k{number}":1' for number in range(1_000_000))
    return [
        WorstBody("nested deeply", b'{"a":' * 180_000),
        WorstBody("a million keys", f"{{{keys}}}".encode()),
        WorstBody("a million objects", b'{"a":[' + b"{}," * 1_000_000 + b"{}]}"),
        WorstBody("a text of 12 MB", b'{"a":"' + b"x" * BYTES + b'"}'),
        WorstBody("a small bomb", packed.compress(b'{"a":[' + b"{}," * 500_000 + b"{}]}"), ZSTD),
        WorstBody("a large bomb", packed.compress(b" " * 240_000_000), ZSTD),
    ]


BOMBS = bombs()


def sent_to(route: Route) -> list[WorstBody]:
    """Return what a test sends to a route: every text of braces, every batch, of all else a third, of BOMBS a sixth.

    Which part differs from route to route, since most of them have one reader and share their models. The routes that
    read their bodies themselves are sent all of it, and in `make test-full` every route is.
    """
    drafts, number = list(worst_bodies(route)), TAKING.index(route)
    if FULL or not route.takes_json:
        return [WorstBody(about, *write()) for about, write in drafts] + BOMBS
    always = [draft for draft in drafts if draft[0].startswith(("braces", "a batch"))]
    others = [draft for draft in drafts if draft not in always]
    bodies = [WorstBody(about, *write()) for about, write in always + others[number % 3 :: 3]]
    return bodies + BOMBS[number % len(BOMBS) :: len(BOMBS)]


def worst_bodies(route: Route) -> Iterator[Draft]:
    """Yield bodies that a route has to read."""
    example = route.sends
    if example is None:
        schema = TypeAdapter(route.takes).json_schema() if route.takes_json else {}
        example = _example(schema, schema.get("$defs", {}))
    if route.takes_json and any(one.get("type") == "array" for one in _forms(route)):
        refused = {name: ["x"] * MOST_PLACES if isinstance(part, dict) else part for name, part in example.items()}
        for about, one in (("a batch", example), ("a batch that is refused", refused)):
            batch = [one] * (MOST_REQUESTS - 1) + ["x" * BYTES]
            yield f"{about}, with a long text behind it", partial(_json, batch)
    values, most_bytes = route.max_values * 9 // 10, min(route.max_bytes or MOST_BYTES, MOST_BYTES) * 9 // 10
    for path in islice(_places(example), MOST_PLACES):
        for about, make in _worst(_at(example, path), values, most_bytes):
            yield f"{about} at {list(path)}", partial(_changed_json, example, path, make)
        if isinstance(_at(example, path), list):
            yield f"packed objects at {list(path)}", partial(_packed, example, path)


def _json(value: Any) -> tuple[bytes, Mapping[str, str]]:
    return json.dumps(value).encode(), JSON_TYPE


def _changed_json(
    example: Any, path: tuple[str | int, ...], make: Callable[[], Any]
) -> tuple[bytes, Mapping[str, str]]:
    return _json(_changed(example, path, make()))


def _packed(example: Any, path: tuple[str | int, ...]) -> tuple[bytes, Mapping[str, str]]:
    raw = json.dumps(_changed(example, path, "@")).encode().replace(b'"@"', b"[" + b"{}," * 1_500_000 + b"{}]")
    return zstandard.ZstdCompressor().compress(raw), ZSTD


def _forms(route: Route) -> list[Any]:
    """Return the schemas of which a body has one."""
    schema = TypeAdapter(route.takes).json_schema()
    return [schema, *schema.get("anyOf", ())]


def _worst(value: Any, values: int, most_bytes: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what may stand in the place of a value."""
    match value:
        case str():
            yield "braces", lambda: BRACES
        case list():
            for about, items in (("objects", [{}]), ("the same", value[:1])):
                for item in items:
                    count = min(values // _size(item), most_bytes // _bytes(item))
                    yield about, partial(operator.mul, [item], count)
        case dict():
            count = min(values - _size(value), most_bytes // KEY_BYTES)
            yield "keys", lambda: value | {f"k{number}": number for number in range(count)}


def _size(value: Any) -> int:
    """Return what a value counts as in a list: its comma, its own opening, and what is in it."""
    if not isinstance(value, dict | list):
        return 1
    return 1 + max(1, sum(map(_size, value.values() if isinstance(value, dict) else value)))


def _bytes(item: Any) -> int:
    return len(json.dumps(item)) + len(", ")


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of texts, lists and objects, the outer ones first."""
    if isinstance(value, str | list | dict):
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for step, part in inner:
        yield from _places(part, (*path, step))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _changed(example: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    changed = deepcopy(example)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def _example(schema: Mapping[str, Any], named: Mapping[str, Any], levels: int = 6) -> Any:
    """Return a value of a schema, with everything in it that may be there."""
    if "$ref" in schema:
        return _example(named[schema["$ref"].rpartition("/")[2]], named, levels)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for alternatives in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        if alternatives:
            return _example(alternatives[0], named, levels)
    match schema.get("type"):
        case "object" if levels:
            return {name: _example(part, named, levels - 1) for name, part in schema.get("properties", {}).items()}
        case "array" if levels:
            return [_example(schema.get("items", {}), named, levels - 1)]
        case "object" | "array":
            return {} if schema["type"] == "object" else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return "x" * schema.get("minLength", 1)
