"""Clean rows step by step, and record the fate of each.

    DataRow | UnreadableRow ──► step ──► step ──► … ──► CleanedRows: rows, fates
                                                          └──► rows.jsonl, fates.jsonl, manifest.json

read = kept + changed + dropped, in the manifest and by step. The same input and steps give the same bytes: no file
contains a time or a path.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from plugins.data.cleaning.data_rows import DataSource, UnreadableRow
from plugins.data.cleaning.row_shapes import shape_of
from plugins.data.cleaning.steps import CONTAMINATION, STEPS, DataRow, RowOutcome, StepOptions, leave_out_held_out
from plugins.data.contamination.suite_index import SuiteIndex
from schemas import json_text
from schemas.faults import faults, nearest
from schemas.json_text import one_line
from streams.errors import SettingsError
from streams.files import half_written

MANIFEST_VERSION = 1
ROWS, FATES, MANIFEST = "rows.jsonl", "fates.jsonl", "manifest.json"
Fate = Literal["kept", "changed", "dropped"]


class OrderedStep(NamedTuple):
    """A step with its options."""

    name: str
    options: StepOptions


@dataclass(slots=True)
class RowFate:
    """What became of a row."""

    place: str
    changes: list[str] = field(default_factory=list)
    dropped: str | None = None

    @property
    def fate(self) -> Fate:
        """In one word."""
        return "dropped" if self.dropped is not None else "changed" if self.changes else "kept"

    def plain(self) -> dict[str, Any]:
        """Return it as a line."""
        how = {"how": self.changes} if self.changes else {}
        why = {"why": self.dropped} if self.dropped is not None else {}
        return {"row": self.place, "fate": self.fate, **how, **why}


@dataclass(slots=True, kw_only=True)
class CleanedRows:
    """The rows that are left, and the fate of all."""

    rows: list[DataRow]
    fates: list[RowFate]
    changed_by: Counter[str]
    """Rows by step."""
    dropped_by: Counter[str]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were read, and what became of them."""
        by_fate = Counter(fate.fate for fate in self.fates)
        return {"read": len(self.fates)} | {name: by_fate[name] for name in ("kept", "changed", "dropped")}


def read_steps(ordered: Sequence[str | Mapping[str, Any]]) -> tuple[OrderedStep, ...]:
    """Return steps: NAME, NAME={"option": …}, or {"name": …, options}. Raises SettingsError that names the fault."""
    return tuple(map(_read_step, ordered))


def _read_step(ordered: str | Mapping[str, Any]) -> OrderedStep:
    if isinstance(ordered, str):
        name, _, in_json = ordered.partition("=")
        try:
            given = json_text.parse(in_json) if in_json else {}
        except ValueError as exc:
            raise SettingsError(f"step {name}: its options are not JSON: {exc}") from exc
    else:
        given = dict(ordered)
        name = str(given.pop("name", ""))
    if name == CONTAMINATION and not given:
        return OrderedStep(name, StepOptions())
    if name not in STEPS:
        raise SettingsError(f"there is no step {name!r}; {nearest(name, [*STEPS, CONTAMINATION])}")
    try:
        return OrderedStep(name, STEPS[name].options.model_validate_json(one_line(given)))
    except ValidationError as exc:
        raise SettingsError(f"step {name}: {next(faults(exc, STEPS[name].options, given)).text}") from exc


def clean(
    rows: Iterable[DataRow | UnreadableRow], steps: Sequence[OrderedStep], held_out: SuiteIndex | None = None
) -> CleanedRows:
    """Return what the steps leave of the rows. Raises SettingsError for `contamination` without suites."""
    fates: list[RowFate] = []
    places: list[int] = []
    left: list[DataRow] = []
    dropped_by, changed_by = Counter[str](), Counter[str]()
    for row in rows:
        if isinstance(row, DataRow):
            places.append(len(fates))
            left.append(row)
            fates.append(RowFate(row.place))
        else:
            dropped_by[row.step] += 1
            fates.append(RowFate(row.place, dropped=f"{row.step}: {row.why}"))
    for step in steps:
        after, after_places = [], []
        for row, number, outcome in zip(left, places, _outcomes(left, step, held_out), strict=True):
            if outcome.fields is None:
                dropped_by[step.name] += 1
                fates[number].dropped = f"{step.name}: {outcome.note}"
                continue
            if outcome.note:
                changed_by[step.name] += 1
                fates[number].changes.append(f"{step.name}: {outcome.note}")
                row = DataRow(row.place, outcome.fields)
            after.append(row)
            after_places.append(number)
        left, places = after, after_places
    return CleanedRows(rows=left, fates=fates, changed_by=changed_by, dropped_by=dropped_by)


def _outcomes(rows: Sequence[DataRow], step: OrderedStep, held_out: SuiteIndex | None) -> Iterator[RowOutcome]:
    if step.name != CONTAMINATION:
        return STEPS[step.name].run(rows, step.options)
    if held_out is None:
        raise SettingsError("step contamination: no suite is known; name one with --suite, or set guard.suite")
    return leave_out_held_out(rows, held_out)


# --- files ------------------------------------------------------------------------------------------------------------


def files_of(
    cleaned: CleanedRows,
    sources: Sequence[DataSource],
    steps: Sequence[OrderedStep],
    code_version: str,
    entries: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """Return the files of a cleaned set, by name; `entries`: what is added to its manifest."""
    lines = "".join(f"{one_line(dict(row.fields))}\n" for row in cleaned.rows).encode()
    fates = "".join(f"{one_line(fate.plain())}\n" for fate in cleaned.fates).encode()
    manifest = manifest_of(cleaned, sources, steps, code_version) | dict(entries or {})
    manifest["files"] = [
        {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in ((ROWS, lines), (FATES, fates))
    ]
    return {ROWS: lines, FATES: fates, MANIFEST: f"{one_line(manifest, indent=1)}\n".encode()}


def manifest_of(
    cleaned: CleanedRows, sources: Sequence[DataSource], steps: Sequence[OrderedStep], code_version: str
) -> dict[str, Any]:
    """Return what a set was made of and how, without its files."""
    return {
        "manifest_version": MANIFEST_VERSION,
        "code_version": code_version,
        "sources": [source._asdict() for source in sources],
        "steps": [{"name": step.name, **step.options.model_dump(mode="json")} for step in steps],
        "counts": cleaned.counts,
        "changed_by": dict(sorted(cleaned.changed_by.items())),
        "dropped_by": dict(sorted(cleaned.dropped_by.items())),
        "shapes": dict(sorted(Counter(shape_of(row.fields) for row in cleaned.rows).items())),
    }


def write(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write the files into `folder`, which appears whole. Raises RefusedError if it holds anything, SettingsError."""
    with half_written(folder) as half:
        for name, content in contents.items():
            (half / name).write_bytes(content)
        half.chmod(0o755)
        half.replace(folder)
