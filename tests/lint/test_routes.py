"""What a new route or a new action has to be written into besides its declaration: what is missing, and where."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from gateway.http.route import BODY_BYTES, BODY_VALUES, CONVERSATION, LARGE_BODY, routes_of
from gateway.rooms.routes import PARTS, ROUTES, TABLE
from streams.access.roles import ACTIONS, ROLES, allowed_to

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
"""The page whose table says what a role may; each cell of it is a case of tests/unit/test_roles.py."""
OPEN = {"GET /healthz"}
"""Routes that need no key: probes. Those of a plugin are in its own tests."""


def _cells() -> list[tuple[str, str, bool]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Roles\n")[2].partition("\n## ")[0]
    heading, _, *rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [
        (action, role.strip(), cell.strip() == "yes")
        for actions, *cells in rows
        for action in re.findall("`(.+?)`", actions)
        for role, cell in zip(heading[1:], cells, strict=True)
    ]


CELLS = _cells()
"""Whether an action is allowed to a role."""


def test_the_table_of_roles_has_each_action_once() -> None:
    listed = Counter((action, role) for action, role, _ in CELLS)
    every = Counter((action, role) for action in ACTIONS for role in ROLES)
    assert not every - listed, f"{PAGE.name} lacks them under Roles"
    assert not listed - every, f"{PAGE.name} has them twice under Roles, or they are gone"


def test_every_route_has_a_right_except_those_that_are_listed_here() -> None:
    parts = [part for part in PARTS if part.__module__.startswith("plugins.")]
    of_plugins = {route for part in parts for room in part.ROOMS for route in routes_of(room)}
    of_plugins |= {route for part in parts for route in part.ROUTES}
    assert {f"{route.method} {route.path}" for route in {*TABLE.routes} - of_plugins if route.is_open} == OPEN


def test_only_conversations_questions_and_files_may_be_as_long_as_the_setting_says() -> None:
    """Each route declares a bound of `gateway/http/route.py`. One that anybody or a viewer may call takes little."""
    for route in (route for route in ROUTES if route.takes is not None):
        bounds = {"max_bytes": route.max_bytes, "max_values": route.max_values}
        if bounds in (CONVERSATION, LARGE_BODY):
            orders = route.name in ("call_jsonrpc", "check_rows")  # a viewer's right is enough for the least of these
            assert not route.is_open and (orders or route.may not in allowed_to("viewer")), (
                f"{route.name} takes too much"
            )
            is_ours = not route.interface.described_in
            assert not is_ours or (bounds == CONVERSATION) == (route.may == "chat.call"), route.name
        else:
            assert route.max_bytes is not None and route.max_bytes <= BODY_BYTES, f"{route.name} has no bound"
            assert route.max_values == BODY_VALUES, f"{route.name} has a bound of its own"
