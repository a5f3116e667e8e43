"""The results as a table in a document.

    result lines ──► rows by bench and case ──► between `<!-- bench:begin -->` and `<!-- bench:end -->`

A run of some benchmarks replaces their rows and leaves the others.

Not covered: anything outside the two markers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
COLUMNS = ("bench", "case", "ours", "peer", "unit", "ratio", "target", "peer is", "machine")


def write(document: str, lines: Iterable[dict[str, Any]]) -> str:
    """Return the document with the rows of these results. Raises ValueError if it lacks the markers."""
    if BEGIN not in document or END not in document:
        raise ValueError(f"the document has no lines {BEGIN} and {END}; put them where the table belongs")
    before, rest = document.split(BEGIN, 1)
    old, after = rest.split(END, 1)
    rows = {tuple(row[:2]): row for row in map(_cells, old.splitlines()) if len(row) == len(COLUMNS)}
    rows = {key: row for key, row in rows.items() if key[0] not in ("bench", "---")}
    fresh = [_row(line) for line in lines]
    run = {row[0] for row in fresh}
    rows = {key: row for key, row in rows.items() if key[0] not in run} | {(row[0], row[1]): row for row in fresh}
    every = [list(COLUMNS), ["---"] * len(COLUMNS), *(rows[key] for key in sorted(rows))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in every)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip().strip("|").split("|")]


def _row(line: dict[str, Any]) -> list[str]:
    machine = line["machine"]
    target = f"≥ {line['target']:g}, {'met' if line['met'] else 'missed'}" if "target" in line else ""
    return [
        line["bench"],
        line["case"],
        f"{line['ours']:g}",
        f"{line['peer']:g}",
        line["unit"],
        f"{line['ratio']:g}",
        target,
        line["peer_is"].replace("|", "/"),
        f"{machine['cpu']}, {machine['cores']} cores",
    ]
