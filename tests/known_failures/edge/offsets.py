"""Situations F75 to F84 at the edge, but for those that rows.py proves."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "Offsets have holes"
SITUATIONS: tuple[Situation, ...] = ()
