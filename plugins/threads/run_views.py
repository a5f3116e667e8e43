"""View `run_calls`: one row per call of a tool that a run has a result of, and the list of them.

threads: run_requested, call_begun, call_ended ──► run, agent, tool, arguments, result, error, duration, attempts
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ViewList

_CALLS = """
WITH requested AS (
    SELECT run_id, any_value(agent_id) AS agent_id FROM whole.threads WHERE kind = 'run_requested' GROUP BY run_id
), begun AS (
    SELECT run_id, turn_id, call.call_id AS call_id, min(created_at) AS begun_at, count(DISTINCT event_id) AS attempts
    FROM whole.threads WHERE kind = 'call_begun' GROUP BY ALL
), ended AS (
    FROM threads WHERE kind = 'call_ended'
    QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
)
SELECT e.thread_id, e.run_id, r.agent_id, e.turn_id, e.call.call_id AS call_id, e.call.tool_id AS tool_id,
    e.call.arguments AS arguments, e.messages[1].content AS result, e.call.error AS error,
    e.call.duration_ms AS duration_ms, coalesce(b.attempts, 0) AS attempts, e.call.digest AS digest, b.begun_at,
    e.created_at AS ended_at, e._partition, e._offset, e._timestamp
FROM ended AS e LEFT JOIN requested AS r USING (run_id)
LEFT JOIN begun AS b ON b.run_id = e.run_id AND b.turn_id = e.turn_id AND b.call_id = e.call.call_id
"""
VIEWS = (
    SqlView(
        "run_calls",
        "threads",
        "one row per call of a tool by a run: its result, and how long it took",
        "(starts_with(thread_id, {prefix}) OR starts_with(agent_id, {prefix}))",
        _CALLS,
    ),
)
LISTS = (
    ViewList(
        "run-calls",
        "Calls of tools",
        "run_calls",
        columns=("run_id", "agent_id", "tool_id", "arguments", "result", "error", "duration_ms", "ended_at"),
        order="ended_at DESC",
        filters=("agent_id", "tool_id", "error"),
    ),
)
