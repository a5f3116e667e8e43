"""View `registered_agents` and the list of agents, each with its newest runs."""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ListSection, ViewList

_AGENTS = """
SELECT agent_id, name, type, kind AS state, model_id, prompt, list_transform(tools, lambda t: t.name) AS tools,
    capabilities, memory_config, program, created_at AS changed_at, _partition, _offset, _timestamp
FROM agents QUALIFY row_number() OVER (PARTITION BY agent_id ORDER BY _partition, _offset DESC) = 1
"""
VIEWS = (
    SqlView("registered_agents", "agents", "one row per agent: what answers it, its prompt and its tools",
            "starts_with(agent_id, {prefix})", _AGENTS),
)  # fmt: skip
LISTS = (
    ViewList(
        "agents",
        "Agents",
        "registered_agents",
        columns=("agent_id", "name", "type", "state", "model_id", "prompt", "tools", "changed_at"),
        order="changed_at DESC",
        filters=("type", "state"),
        key="agent_id",
        facts=("capabilities", "memory_config", "program"),
        sections=(
            ListSection(
                "Newest runs",
                "runs",
                ("answer_id", "scenario", "ending", "reward", "verdict", "turns", "tool_calls", "sampled_tokens"),
                "agent_id = {key}",
                "began_ms DESC",
            ),
        ),
    ),
)
