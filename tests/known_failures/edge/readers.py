"""Situations F55 to F64 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text, tables and messages"
SITUATIONS: tuple[Situation, ...] = ()
