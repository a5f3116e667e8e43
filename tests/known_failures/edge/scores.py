"""Rewards read what people write: F65 to F74; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Rewards read what people write"
SITUATIONS: tuple[Situation, ...] = ()
