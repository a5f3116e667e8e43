"""The texts of a row of training data, whatever its columns.

row of a file, line of a data set ──► every text in it, without the system's instructions ──► RowTexts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streams.arrow.file_rows import OF_EXAMPLES, fields_of, rows
from streams.data.contamination.suite_index import SYSTEM_ROLES, RowTexts


def file_texts(path: Path, split: str | None = None) -> Iterator[RowTexts]:
    """Yield the texts of a file's rows; unreadable rows are skipped here and refused by another reader."""
    for number, row in rows(path, split, OF_EXAMPLES):
        try:
            yield RowTexts(f"{path.name}:{number}", texts_of(fields_of(row)))
        except ValueError:
            continue


def texts_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every text in a row, whatever its columns, without the instructions of the system.

    >>> texts_of({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]})
    ('1 + 1?',)
    """
    return tuple(_leaves(fields))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if value.get("role") not in SYSTEM_ROLES:
            for name, inner in value.items():
                if name != "role":
                    yield from _leaves(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _leaves(inner)
