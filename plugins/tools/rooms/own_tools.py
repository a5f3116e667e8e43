"""The tools of our own MCP servers, as entries of the registry: a list that changed is in the log, and alarms.

    tools of each set ──► Offer ──► added, once ──► changed, whenever a server starts that offers other tools
    entries that are described otherwise than accepted ──► gauge streamward_tools_changed ──► alert ToolsChanged

`streamward agents tools accept mcp:log` ends the alarm, with the name of the user. Nothing is refused meanwhile: a
client pins descriptions itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from gateway.http.mcp_paths import MCP_PATHS
from plugins.tools.registry.tool_log import EntryOrder, RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import Offer
from plugins.tools.tool_metrics import TOOLS_CHANGED
from schemas.events import Tool
from schemas.tool_text import offer_digest
from streams.observability.metrics import Meter

ACTOR = "serve"


def record_own_tools(log: ToolLog, toolsets: Mapping[str, tuple[Tool, ...]]) -> None:
    """Write the lists that the log does not have yet. Raises LogError."""
    paths = {toolset: path for path, toolset in MCP_PATHS.items()}
    for toolset, tools in toolsets.items():
        name = f"mcp:{toolset}"
        offer = Offer(tools=tools, digest=offer_digest(tools), version=version("streamward"))
        if log.state(name).added is None:
            decision = RegistryDecision(ACTOR, "the tools of the first server of this log")
            log.add(EntryOrder(name, paths[toolset]), offer, decision)
        else:
            log.note(name, offer, RegistryDecision(ACTOR, f"streamward {offer.version} offers other tools"))


def report_changes(log: ToolLog, meter: Meter) -> None:
    """Set the gauge of each entry: 1 if its newest description is not the accepted one."""
    for name, entry in log.entries.items():
        meter.set(TOOLS_CHANGED, 0.0 if entry.is_trusted else 1.0, name)
