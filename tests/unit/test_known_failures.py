"""Each known failure of recorders has a measure, and tests that fail as soon as the measure is taken away.

row ──► the naive way in the measure's place ──► its tests, called as they are ──► they fail, with an assertion
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.known_failures import sabotage
from tests.known_failures.__main__ import KINDS
from tests.known_failures.bad_input import INPUTS
from tests.known_failures.rows import FAILURES, KnownFailure

ROOT = Path(__file__).parents[2]
PROVEN = [(row, proof) for row in FAILURES for proof in row.proofs]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_failure_has_a_proof_or_a_reason_why_it_cannot_occur() -> None:
    numbers = [int(row.number.removeprefix("F")) for row in FAILURES]
    assert numbers == sorted(set(numbers)) and numbers[:34] == [*range(1, 35)]
    for row in FAILURES:
        assert bool(row.measure) == bool(row.proofs) == bool(row.naive) != bool(row.never), row.number


def test_each_situation_at_the_edge_has_a_number_of_its_kind_and_tests() -> None:
    proven = [row.number for row in FAILURES]
    for first, kind in zip(range(35, 115, 10), KINDS, strict=True):
        numbers = [row.number for row in kind.SITUATIONS]
        assert set(numbers) <= {f"F{first + place}" for place in range(10)} - set(proven), kind.TITLE
        assert numbers == sorted(set(numbers), key=lambda number: int(number.removeprefix("F"))) and all(
            row.tests for row in kind.SITUATIONS
        ), kind.TITLE


NAMED = (
    {row.number: (*row.proofs, *row.elsewhere) for row in FAILURES}
    | {one.what: one.tests for one in INPUTS}
    | {row.number: row.tests for kind in KINDS for row in kind.SITUATIONS}
)


@pytest.mark.parametrize("tests", NAMED.values(), ids=NAMED)
def test_every_test_that_a_row_names_is_there(tests: tuple[str, ...]) -> None:
    for named in tests:
        file, _, test = named.partition("[")[0].partition("::")
        assert test in functions(file), named


@pytest.mark.parametrize(("row", "proof"), PROVEN, ids=[f"{row.number}-{proof}" for row, proof in PROVEN])
def test_without_its_measure_a_failure_is_noticed(row: KnownFailure, proof: str) -> None:
    test, cases = found(proof)
    assert cases, f"{proof} has no such case"
    with pytest.MonkeyPatch.context() as patch:
        getattr(sabotage, row.naive)(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            for case in cases:
                test(**case)


def found(proof: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return a test, and the arguments of each of its cases, or of the one that is named."""
    path, _, name = proof.partition("::")
    name, _, wanted = name.partition("[")
    test = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    return test, [case for called, case in cases_of(test) if wanted.rstrip("]") in ("", called)]


def cases_of(test: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of each case; of combined ones the names do not count."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in product(*map(_cases_of_mark, marks)):
        called = chosen[0][0] if len(chosen) == 1 else ""
        yield called, {name: value for _, case in chosen for name, value in case.items()}


def _cases_of_mark(mark: pytest.Mark) -> Iterator[tuple[str, dict[str, Any]]]:
    names = [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
    values = list(mark.args[1])
    for called, given in zip(mark.kwargs.get("ids") or [""] * len(values), values, strict=True):
        yield str(called), dict(zip(names, given if len(names) > 1 else (given,), strict=True))
