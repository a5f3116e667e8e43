"""Payloads to events, many at once: what `schemas.serde.decode` returns for each, in half the time.

    payloads ──► judge ──► columns ──► events
                   └─ not sound ──► serde, one by one ──► event | Poison

What was judged sound is not checked again: values go from the columns straight into the slots of the dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from schemas.avro_schema import Shape, shapes
from schemas.events import Event
from schemas.serde import Poison
from schemas.tokens import VIEWS
from streams.tools.arrow.decode import judge


def decode_events(event: type[Event], payloads: Sequence[bytes | None]) -> list[Event | Poison]:
    """Return the event in each payload, or a Poison."""
    judged = judge(event, list(payloads))
    found: dict[int, Event | Poison] = dict(judged.wrong)
    for which, events in judged.found:
        found.update(zip(which, _values(Shape(event), events), strict=True))
    return [found[place] for place in range(len(payloads))]


def _values(shape: Shape, column: pa.Array) -> list[Any]:
    """Return the values of a column as an event has them."""
    base: Any = shape.base
    if column.null_count == len(column):
        return [None] * len(column)
    if dataclasses.is_dataclass(base):
        record: Any = base
        columns = [_values(inner, column.field(name)) for name, inner in shapes(record).items()]
        return list(map(_maker(record, tuple(shapes(record))), zip(*columns, strict=True)))
    if base in VIEWS:
        items, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy() * base.BYTES
        make, data = _maker(base, ("data",)), memoryview(items.view("u1"))
        return [make((data[begin:end].tobytes(),)) for begin, end in pairwise(ends.tolist())]
    if base in (tuple, dict):
        assert shape.item is not None  # noqa: S101 - an array's shape and a map's always have one
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
    """Return a function that makes such an object of the values of its slots."""
    new, puts = object.__new__, [getattr(kind, slot).__set__ for slot in slots]

    def make(values: Sequence[Any]) -> Any:
        made = new(kind)
        for put, value in zip(puts, values):  # noqa: B905 - `strict` would cost a tenth of the time
            put(made, value)
        return made

    return make
