"""Views of runs that act: `run_calls`, a row per result of a call, with its list, and `run_tree`, a row per run.

threads: call_begun, call_ended ──► run_calls: run, agent, tool, arguments, result, error, duration, attempts
threads: run_requested, run_ended ──► run_tree: run, the run and the call that it answers, depth, agent, ending
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
    e.call.duration_ms AS duration_ms, coalesce(b.attempts, 0) AS attempts, e.call.digest AS digest,
    e.call.remote_task AS remote_task, b.begun_at,
    e.created_at AS ended_at, e._partition, e._offset, e._timestamp
FROM ended AS e LEFT JOIN requested AS r USING (run_id)
LEFT JOIN begun AS b ON b.run_id = e.run_id AND b.turn_id = e.turn_id AND b.call_id = e.call.call_id
"""
_TREE = """
WITH requested AS (
    FROM threads WHERE kind = 'run_requested'
    QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY _partition, _offset) = 1
), ended AS (
    SELECT run_id, arg_min(coalesce(ending, 'cancelled'), created_at) AS ending, min(created_at) AS ended_at
    FROM whole.threads WHERE kind IN ('run_ended', 'run_cancelled') GROUP BY run_id
), called AS (
    SELECT call.child_run AS run_id, any_value(call.tool_id) AS tool_id,
        bool_or(coalesce(call.handoff, false)) AS handoff
    FROM whole.threads WHERE kind = 'call_begun' AND call.child_run IS NOT NULL GROUP BY call.child_run
)
SELECT r.thread_id, r.run_id, r.parent.run_id AS parent_id, coalesce(r.parent.depth, 0) AS depth, r.agent_id,
    r.parent.call_id AS call_id, c.tool_id, coalesce(c.handoff, false) AS handoff, e.ending,
    r.created_at AS requested_at, e.ended_at, r._partition, r._offset, r._timestamp
FROM requested AS r LEFT JOIN ended AS e USING (run_id) LEFT JOIN called AS c USING (run_id)
"""
VIEWS = (
    SqlView(
        "run_calls",
        "threads",
        "one row per call of a tool by a run: its result, and how long it took",
        "(starts_with(thread_id, {prefix}) OR starts_with(agent_id, {prefix}))",
        _CALLS,
    ),
    SqlView(
        "run_tree",
        "threads",
        "one row per run of a thread: the run and the call that it answers, its depth, and how it ended",
        "(starts_with(thread_id, {prefix}) OR starts_with(agent_id, {prefix}))",
        _TREE,
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
