"""Decode many payloads at once to events or to some of their values.

    payloads ──► judge ──► columns ──► decode_events: the results of schemas.serde.decode, in half the time
                                  └──► decode_values: some of those events' values, and the faults of the others

Sound payloads are not checked again: values go from the columns straight into the slots of the dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.avro_schema import Shape, shapes
from schemas.events import Event
from schemas.serde import Poison
from schemas.tokens import VIEWS
from streams.arrow.decode import judge


class DecodedValues(NamedTuple):
    """Values of the events in payloads."""

    columns: list[list[Any]]
    """Values of the events by name, in the order of the payloads; no columns without events."""
    wrong: dict[int, Poison]
    """Payloads without an event, by place."""


def decode_values(event: type[Event], payloads: Sequence[bytes | None], names: Sequence[str]) -> DecodedValues:
    """Return the values of these fields, and the faults of payloads without an event.

    A name is that of a field, a record's (`sampling.seed`), or of the bytes of values per token (`logprobs.data`).
    """
    return _in_order(event, payloads, lambda events: [_field_values(event, events, name) for name in names])


def decode_events(event: type[Event], payloads: Sequence[bytes | None]) -> DecodedValues:
    """Return the events in a single column, and the faults of payloads without one."""
    return _in_order(event, payloads, lambda events: [_values(Shape(event), events)])


def _in_order(
    event: type[Event], payloads: Sequence[bytes | None], columns_of: Callable[[pa.StructArray], list[list[Any]]]
) -> DecodedValues:
    judged = judge(event, list(payloads))
    pieces = [columns_of(events) for _, events in judged.pieces]
    if len(pieces) == 1:  # the usual case: in order already
        return DecodedValues(pieces[0], judged.wrong)
    places = [place for piece, _ in judged.pieces for place in piece]
    order = sorted(range(len(places)), key=places.__getitem__)
    columns = [list(chain.from_iterable(parts)) for parts in zip(*pieces, strict=True)]
    return DecodedValues([[column[i] for i in order] for column in columns], judged.wrong)


def _field_values(event: Any, column: pa.Array, name: str) -> list[Any]:
    """Return the values of a field, which may be nested in a record."""
    outer, _, inner = name.partition(".")
    shape, column = shapes(event)[outer], column.field(outer)
    if shape.base in VIEWS and inner:
        return _per_token(shape, column)
    return _field_values(shape.base, column, inner) if inner else _values(shape, column)


def _per_token(shape: Shape, column: pa.Array) -> list[bytes]:
    items, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy() * shape.base.BYTES
    items = items.astype(np.uint8) if items.itemsize != shape.base.BYTES else items
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(items)]
    return _list(pa.Array.from_buffers(pa.binary(), len(column), buffers))  # type: ignore[no-any-return]


def _values(shape: Shape, column: pa.Array) -> list[Any]:
    """Return the values of a column in the form of an event."""
    base: Any = shape.base
    if column.null_count == len(column):
        return [None] * len(column)
    if dataclasses.is_dataclass(base):
        record: Any = base
        columns = [_values(inner, column.field(name)) for name, inner in shapes(record).items()]
        objects = list(map(_maker(record, tuple(shapes(record))), zip(*columns, strict=True)))
        if not column.null_count:
            return objects
        valid = column.is_valid().to_pylist()
        return [value if is_valid else None for value, is_valid in zip(objects, valid, strict=True)]
    if base in VIEWS:
        return list(map(_maker(base, ("data",)), zip(_per_token(shape, column), strict=True)))
    if base in (tuple, dict):
        assert shape.item is not None  # noqa: S101 - an array's shape and a map's always have one
        if base is tuple and not len(column.values):
            return [()] * len(column)
        items = _values(shape.item, column.values if base is tuple else column.items)
        if base is dict:
            items = list(zip(column.keys.to_pylist(), items, strict=True))
        return [base(items[begin:end]) for begin, end in pairwise(column.offsets.to_pylist())]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist() if column.null_count and base is not str else _list(column)
    return values


def _list(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False).tolist()  # several times faster than `to_pylist`


@cache
def _maker(kind: Any, slots: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes an object of this class from the values of its slots."""
    new, puts = object.__new__, [getattr(kind, slot).__set__ for slot in slots]

    def make(values: Sequence[Any]) -> Any:
        instance = new(kind)
        for put, value in zip(puts, values):  # noqa: B905 - `strict` would cost a tenth of the time
            put(instance, value)
        return instance

    return make
