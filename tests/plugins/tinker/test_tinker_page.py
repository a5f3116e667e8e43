"""docs/tinker.md tells the truth: its commands print what it says, and it has every route and loss, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.http.route import routes_of
from gateway.rooms.routes import ROUTES
from plugins.tinker.api.call_part import CallPart
from plugins.tinker.api.interface import TINKER
from plugins.tinker.api.not_offered import TinkerNotOffered
from plugins.tinker.calls.call_forms import CUSTOM, LOSSES, PROVENANCE
from tests import readme
from tests.support.log.shared_node import SharedNode

NAME = "docs/tinker.md"
PAGE = (readme.ROOT / NAME).read_text(encoding="utf-8")
REFUSED = {"/save_weights_external"} | {route.path for route in routes_of(TinkerNotOffered)}


@pytest.mark.kafka
@pytest.mark.docs
def test_every_command_of_the_page_prints_what_the_page_says(shared_node: SharedNode, tmp_path: Path) -> None:
    readme.check_page_at(shared_node, NAME, tmp_path, prefix="loops.")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    (table,) = re.findall(rf"^## {heading}\n.*?\n\| --- .*?\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_page_has_every_route_and_says_which_are_refused() -> None:
    listed = {route.strip("`"): fate for route, fate in rows("Routes")}
    assert set(listed) == {f"{route.method} {route.path}" for route in ROUTES if route.interface is TINKER}
    assert {route.partition(" ")[2] for route, fate in listed.items() if fate.startswith("refused: ")} == REFUSED


def test_two_routes_need_no_key() -> None:
    own = [route for room in CallPart.ROOMS for route in routes_of(room)]
    assert {route.path for route in own if route.is_open} == {"/healthz", "/auth/token"}


def test_the_page_has_every_loss_with_its_inputs_and_settings() -> None:
    listed = {loss.strip("`"): (inputs, settings) for loss, inputs, _, settings, _ in rows("Losses")}
    assert set(listed) == {*LOSSES, CUSTOM}
    for name, form in LOSSES.items():
        same = re.match("as `([^`]+)`", listed[name][1])
        cells = (listed[name][0], listed[same[1] if same else name][1])
        inputs, settings = (set(re.findall("`([^`]+)`", cell)) for cell in cells)
        assert inputs == {*form.inputs, *form.optional} - set(form.config) and settings == set(form.config), name
        assert ("provenance" in listed[name][0]) == (name == PROVENANCE)
