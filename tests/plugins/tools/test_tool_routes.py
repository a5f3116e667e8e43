"""Routes of registered tools: rights, also by MCP, and names of fields."""

from __future__ import annotations

from plugins.tools.rooms.registered_tools import RemovedEntry, ToolRow
from plugins.tools.rooms.tools_part import ToolsPart
from tests.unit.test_denied_everywhere import Principal, check_denied, check_rights, each_principal


def test_a_route_asks_for_the_right_to_what_it_writes() -> None:
    writes = ("self._tools.add", "self._tools.accept", "self._tools.remove", "self._log.registry(ToolLog).add")
    check_rights(ToolsPart.ROOMS, dict.fromkeys(writes, ("code.run",)))


@each_principal
def test_registered_tools_are_denied_as_their_routes_are(principal: Principal) -> None:
    check_denied(
        principal,
        ("/mcp/registered", "tools/list", {}, "GET", "/mcp/tools"),
        ("/mcp/registered", "tools/call", {"name": "x"}, "POST", "/mcp/tools/x/invoke"),
    )


def test_a_tool_has_one_name_in_answers() -> None:
    for answer in (ToolRow, RemovedEntry):
        assert "tool_id" in answer.model_fields and "id" not in answer.model_fields
