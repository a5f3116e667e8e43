"""docs/known-failures.md: what others get wrong, what prevents it here, and the tests that hold it, from rows.py.

python -m tests.known_failures           write the page
python -m tests.known_failures --check   exit 1 if the page would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.generated_page import write_or_check
from tests.known_failures.rows import FAILURES, KnownFailure

PAGE = Path(__file__).parents[2] / "docs" / "known-failures.md"
BEGIN = """# Known failures of recorders, and what prevents them here

Recording an agent so that it can be trained on is easy to get nearly right. These are the ways in which other projects
were seen to get it wrong, each with the measure against it and the tests that hold the measure. "Proven": the test is
run with the naive way in the place of the measure, and has to fail (`tests/unit/test_known_failures.py`).

`python -m tests.known_failures` writes this page.

| | what goes wrong elsewhere | here | held by |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    return BEGIN + "".join(
        f"| {row.number} | {row.others} | {row.measure or 'Cannot occur. ' + row.never} | {_held_by(row)} |\n"
        for row in FAILURES
    )


def _held_by(row: KnownFailure) -> str:
    proven = dict.fromkeys(name.partition("[")[0] for name in row.proofs)
    parts = [", ".join(f"`{name}`" for name in names) for names in (proven, row.elsewhere)]
    return "; ".join(part for part in ("proven: " * bool(parts[0]) + parts[0], parts[1]) if part)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
