"""Restore the form in which the author wrote a table's cells, if its types changed it.

    all cells of a column ──► 5.0, 8.0 and a hole: whole numbers; 2024-05-01 00:00, …: dates ──► 5, 8, 2024-05-01

pandas has floats for whole numbers with a hole, and times for dates; decimals have as many places as their type, and
Arrow widens 0.1 of 32 bits to 0.10000000149011612. A scorer that compares texts would accept none of them.

Not covered: a column that mixes 2.5 and 5.0 stays as it is, and so do NaN and times of a zone.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow

CellPath = tuple[str, ...]
"""The name of a column, then those of the fields within its cells; "" for the items of a list."""
MOST_EXACT = 2**53
"""Above this, a float does not identify one whole number."""
HAS_FORMS = re.compile("float|double|decimal|timestamp")
"""Names of types with values that may have another form."""


class CellForms:
    """The forms of the columns of a table. First `look` at all rows, then `mend` each."""

    def __init__(self, schema: pyarrow.Schema | None) -> None:
        """`schema` is that of the table, None if unknown."""
        types = {column.name: str(column.type) for column in schema or ()}
        self.columns = None if schema is None else [name for name, kind in types.items() if HAS_FORMS.search(kind)]
        """Columns to check; None: all."""
        self._narrow = {
            name: np.float16 if "halffloat" in kind else np.float32
            for name, kind in types.items()
            if "float" in kind and "double" not in kind
        }
        self._unshortened: set[CellPath] = set()
        """Columns with a value that has no shorter form."""

    def look(self, rows: Iterable[dict[str, Any]]) -> None:
        """Find the columns that hold only whole numbers or only dates."""
        for row in rows:
            _map(row, (), self._note)

    def mend(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the forms of its columns."""
        return row if self.columns == [] else _map(row, (), self._value)

    def _note(self, value: Any, path: CellPath) -> None:
        if value is not None and _short(value) is None:
            self._unshortened.add(path)

    def _value(self, value: Any, path: CellPath) -> Any:
        if path not in self._unshortened:
            return _short(value)
        narrow = self._narrow.get(path[0]) if isinstance(value, float) else None
        return value if narrow is None else float(str(narrow(value)))


def _map(value: Any, path: CellPath, change: Callable[[Any, CellPath], Any]) -> Any:
    """Return a value with all values in it changed."""
    if isinstance(value, dict):
        return {name: _map(inner, (*path, name), change) for name, inner in value.items()}
    return [_map(inner, (*path, ""), change) for inner in value] if isinstance(value, list) else change(value, path)


def _short(value: Any) -> Any:
    """Return a value without a fraction or a time of day that is zero, or None if it has one; other values
    unchanged."""
    if isinstance(value, float) and not math.isnan(value):
        return int(value) if value.is_integer() and abs(value) <= MOST_EXACT else None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else None
    if isinstance(value, datetime.datetime):
        return value.date() if value.tzinfo is None and value.time() == datetime.time() else None
    return value
