"""Registered tools by MCP: denied as their routes are."""

from __future__ import annotations

from tests.unit.test_denied_everywhere import Principal, check_denied, each_principal


@each_principal
def test_registered_tools_are_denied_as_their_routes_are(principal: Principal) -> None:
    check_denied(
        principal,
        ("/mcp/registered", "tools/list", {}, "GET", "/mcp/tools"),
        ("/mcp/registered", "tools/call", {"name": "x"}, "POST", "/mcp/tools/x/invoke"),
    )
