"""The tools of our own MCP servers, as entries of the registry: a list that changed is in the log, and alarms.

    tools_of each set ──► Offer ──► added, once ──► changed, whenever a server starts that offers other tools
    entries that are described otherwise than accepted ──► gauge streamward_tools_changed ──► alert ToolsChanged

`streamward agents tools accept mcp:log` ends the alarm, with the name of the user. Nothing is refused meanwhile: a
client pins descriptions itself.
"""

from __future__ import annotations

import json
from importlib.metadata import version

from gateway.http.mcp_paths import MCP_PATHS, Toolset
from gateway.mcp.tools import tools_of
from schemas.events import Tool
from schemas.tool_text import offer_digest
from streams.environments.registry.tool_log import EntryOrder, RegistryDecision, ToolLog
from streams.environments.registry.tool_state import Offer
from streams.observability import catalog
from streams.observability.metrics import Meter

ACTOR = "serve"


def offer_of(toolset: Toolset) -> Offer:
    """Return every tool of a set, as an admin's key is shown them."""
    tools = tuple(
        Tool(name=tool.name, description=tool.description, parameters=json.dumps(tool.input_schema, sort_keys=True))
        for tool in tools_of(toolset)
    )
    return Offer(tools=tools, digest=offer_digest(tools), version=version("streamward"))


def record_own_tools(log: ToolLog) -> None:
    """Write the lists that the log does not have yet. Raises LogError."""
    for path, toolset in MCP_PATHS.items():
        if toolset == "registered":  # each is an entry itself
            continue
        name, offer = f"mcp:{toolset}", offer_of(toolset)
        if log.state(name).added is None:
            log.add(EntryOrder(name, path), offer, RegistryDecision(ACTOR, "the tools of the first server of this log"))
        else:
            log.note(name, offer, RegistryDecision(ACTOR, f"streamward {offer.version} offers other tools"))


def report_changes(log: ToolLog, meter: Meter) -> None:
    """Set the gauge of each entry: 1 if its newest description is not the accepted one."""
    for name, entry in log.entries.items():
        meter.set(catalog.TOOLS_CHANGED, 0.0 if entry.is_trusted else 1.0, name)
