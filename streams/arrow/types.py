"""Avro schemas as Arrow types, and columns of an older version as those of the newest.

    Avro record ──► arrow_type ──► struct, list, map, timestamp[ms, UTC], …; bytes that are per token: a list
    columns of version n ──► fitted ──► fields in the order of the newest, its new ones with their default
                        └─ an integer that does not fit: ArrowInvalid
    columns of the newest ──► written ──► as pyruhvro takes those of version n

No field is ever retyped: `schemas.versions.check` refuses such a version. A change has to read both ways, so all it can
do is add a field with a default, or remove one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.avro_schema import LAYOUT
from schemas.tokens import Logprobs, LossMask, TokenIds

TIME = pa.timestamp("ms", tz="UTC")
_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_ITEMS = {TokenIds.LAYOUT: pa.int32(), Logprobs.LAYOUT: pa.float32(), LossMask.LAYOUT: pa.bool_()}


def inlined(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the record with each nested record in full wherever it is named."""
    known: dict[str, Any] = {}

    def spell(node: Any) -> Any:
        if isinstance(node, str):
            return known.get(node, node)
        if isinstance(node, list):
            return [spell(each) for each in node]
        spelt = dict(node)
        if node["type"] == "record":
            spelt["fields"] = [{**field, "type": spell(field["type"])} for field in node["fields"]]
            known[f"{node.get('namespace', definition.get('namespace'))}.{node['name']}"] = spelt
        for inner in ("items", "values"):
            if inner in node:
                spelt[inner] = spell(node[inner])
        return spelt

    whole: dict[str, Any] = spell(definition)
    return whole


_WIDENED = {"int": "long", "bytes": "string"}


def widened(node: Any) -> Any:
    """Return a schema whose ints are longs, and whose bytes are texts: what is written is the same.

    So a value of more than 32 bits is noticed. pyruhvro panics at bytes, and does not look whether a text is UTF-8.
    """
    if isinstance(node, dict):
        return {
            key: widened(value) if key in ("type", "items", "values", "fields") else value
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [widened(each) for each in node]
    return _WIDENED.get(node, node)


def arrow_type(node: Any) -> pa.DataType:
    """Return the Arrow type of a node of an inlined schema. Everything may be null."""
    if isinstance(node, list):
        (inner,) = (each for each in node if each != "null")
        return arrow_type(inner)
    if isinstance(node, str):
        return _PRIMITIVES[node]
    match node["type"]:
        case "record":
            return pa.struct([pa.field(field["name"], arrow_type(field["type"])) for field in node["fields"]])
        case "array":
            return pa.list_(arrow_type(node["items"]))
        case "map":
            return pa.map_(pa.string(), arrow_type(node["values"]))
        case "bytes":
            return pa.list_(_ITEMS[node[LAYOUT]])
    return TIME if node.get("logicalType") == "timestamp-millis" else _PRIMITIVES[node["type"]]


def fitted(found: pa.Array, node: Any, wanted: pa.DataType) -> pa.Array:
    """Return decoded columns as a node of the newest inlined schema has them, whose Arrow type is `wanted`.

    Raises ArrowInvalid if one cannot be.
    """
    if isinstance(node, list):
        (node,) = (each for each in node if each != "null")
    kind = node if isinstance(node, str) else node["type"]
    mask = found.is_null() if found.null_count else None
    if kind == "record":
        there, fields = {field.name for field in found.type}, list(wanted)
        columns = [
            fitted(found.field(into.name), field["type"], into.type)
            if into.name in there
            else _default(field["default"], into.type, len(found))
            for field, into in zip(node["fields"], fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    if kind == "array":
        items = fitted(found.values, node["items"], wanted.value_type)
        return pa.ListArray.from_arrays(found.offsets, items, mask=mask)
    if kind == "map":
        items = fitted(found.items, node["values"], wanted.item_type)
        return pa.MapArray.from_arrays(found.offsets, found.keys, items, mask=mask)
    if kind == "bytes":
        return _items(found, wanted, mask)
    return found if found.type == wanted else found.cast(wanted)


def _items(found: pa.StringArray, wanted: pa.ListType, mask: pa.Array | None) -> pa.Array:
    """Return bytes that were read as texts as lists of what they are per token, over the same memory."""
    _, offsets, data = found.buffers()
    ends = np.frombuffer(offsets or b"\0" * 4, np.int32)[found.offset : found.offset + len(found) + 1]
    stored = np.dtype(np.uint8) if wanted.value_type == pa.bool_() else np.dtype(wanted.value_type.to_pandas_dtype())
    if ((ends - ends[0]) % stored.itemsize).any():
        raise pa.ArrowInvalid(f"a length is no multiple of {stored.itemsize}")
    items = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    if wanted.value_type == pa.bool_():
        if items.max(initial=0) > 1:
            raise pa.ArrowInvalid("a mask is neither 0 nor 1")
        stored = np.dtype(np.bool_)
    lists = pa.array((ends - ends[0]) // stored.itemsize, pa.int32())
    return pa.ListArray.from_arrays(lists, pa.array(items.view(stored)), mask=mask)


def written(found: pa.Array, node: Any) -> pa.Array:
    """Return columns as pyruhvro encodes them under a node of an inlined schema: what `fitted` was given."""
    if isinstance(node, list):
        (node,) = (each for each in node if each != "null")
    kind = node if isinstance(node, str) else node["type"]
    mask = found.is_null() if found.null_count else None
    if kind == "record":
        columns = [written(found.field(field["name"]), field["type"]) for field in node["fields"]]
        return pa.StructArray.from_arrays(columns, names=[field["name"] for field in node["fields"]], mask=mask)
    if kind == "bytes":
        return _joined(found)
    if kind in ("array", "map"):
        offsets, first = np.asarray(found.offsets), found.offsets[0].as_py()
        starts, count = pa.array(offsets - first, pa.int32()), int(offsets[-1]) - first
        if kind == "array":
            items = written(found.values.slice(first, count), node["items"])
            return pa.ListArray.from_arrays(starts, items, mask=mask)
        items = written(found.items.slice(first, count), node["values"])
        return pa.MapArray.from_arrays(starts, found.keys.slice(first, count), items, mask=mask)
    if pa.types.is_timestamp(found.type):
        return found.cast(pa.timestamp("ms"))
    return found.cast(pa.int64()) if pa.types.is_integer(found.type) else found


def _joined(found: pa.ListArray) -> pa.StringArray:
    """Return lists of what is per token as the texts that pyruhvro takes for bytes: `_items` backwards."""
    offsets = np.asarray(found.offsets)
    values = found.values.slice(int(offsets[0]), int(offsets[-1]) - int(offsets[0])).to_numpy(zero_copy_only=False)
    values = values.astype(np.uint8) if values.dtype == np.bool_ else values
    ends = ((offsets - offsets[0]) * values.dtype.itemsize).astype(np.int32)
    whole = pa.py_buffer(np.ascontiguousarray(values))
    texts = pa.StringArray.from_buffers(len(found), pa.py_buffer(ends), whole)
    return pc.if_else(found.is_null(), None, texts) if found.null_count else texts


def _default(default: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a new field's default, `count` times, for rows of an older schema version."""
    if default is None:
        return pa.nulls(count, kind)
    if pa.types.is_map(kind):
        default = list(default.items())
    return pa.array([default], kind).take(pa.array([0] * count, pa.int64()))
