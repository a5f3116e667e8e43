"""The tables of docs/reliability.md: what was run, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.table import recorded, write

EMPTY = "\n".join(
    f"<!-- {name}:begin -->\n<!-- {name}:end -->" for name in ("matrix", "loop", "mixed", "stock", "runs")
)
DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"


def line(**changes: Any) -> dict[str, Any]:
    return {
        "fault": "broker-kill", "number": 5, "seed": 1, "faust": "fixed", "produced": 3000, "acknowledged": 3000,
        "unknown": 0, "failed": 0, "lost": 0, "doubled": 0, "phantom": 0, "repeated": 4, "recovery_s": 7.5,
        "passed": True, "complaints": [], "ends": {},
    } | changes  # fmt: skip


def rows(document: str, name: str) -> list[list[str]]:
    table = document.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()[2:]]


def test_the_seeds_of_a_fault_are_one_row_of_sums_and_the_longest_recovery() -> None:
    (row,) = rows(write(EMPTY, [line(), line(seed=2, recovery_s=9.0, lost=1, passed=False)]), "matrix")
    assert row == ["5", "broker-kill", "1, 2", "6000", "6000", "0", "1", "0", "0", "8", "9", "1 of 2 passed"]


def test_a_run_is_replaced_by_its_repetition_and_others_stay() -> None:
    document = write(EMPTY, [line(), line(fault="sigterm", number=2)])
    document = write(document, [line(lost=2)])
    assert [(run["fault"], run["lost"]) for run in recorded(document)] == [("sigterm", 0), ("broker-kill", 2)]


def test_each_driver_has_a_table_of_its_own() -> None:
    document = write(EMPTY, [line(), line(driver="loop", repeated=8), line(driver="mixed", repeated=9)])
    assert [rows(document, name)[0][9] for name in ("matrix", "loop", "mixed")] == ["4", "8", "9"]
    assert len(recorded(document)) == 3


def test_stock_faust_has_a_table_of_its_own() -> None:
    document = write(EMPTY, [line(), line(faust="stock", lost=57, recovery_s=None, passed=False)])
    assert (rows(document, "matrix")[0][6], rows(document, "stock")[0][6]) == ("0", "57")
    assert (rows(document, "matrix")[0][10], rows(document, "stock")[0][10]) == ("7.5", "never")


def test_a_fault_that_could_not_be_shown_says_why() -> None:
    shown = {"fault": "wrong-clocks", "number": 10, "seed": 1, "passed": True, "not_shown": "no C compiler"}
    (row,) = rows(write(EMPTY, [shown]), "matrix")
    assert row[-1] == "not shown: no C compiler"


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="matrix:begin"):
        write("# Reliability", [line()])


def test_the_tables_of_the_document_are_those_of_its_runs() -> None:
    document = DOCS.read_text(encoding="utf-8")
    assert write(document, []) == document
