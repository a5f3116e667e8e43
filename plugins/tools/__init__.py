"""The registry of tools: functions, URLs, MCP servers and environments by name, with trusted descriptions.

    agents tools add, POST /mcp/tools ──► tools ──► ToolState of each entry ──► tasks and agents that name them
    what its server describes now ──► as accepted: called ──► otherwise: seen, refused until a person accepts it

An entry's tools are called over HTTP, by MCP at /mcp/registered, and over the WebSocket /mcp/stream.
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="tools",
    requires=("environments",),
    topics="plugins.tools.topics:TOPICS",
    commands={
        "agents tools": PluginCommand("plugins.tools.commands:tools", "Register tools and environments by name.")
    },
    views="plugins.tools.tool_lists:VIEWS",
    lists="plugins.tools.tool_lists:LISTS",
    serves="plugins.tools.rooms.tools_part:ToolsPart",
    recounts="plugins.tools.recount_tools:RECOUNTS",
    metrics="plugins.tools.tool_metrics:METRICS",
    alerts="plugins.tools.tool_metrics:ALERTS",
    line_steps={"tool_ids": "plugins.tools.registry.line_names:ToolIdsStep"},
    extends={"environments": "plugins.tools.registry.line_names:ENVIRONMENT_NAMES"},
    toolsets={"registered": "plugins.tools.rooms.registered_box:RegisteredBox"},
)
