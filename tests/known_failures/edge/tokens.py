"""What ends an answer, what may be drawn, what is never text: F45 to F54; rows.py has those that are proven by taking the measure away."""

from __future__ import annotations

from tests.known_failures.edge.situation import Situation

TITLE = "What ends an answer, what may be drawn, what is never text"
SITUATIONS: tuple[Situation, ...] = ()
