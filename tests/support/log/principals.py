"""The principals of docs/install.md, and what each may do: its row of the table, as rights for a secured node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support.log.secured_node import Right

PAGE = Path(__file__).parents[3] / "docs" / "install.md"
PRINCIPALS = (
    "topics",
    "streams",
    "scoring",
    "policy",
    "trainer",
    "serve",
    "agents",
    "jobs",
    "tuner",
    "calls",
    "curate",
    "datasets",
    "retrain",
    "selfplay",
    "audit",
    "archive",
)


class Row(NamedTuple):
    """One row of the table: names of topics without their prefix, or with * at their end all that begin so."""

    creates: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def row_of(name: str) -> Row:
    """Return a principal's row."""
    found = re.search(rf"^\| `{name}` \|(.*)\|(.*)\|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"docs/install.md has no row for {name}"
    return Row(*(tuple(re.findall(r"`([^`]+)`", cell)) for cell in found.groups()))


def rights(name: str, prefix: str) -> list[Right]:
    """Return what a principal may do, and no more, on topics with this prefix."""
    creates, reads, writes = ([f"{prefix}{label}" for label in cell] for cell in row_of(name))
    return [
        *(Right(("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"), "TOPIC", names) for names in creates),
        *(Right(("READ", "DESCRIBE_CONFIGS"), "TOPIC", names) for names in reads),
        *(Right(("READ",), "GROUP", names) for names in reads),
        *(Right(("WRITE",), "TOPIC", names) for names in writes),
    ]
