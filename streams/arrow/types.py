"""Convert Avro schemas to Arrow types, and columns of an older version to the newest.

    Avro record ──► arrow_type ──► struct, list, map, timestamp[ms, UTC], …; bytes that are per token: a list
    columns of version n ──► as_newest ──► fields in the order of the newest, its new ones with their default
                        └─ an integer that does not fit: ArrowInvalid
    columns of the newest ──► as_encodable ──► pyruhvro's form of version n

No field is ever retyped: `schemas.versions.check` refuses such a version. A change must be readable both ways, so it
can only add a field with a default, or remove one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.avro_schema import LAYOUT
from schemas.tokens import Logprobs, LossMask, Octets, TokenIds

TIME = pa.timestamp("ms", tz="UTC")
_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_ITEMS = {
    TokenIds.LAYOUT: pa.int32(),
    Logprobs.LAYOUT: pa.float32(),
    LossMask.LAYOUT: pa.bool_(),
    Octets.LAYOUT: pa.int16(),  # Delta has no unsigned numbers
}


def inline(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the record with each nested record in full wherever it is named."""
    records: dict[str, Any] = {}

    def spell(node: Any) -> Any:
        if isinstance(node, str):
            return records.get(node, node)
        if isinstance(node, list):
            return [spell(branch) for branch in node]
        spelt = dict(node)
        if node["type"] == "record":
            spelt["fields"] = [{**field, "type": spell(field["type"])} for field in node["fields"]]
            records[f"{node.get('namespace', definition.get('namespace'))}.{node['name']}"] = spelt
        for inner in ("items", "values"):
            if inner in node:
                spelt[inner] = spell(node[inner])
        return spelt

    whole: dict[str, Any] = spell(definition)
    return whole


_WIDER = {"int": "long", "bytes": "string"}


def widen(node: Any) -> Any:
    """Return a schema whose ints are longs, and whose bytes are texts: the same bytes are written.

    So a value of more than 32 bits is noticed. pyruhvro panics at bytes, and does not check whether a text is UTF-8.
    """
    if isinstance(node, dict):
        return {
            key: widen(value) if key in ("type", "items", "values", "fields") else value for key, value in node.items()
        }
    if isinstance(node, list):
        return [widen(branch) for branch in node]
    return _WIDER.get(node, node)


def arrow_type(node: Any) -> pa.DataType:
    """Return the Arrow type of a node of an inlined schema. Everything is nullable."""
    if isinstance(node, list):
        (inner,) = (branch for branch in node if branch != "null")
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


def as_newest(column: pa.Array, node: Any, kind: pa.DataType) -> pa.Array:
    """Return decoded columns in the form of a node of the newest inlined schema, with Arrow type `kind`. Raises
    ArrowInvalid if impossible.
    """
    if isinstance(node, list):
        (node,) = (branch for branch in node if branch != "null")
    node_type = node if isinstance(node, str) else node["type"]
    mask = column.is_null() if column.null_count else None
    if node_type == "record":
        names, fields = {field.name for field in column.type}, list(kind)
        columns = [
            as_newest(column.field(target.name), field["type"], target.type)
            if target.name in names
            else _default(field["default"], target.type, len(column))
            for field, target in zip(node["fields"], fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    if node_type == "array":
        items = as_newest(column.values, node["items"], kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, mask=mask)
    if node_type == "map":
        items = as_newest(column.items, node["values"], kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, column.keys, items, mask=mask)
    if node_type == "bytes":
        return _items(column, kind, mask)
    return column if column.type == kind else column.cast(kind)


def _items(column: pa.StringArray, kind: pa.ListType, mask: pa.Array | None) -> pa.Array:
    """Return bytes that were read as texts as lists of their values per token, over the same memory."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets or b"\0" * 4, np.int32)[column.offset : column.offset + len(column) + 1]
    of_bytes = kind.value_type in (pa.bool_(), _ITEMS[Octets.LAYOUT])
    stored = np.dtype(np.uint8) if of_bytes else np.dtype(kind.value_type.to_pandas_dtype())
    if ((ends - ends[0]) % stored.itemsize).any():
        raise pa.ArrowInvalid(f"a length is no multiple of {stored.itemsize}")
    items = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    if kind.value_type == pa.bool_():
        if items.max(initial=0) > 1:
            raise pa.ArrowInvalid("a mask is neither 0 nor 1")
        stored = np.dtype(np.bool_)
    lists = pa.array((ends - ends[0]) // stored.itemsize, pa.int32())
    return pa.ListArray.from_arrays(lists, pa.array(items.view(stored), kind.value_type), mask=mask)


def as_encodable(column: pa.Array, node: Any) -> pa.Array:
    """Return columns in the form that pyruhvro encodes under a node of an inlined schema: the inverse of
    `as_newest`."""
    if isinstance(node, list):
        (node,) = (branch for branch in node if branch != "null")
    kind = node if isinstance(node, str) else node["type"]
    mask = column.is_null() if column.null_count else None
    if kind == "record":
        columns = [as_encodable(column.field(field["name"]), field["type"]) for field in node["fields"]]
        return pa.StructArray.from_arrays(columns, names=[field["name"] for field in node["fields"]], mask=mask)
    if kind == "bytes":
        return _join(column)
    if kind in ("array", "map"):
        offsets, first = np.asarray(column.offsets), column.offsets[0].as_py()
        starts, count = pa.array(offsets - first, pa.int32()), int(offsets[-1]) - first
        if kind == "array":
            items = as_encodable(column.values.slice(first, count), node["items"])
            return pa.ListArray.from_arrays(starts, items, mask=mask)
        items = as_encodable(column.items.slice(first, count), node["values"])
        return pa.MapArray.from_arrays(starts, column.keys.slice(first, count), items, mask=mask)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("ms"))
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def _join(column: pa.ListArray) -> pa.StringArray:
    """Return lists of values per token as the texts that pyruhvro uses for bytes: the inverse of `_items`."""
    offsets = np.asarray(column.offsets)
    values = column.values.slice(int(offsets[0]), int(offsets[-1]) - int(offsets[0])).to_numpy(zero_copy_only=False)
    values = values.astype(np.uint8) if values.dtype in (np.bool_, np.int16) else values
    ends = ((offsets - offsets[0]) * values.dtype.itemsize).astype(np.int32)
    whole = pa.py_buffer(np.ascontiguousarray(values))
    texts = pa.StringArray.from_buffers(len(column), pa.py_buffer(ends), whole)
    return pc.if_else(column.is_null(), None, texts) if column.null_count else texts


def _default(default: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a new field's default, `count` times, for rows of an older schema version."""
    if default is None:
        return pa.nulls(count, kind)
    if pa.types.is_map(kind):
        default = list(default.items())
    return pa.array([default], kind).take(pa.array([0] * count, pa.int64()))
