"""The results as tables in docs/reliability.md, and as JSON lines beneath them.

    lines ──► one row a fault, its seeds together, and a line for each run ──► between the markers

Not covered: anything outside the markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]
COLUMNS = (
    "#", "fault", "seeds", "produced", "acknowledged", "unknown", "lost", "doubled", "phantom", "repeated",
    "recovery s, most", "result",
)  # fmt: skip
KEPT = (
    "fault", "number", "seed", "faust", "driver", "produced", "acknowledged", "unknown", "failed", "lost", "doubled",
    "phantom", "repeated", "out_of_order", "recovery_s", "events_per_s", "passed", "not_shown",
)  # fmt: skip


def write(document: str, lines: Iterable[Line]) -> str:
    """Return the document with these runs in it. Raises ValueError if it lacks a marker."""
    runs = {
        _key(line): line
        for line in [*recorded(document), *({k: v for k, v in line.items() if k in KEPT} for line in lines)]
    }
    ordered = [runs[key] for key in sorted(runs)]
    for driver, name in (("faust", "matrix"), ("loop", "loop"), ("mixed", "mixed")):
        of_driver = [line for line in ordered if _driver(line) == driver and line.get("faust") != "stock"]
        document = _between(document, name, _table(of_driver))
    document = _between(document, "stock", _table([line for line in ordered if line.get("faust") == "stock"]))
    return _between(document, "runs", "\n".join(["```json", *map(json.dumps, ordered), "```"]))


def recorded(document: str) -> list[Line]:
    """Return the runs that the document has."""
    block = re.search(r"<!-- runs:begin -->\n```json\n(.*?)```\n<!-- runs:end -->", document, re.DOTALL)
    return [json.loads(text) for text in block[1].splitlines()] if block else []


def _key(line: Line) -> tuple[int, str, str, str, int]:
    return (line["number"], line["fault"], line.get("faust", "fixed"), _driver(line), line["seed"])


def _driver(line: Line) -> str:
    return str(line.get("driver", "faust"))


def _between(document: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in document or end not in document:
        raise ValueError(f"the document has no lines {begin} and {end}; put them where the results belong")
    before, rest = document.split(begin, 1)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"


def _table(lines: list[Line]) -> str:
    by_fault: dict[str, list[Line]] = {}
    for line in lines:
        by_fault.setdefault(line["fault"], []).append(line)
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(runs) for runs in by_fault.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(runs: list[Line]) -> tuple[str, ...]:
    first = runs[0]
    shown = [run for run in runs if "not_shown" not in run]
    sums = [str(sum(run.get(name) or 0 for run in shown)) for name in COLUMNS[3:10]]
    seconds = [run.get("recovery_s") for run in shown]
    recovery = "never" if None in seconds else f"{max(seconds, default=0):g}"
    passed = sum(run["passed"] for run in shown)
    result = f"{passed} of {len(shown)} passed" if shown else f"not shown: {first['not_shown']}"
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return (str(first["number"]), first["fault"], seeds, *sums, recovery, result)
