"""Situations F85 to F94 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "The archive in every engine"
SITUATIONS: tuple[Situation, ...] = ()
