"""One situation at the edge, as the page lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Situation:
    """An input, and what comes out."""

    number: str
    what: str
    """What comes from outside, as concretely as a reader needs to try it."""
    result: str
    """What the program does with it."""
    tests: tuple[str, ...]
    """Tests that fail when it does something else."""
