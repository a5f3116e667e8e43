"""Situations F35 to F44 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text never becomes structure"
SITUATIONS: tuple[Situation, ...] = ()
