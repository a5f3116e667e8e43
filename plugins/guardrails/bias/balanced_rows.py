"""Balance a data set: each row that has a term is there twice, as it is and with the counterparts.

    rows ──► TermSwaps ──► row, swapped copy ──► SFT, preferences, tasks
                                   └── --pairs ──► NAME.yaml: a suite of NAME-first.jsonl and NAME-second.jsonl

With pairs, rows without a term are left out, and a scenario for each side makes a version's results on the suite its
bias.

Not covered: columns in other files; rows are lines of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plugins.guardrails.bias.counterfactual import FIRST, SECOND
from streams.arrow.file_rows import fields_of, json_lines
from streams.errors import EventError, SettingsError
from streams.scorers.term_swaps import TermSwaps
from streams.stages.tasks.suites import NAME

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
    """Write the rows of a file with their swapped copies. Raises EventError for a line that is no JSON object.

    With `as_pairs` the target is a suite, and the rows are in files next to it; SettingsError if it is no NAME.yaml.
    """
    rows = [*_rows(source)]
    if not as_pairs:
        balanced = [*balance(rows, swaps)]
        _write(target, balanced)
        return BalancedRows(len(rows), len(balanced) - len(rows), len(balanced))
    name = target.stem
    if target.suffix != ".yaml" or re.fullmatch(NAME, name + SECOND) is None:
        raise SettingsError(f"{target} is the suite that --pairs writes; expected NAME.yaml, with a name of a suite")
    pairs = [*swapped_pairs(rows, swaps)]
    for side, ending in enumerate((FIRST, SECOND)):
        _write(target.with_name(f"{name}{ending}.jsonl"), [pair[side] for pair in pairs])
    scenarios = (f"  {name}{ending}: {{file: {name}{ending}.jsonl}}\n" for ending in (FIRST, SECOND))
    target.write_text(f"name: {name}\nscenarios:\n{''.join(scenarios)}", encoding="utf-8")
    return BalancedRows(len(rows), len(pairs), 2 * len(pairs))


def balance(rows: Iterable[Mapping[str, Any]], swaps: TermSwaps) -> Iterator[Mapping[str, Any]]:
    """Yield each row, and after it its copy if it has a term."""
    for row in rows:
        yield row
        if _first_text(row, swaps) is not None:
            yield _copy(row, swaps)


def swapped_pairs(
    rows: Iterable[Mapping[str, Any]], swaps: TermSwaps
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each row with a term and its copy, the one with the first term of a pair first."""
    for row in rows:
        if (is_first := _first_text(row, swaps)) is not None:
            copy = _copy(row, swaps)
            yield (row, copy) if is_first else (copy, row)


def _copy(row: Mapping[str, Any], swaps: TermSwaps) -> Mapping[str, Any]:
    copy = {name: part if name in NO_TEXT else swaps.swap_value(part) for name, part in row.items()}
    return copy | {name: f"{row[name]}{COPY}" for name in ("task_id", "id") if name in row}


def _write(target: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    target.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


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
