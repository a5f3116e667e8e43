"""Give the cells of a table the form that their author wrote, where its types hold another.

    all cells of a column ──► 5.0, 8.0 and a hole: whole numbers; 2024-05-01 00:00, …: dates ──► 5, 8, 2024-05-01

pandas has floats for whole numbers with a hole, and times for dates; decimals have as many places as their type, and
Arrow widens 0.1 of 32 bits to 0.10000000149011612. A scorer that compares texts would accept none of them.

Not covered: a column that mixes 2.5 and 5.0 stays as it is, and so do NaN and times of a zone.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow

CellPath = tuple[str, ...]
"""The name of a column, then those of the fields within its cells; "" for the items of a list."""
NARROW = {pyarrow.float16(): np.float16, pyarrow.float32(): np.float32}
"""Floats that Arrow widens, and NumPy writes as they were."""
MOST_EXACT = 2**53
"""Above it, a float is not one whole number but several."""


class CellForms:
    """What the columns of a table hold. First `look` at all rows, then `mend` each."""

    def __init__(self, schema: pyarrow.Schema | None) -> None:
        """`schema` is that of the table, None if it is not known."""
        leaves = [leaf for column in schema or () for leaf in _leaves(column.type, (column.name,))]
        self._narrow = {path: NARROW[kind] for path, kind in leaves if kind in NARROW}
        self._kept: set[CellPath] = set()
        """Of which a value has no shorter form."""
        with_forms = dict.fromkeys(path[0] for path, kind in leaves if _has_forms(kind))
        self.columns = None if schema is None else list(with_forms)
        """Those to look at; None: all."""

    def look(self, rows: Iterable[dict[str, Any]]) -> None:
        """Find out which columns hold nothing but whole numbers, or dates."""
        for row in rows:
            self._kept.update(path for path, value in _values(row, ()) if _short(value) is None)

    def mend(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the forms of its columns."""
        if self.columns == []:
            return row
        return {
            name: self._cell(cell, (name,)) if self.columns is None or name in self.columns else cell
            for name, cell in row.items()
        }

    def _cell(self, value: Any, path: CellPath) -> Any:
        if isinstance(value, dict):
            return {name: self._cell(inner, (*path, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._cell(inner, (*path, "")) for inner in value]
        if path not in self._kept:
            return _short(value)
        return float(str(self._narrow[path](value))) if path in self._narrow and value is not None else value


def _short(value: Any) -> Any:
    """Return a value without a fraction or a time of day that is zero, or None if it has one; others as they are."""
    if isinstance(value, float) and not math.isnan(value):
        return int(value) if value.is_integer() and abs(value) <= MOST_EXACT else None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else None
    if isinstance(value, datetime.datetime):
        return value.date() if value.tzinfo is None and value.time() == datetime.time() else None
    return value


def _values(value: Any, path: CellPath) -> Iterator[tuple[CellPath, Any]]:
    """Yield what is in a value, with its path; nothing for a hole."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(inner, (*path, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, (*path, ""))
    elif value is not None:
        yield path, value


def _leaves(kind: pyarrow.DataType, path: CellPath) -> Iterator[tuple[CellPath, pyarrow.DataType]]:
    """Yield the types that are in a type, with their paths."""
    if pyarrow.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, (*path, field.name))
    elif hasattr(kind, "value_type") and not pyarrow.types.is_dictionary(kind):
        yield from _leaves(kind.value_type, (*path, ""))
    else:
        yield path, kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def _has_forms(kind: pyarrow.DataType) -> bool:
    is_number = pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind)
    return bool(is_number or pyarrow.types.is_timestamp(kind))
