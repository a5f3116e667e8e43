"""docs/known-failures.md: failures of other recorders, the measures here and their tests, from rows.py,
bad_input.py and edge/.

python -m tests.known_failures           write the page
python -m tests.known_failures --check   exit 1 if the page would change
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.generated_page import write_or_check
from tests.known_failures.bad_input import INPUTS
from tests.known_failures.edge import archive, assistants, loops, offsets, readers, scores, structure, tokens
from tests.known_failures.edge.situation import Situation
from tests.known_failures.rows import FAILURES, KnownFailure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "known-failures.md"
BEGIN = """# Known failures of recorders, and what prevents them here

Recording an agent for training is easy to get almost right. These are failures seen in other projects, each with the
measure against it and the tests of that measure. "Proven" means that the test also runs with the naive approach instead
of the measure, and must fail then (`tests/unit/test_known_failures.py`).

`python -m tests.known_failures` writes this page.

| | failure elsewhere | here | tests |
|---|---|---|---|
"""
INPUT = """
## Bad input

Unexpected behaviour of clients and agents. Errors have the format of the protocol in use, and the next call is answered
as usual.

| | response to the client, or effect on the agent | in the log | tests |
|---|---|---|---|
"""

EDGE = """
## At the edge

Unusual inputs by kind, each covered by tests. The first table has further cases of each kind.
"""
KINDS = (structure, tokens, readers, scores, offsets, archive, assistants, loops)


def page() -> str:
    """Return the page."""
    failures = (
        f"| {row.number} | {row.others} | {row.measure or 'Cannot occur. ' + row.never} | {_held_by(row)} |\n"
        for row in FAILURES
    )
    inputs = (f"| {one.what} | {one.answer} | {one.log} | {_names(one.tests)} |\n" for one in INPUTS)
    edge = (_table(kind.TITLE, kind.SITUATIONS) for kind in KINDS if kind.SITUATIONS)
    return BEGIN + "".join(failures) + INPUT + "".join(inputs) + EDGE + "".join(edge)


def _table(title: str, situations: Iterable[Situation]) -> str:
    head = f"\n### {title}\n\n| | input | result | tests |\n|---|---|---|---|\n"
    return head + "".join(f"| {row.number} | {row.what} | {row.result} | {_names(row.tests)} |\n" for row in situations)


def _held_by(row: KnownFailure) -> str:
    parts = _names(dict.fromkeys(name.partition("[")[0] for name in row.proofs)), _names(row.elsewhere)
    return "; ".join(part for part in ("proven: " * bool(parts[0]) + parts[0], parts[1]) if part)


def _names(tests: Iterable[str]) -> str:
    """Return the tests that this tree has: those of a plugin that was removed are gone."""
    return ", ".join(f"`{name}`" for name in tests if not _is_of_missing_plugin(name))


def _is_of_missing_plugin(test: str) -> bool:
    folders = Path(test).parts[1:3]
    return folders[0] == "plugins" and not (ROOT / Path(*folders)).is_dir()


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
