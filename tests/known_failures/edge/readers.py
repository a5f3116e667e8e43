"""Text, tables and messages: F55 to F64; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Text, tables and messages"
SITUATIONS: tuple[Situation, ...] = ()
