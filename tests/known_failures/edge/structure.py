"""Text never becomes structure: F35 to F44; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text never becomes structure"
SITUATIONS: tuple[Situation, ...] = ()
