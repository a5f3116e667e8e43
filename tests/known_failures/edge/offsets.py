"""Offsets have holes: F75 to F84; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Offsets have holes"
SITUATIONS: tuple[Situation, ...] = ()
