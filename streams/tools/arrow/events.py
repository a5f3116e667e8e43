"""Payloads to events or to a few of their values, many at once.

    payloads ──► judge ──► columns ──► decode_events: what schemas.serde.decode returns for each, in half the time
                                  └──► decode_values: what operator.attrgetter returns for each of those events

What was judged sound is not checked again: values go from the columns straight into the slots of the dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
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
    return _in_order(event, payloads, lambda events: _values(Shape(event), events))


def decode_values(event: type[Event], payloads: Sequence[bytes | None], names: Sequence[str]) -> list[Any]:
    """Return for each payload the values of these fields, or a Poison.

    A name is that of a field, a record's (`sampling.seed`), or of the bytes of what is per token (`logprobs.data`).
    """
    return _in_order(event, payloads, lambda events: zip(*[_named(event, events, name) for name in names], strict=True))


def _in_order(
    event: type[Event], payloads: Sequence[bytes | None], made_of: Callable[[pa.StructArray], Iterable[Any]]
) -> list[Any]:
    judged = judge(event, list(payloads))
    found: dict[int, Any] = dict(judged.wrong)
    for which, events in judged.found:
        if len(which) == len(payloads):
            return list(made_of(events))  # the usual case: in order already
        found.update(zip(which, made_of(events), strict=True))
    return [found[place] for place in range(len(payloads))]


def _named(event: Any, column: pa.Array, name: str) -> list[Any]:
    """Return the values of a field, which may be one of a record's own."""
    outer, _, inner = name.partition(".")
    shape, column = shapes(event)[outer], column.field(outer)
    if shape.base in VIEWS and inner:
        return _per_token(shape, column)
    return _named(shape.base, column, inner) if inner else _values(shape, column)


def _per_token(shape: Shape, column: pa.Array) -> list[bytes]:
    items, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy() * shape.base.BYTES
    data = items.view("u1").tobytes()
    return [data[begin:end] for begin, end in pairwise(ends.tolist())]


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
        return list(map(_maker(base, ("data",)), zip(_per_token(shape, column), strict=True)))
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
