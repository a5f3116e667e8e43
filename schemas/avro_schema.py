"""Derive the Avro schema of an event's dataclass.

    schemas.events dataclass ──► Avro record schema (a JSON-able dict)

    str, Literal -> string         int -> long, Int -> int, Millis -> long (timestamp-millis)
    float -> double                bool -> boolean                dataclass -> record
    dict[str, X] -> map            tuple[X, ...] -> array         X | None -> ["null", X], default null
    TokenIds, Logprobs, LossMask, Octets -> bytes, with their layout in the attribute `layout` and in the doc

Bytes are used only for values per token and for Octets. Fixed, decimal, uuid and time types are not used: bulk decoders
do not handle them reliably.

Not covered: unions of two non-null types, and enums (a new symbol would break older readers; a Literal is a string with
values that are checked on both ends).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, Literal, get_args, get_origin

from schemas.event_types import Int32, Personal, PersonalJson, Timestamp
from schemas.tokens import VIEWS

NAMESPACE = "streamward"
LAYOUT = "layout"
"""The attribute of a `bytes` type that describes the layout of its items; Avro ignores it."""
_PRIMITIVES: dict[type, str] = {str: "string", int: "long", float: "double", bool: "boolean"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A field's type, decomposed."""

    base: Any
    """A primitive, a view of schemas/tokens.py, a dataclass, `dict`, `tuple` or `Literal`."""
    item: Shape | None = None
    """The type of a map's values or an array's items."""
    optional: bool = False
    narrow: bool = False
    """Avro int instead of long."""
    timestamp: bool = False
    doc: str | None = None
    allowed: tuple[str, ...] = ()
    """The values of a Literal."""
    personal: type[Personal] | None = None
    """The mark of a field with a person's words."""


@cache
def shapes(event: type) -> dict[str, Shape]:
    """Return the shape of every field of a dataclass, in order."""
    hints = typing.get_type_hints(event, include_extras=True)
    return {field.name: _shape(hints[field.name]) for field in dataclasses.fields(event)}


def _shape(hint: Any) -> Shape:
    if hasattr(hint, "__metadata__"):
        inner, marks = _shape(hint.__origin__), hint.__metadata__
        text = next((mark for mark in marks if isinstance(mark, str)), None)
        docs = (text, inner.doc) if inner.base in VIEWS else (text or inner.doc,)
        return dataclasses.replace(
            inner,
            doc="; ".join(filter(None, docs)) or None,
            narrow=inner.narrow or Int32 in marks,
            timestamp=inner.timestamp or Timestamp in marks,
            personal=next((mark for mark in (Personal, PersonalJson) if mark in marks), None),
        )
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner_hint,) = (arg for arg in args if arg is not type(None))
        return dataclasses.replace(_shape(inner_hint), optional=True)
    if origin is Literal:
        return Shape(Literal, allowed=args)
    if origin is tuple:
        return Shape(tuple, item=_shape(args[0]))
    if origin is dict:
        return Shape(dict, item=_shape(args[1]))
    if hint in VIEWS:
        return Shape(hint, doc=hint.LAYOUT)
    if hint in _PRIMITIVES or dataclasses.is_dataclass(hint):
        return Shape(hint)
    raise TypeError(f"{hint!r} has no Avro form here; see the table in schemas/avro_schema.py")


def record_schema(event: type) -> dict[str, Any]:
    """Return the Avro record schema of a dataclass; each nested record is defined once, then named."""
    return _record(event, set())


def _record(event: type, names: set[str]) -> dict[str, Any]:
    names.add(event.__name__)
    fields = []
    for field in dataclasses.fields(event):
        shape = shapes(event)[field.name]
        entry: dict[str, Any] = {"name": field.name}
        doc = shape.doc or (f"one of {', '.join(shape.allowed)}" if shape.allowed else None)
        if doc:
            entry["doc"] = doc
        entry["type"] = _type(shape, names)
        default = _default(field, shape)
        if default is not dataclasses.MISSING:
            entry["default"] = default
        fields.append(entry)
    doc = (event.__doc__ or "").strip().splitlines()[0]
    return {"type": "record", "name": event.__name__, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _type(shape: Shape, names: set[str]) -> Any:
    inner = _plain_type(shape, names)
    return ["null", inner] if shape.optional else inner


def _plain_type(shape: Shape, names: set[str]) -> Any:
    if shape.base is Literal:
        return "string"
    if shape.base is tuple:
        assert shape.item is not None  # noqa: S101 - a tuple's shape always has an item
        return {"type": "array", "items": _type(shape.item, names)}
    if shape.base is dict:
        assert shape.item is not None  # noqa: S101 - and so has a dict's
        return {"type": "map", "values": _type(shape.item, names)}
    if dataclasses.is_dataclass(shape.base):
        record: Any = shape.base
        return f"{NAMESPACE}.{record.__name__}" if record.__name__ in names else _record(record, names)
    if shape.timestamp:
        return {"type": "long", "logicalType": "timestamp-millis"}
    if shape.base in VIEWS:
        return {"type": "bytes", LAYOUT: shape.base.LAYOUT}
    return "int" if shape.narrow else _PRIMITIVES[shape.base]


def _default(field: dataclasses.Field[Any], shape: Shape) -> Any:
    """Return the Avro default of a field. Nested records have none: they are always written."""
    if field.default is None:
        return None
    if shape.base in VIEWS:
        return "" if field.default is not dataclasses.MISSING else dataclasses.MISSING
    if shape.base is tuple:
        return [] if field.default is not dataclasses.MISSING else dataclasses.MISSING
    if shape.base is dict:
        return {} if field.default_factory is not dataclasses.MISSING else dataclasses.MISSING
    if dataclasses.is_dataclass(shape.base):
        return dataclasses.MISSING
    return field.default
