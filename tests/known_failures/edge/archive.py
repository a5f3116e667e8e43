"""The archive in every engine: F85 to F94; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "The archive in every engine"
SITUATIONS: tuple[Situation, ...] = ()
