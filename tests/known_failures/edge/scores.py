"""Situations F65 to F74 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Rewards read what people write"
SITUATIONS: tuple[Situation, ...] = ()
