"""A route that decides about a run asks for the right to judge runs, and self-play for that to submit tasks."""

from __future__ import annotations

from plugins.improve.rooms.improve_part import ImprovePart
from tests.unit.test_denied_everywhere import check_rights


def test_a_route_asks_for_the_right_to_what_it_writes() -> None:
    check_rights(ImprovePart.ROOMS, {"self._verdicts.decide": ("runs.judge",), "runner.ask_once": ("tasks.submit",)})
