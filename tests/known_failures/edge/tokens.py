"""Situations F45 to F54 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Ends of an answer, and tokens that may be drawn"
SITUATIONS: tuple[Situation, ...] = ()
