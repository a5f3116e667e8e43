"""Balance a data set: each row that has a term is there twice, as it is and with the counterparts.

    rows ──► TermSwaps ──► row, swapped copy ──► SFT, preferences, tasks, or a suite of pairs (--pairs)

With pairs, rows without a term are left out, and scenarios say which side a row is of, so that a version's results on
the suite are its bias.

Not covered: columns in other files; rows are lines of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plugins.guardrails.bias.counterfactual import FIRST, SECOND
from streams.arrow.file_rows import fields_of, json_lines
from streams.errors import EventError
from streams.scorers.term_swaps import TermSwaps

NO_TEXT = ("task_id", "id", "scenario", "policy", "agent", "environment", "tools", "tool_ids", "purpose", "metadata")
"""Fields that are no text of the row."""
COPY = "-swapped"
"""End of the id of a copy."""


class BalancedRows(NamedTuple):
    """What became of a file."""

    rows: int
    copies: int
    written: int


def balance_file(source: Path, target: Path, swaps: TermSwaps, *, as_pairs: bool = False) -> BalancedRows:
    """Write the rows of a file with their swapped copies. Raises EventError for a line that is no JSON object."""
    rows = [*_rows(source)]
    balanced = [*balance(rows, swaps, as_pairs=as_pairs)]
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in balanced)
    target.write_text(text, encoding="utf-8")
    copies = len(balanced) // 2 if as_pairs else len(balanced) - len(rows)
    return BalancedRows(len(rows), copies, len(balanced))


def balance(
    rows: Iterable[Mapping[str, Any]], swaps: TermSwaps, *, as_pairs: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Yield each row, and after it its copy if it has a term."""
    for row in rows:
        is_first = _first_text(row, swaps)
        if is_first is None:
            if not as_pairs:
                yield row
            continue
        copy = {name: part if name in NO_TEXT else swaps.swap_value(part) for name, part in row.items()}
        copy |= {name: f"{row[name]}{COPY}" for name in ("task_id", "id") if name in row}
        if not as_pairs:
            yield row
            yield copy
            continue
        scenario = row.get("scenario", "default")
        sides = (FIRST, SECOND) if is_first else (SECOND, FIRST)
        yield {**row, "scenario": f"{scenario}{sides[0]}"}
        yield {**copy, "scenario": f"{scenario}{sides[1]}"}


def _first_text(row: Mapping[str, Any], swaps: TermSwaps) -> bool | None:
    """Return whether the first term of a row is the first of its pair; None: it has no term."""
    texts = (text for name, part in row.items() if name not in NO_TEXT for text in _texts(part))
    return next((side for text in texts if (side := swaps.is_first(text)) is not None), None)


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, list | dict):
        for child in part.values() if isinstance(part, dict) else part:
            yield from _texts(child)


def _rows(source: Path) -> Iterator[dict[str, Any]]:
    with source.open("rb") as lines:
        for number, row in json_lines(lines, source):
            try:
                yield fields_of(row)
            except ValueError as exc:
                raise EventError(f"{source}:{number}: {exc}") from exc
