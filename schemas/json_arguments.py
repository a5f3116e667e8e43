"""Parse arguments that an assistant sent as JSON text, if the schema of the tool accepts no text.

    "[1, 2]" for an array, "4" for an integer ──► [1, 2], 4      '{"a": 1}' for a string ──► as it is

One rule for every tool, at any depth. A text that is not JSON, or is JSON of a type that the schema does not accept,
stays a text, and the check of the arguments refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas import json_text

DEPTH = 8
"""Maximum levels of a schema that are followed; a schema may refer to itself."""


def from_json_texts(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return arguments with each text that is not a string in `schema`, a JSON Schema, read as JSON.

    >>> from_json_texts({"texts": '["11"]', "note": "[1]"}, {"properties": {"texts": {"type": "array"}, "note": {}}})
    {'texts': ['11'], 'note': '[1]'}
    """
    return _read(value, schema, schema.get("$defs", {}), DEPTH)


def _read(value: Any, schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    variants = list(_variants(schema, definitions, depth))
    if isinstance(value, str):
        types = {name for variant in variants for name in _types(variant)}
        try:
            parsed = value if "string" in types else json_text.parse(value)
        except ValueError:
            return value
        if isinstance(parsed, str) or not _type_names(parsed) & types:
            return value
        value = parsed
    for variant in variants if depth else ():
        if isinstance(value, dict) and isinstance(properties := variant.get("properties"), Mapping):
            value = {
                name: _read(item, properties[name], definitions, depth - 1) if name in properties else item
                for name, item in value.items()
            }
        elif isinstance(value, list) and "items" in variant:
            value = [_read(item, variant["items"], definitions, depth - 1) for item in value]
    return value


def _variants(schema: Any, definitions: Mapping[str, Any], depth: int) -> list[Mapping[str, Any]]:
    """Return the schemas of which a value may satisfy one, without references and alternatives."""
    if not isinstance(schema, Mapping) or not depth:
        return [{}]
    if isinstance(reference := schema.get("$ref"), str):
        return _variants(definitions.get(reference.removeprefix("#/$defs/")), definitions, depth - 1)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(alternatives, list):
        return [schema]
    return [variant for part in alternatives for variant in _variants(part, definitions, depth - 1)]


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that a schema accepts, including "string" if it names none."""
    types = schema.get("type", "string")
    return types if isinstance(types, list) else [types]


def _type_names(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number"}
    return {"array"} if isinstance(value, list) else {"object"} if isinstance(value, dict) else {"null"}
