"""Views of runs that act: `run_calls` (a row per result of a call), `run_steps` (per call) and `run_tree` (per run).

threads: call_begun, call_ended ──► run_calls: run, agent, tool, arguments, result, error, duration, attempts
threads: run_answered, call_begun, run_paused, run_resumed, call_ended ──► run_steps: the call, and its state
threads: run_requested, run_ended ──► run_tree: run, the run and the call that it answers, depth, agent, ending
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ListSection, ViewList

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
_STEPS = """
WITH requested AS (
    SELECT run_id, any_value(agent_id) AS agent_id FROM whole.threads WHERE kind = 'run_requested' GROUP BY run_id
), answers AS (
    FROM threads WHERE kind = 'run_answered'
    QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
), calls AS (
    SELECT thread_id, run_id, turn_id, created_at, unnest(messages[1].tool_calls) AS call,
        generate_subscripts(messages[1].tool_calls, 1) AS number, _partition, _offset, _timestamp FROM answers
), begun AS (
    SELECT run_id, turn_id, call.call_id AS call_id, max(call.child_run) AS child_run,
        max(call.remote_task) AS remote_task, bool_or(coalesce(call.handoff, false)) AS handoff
    FROM whole.threads WHERE kind IN ('call_begun', 'call_accepted') GROUP BY ALL
), ended AS (
    SELECT run_id, turn_id, call.call_id AS call_id, arg_min(coalesce(call.error, ''), _offset) AS error,
        arg_min(messages[1].content, _offset) AS result FROM whole.threads WHERE kind = 'call_ended' GROUP BY ALL
), paused AS (
    SELECT run_id, turn_id, wait.call_id AS call_id, max(_offset) AS paused_at, arg_max(wait, _offset) AS wait
    FROM (SELECT run_id, turn_id, _offset, unnest(waits) AS wait FROM whole.threads WHERE kind = 'run_paused')
    GROUP BY ALL
), resumed AS (
    SELECT run_id, said.call_id AS call_id, max(_offset) AS resumed_at, arg_max(said.result, _offset) AS result
    FROM (
        SELECT run_id, _offset, unnest(list_concat(
            list_transform(decisions, lambda d: {'call_id': d.call_id, 'result': NULL::VARCHAR}),
            list_transform(messages, lambda m: {'call_id': m.tool_call_id, 'result': m.content}))) AS said
        FROM whole.threads WHERE kind = 'run_resumed') GROUP BY ALL
), over AS (
    SELECT DISTINCT run_id FROM whole.threads WHERE kind IN ('run_ended', 'run_cancelled', 'run_deleted')
), cut AS (
    SELECT thread_id, max(_offset) AS cut_at FROM (
        FROM whole.threads WHERE kind = 'deleted' OR (kind = 'run_requested' AND if_busy = 'interrupt')
        QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
    ) GROUP BY thread_id
)
SELECT c.thread_id, c.run_id, q.agent_id, c.turn_id, c.call.id AS call_id, c.number, c.call.name AS name,
    c.call.arguments AS arguments, CASE WHEN e.error = '' THEN 'answered'
        WHEN s.result IS NOT NULL AND resumed_at > c._offset THEN 'answered'
        WHEN e.error IS NOT NULL THEN e.error
        WHEN o.run_id IS NOT NULL OR cut_at > c._offset THEN 'left'
        WHEN paused_at > coalesce(resumed_at, -1) THEN concat('waits for ', wait.waits_for)
        WHEN b.call_id IS NOT NULL THEN 'begun' ELSE 'open' END AS state,
    coalesce(e.result, s.result) AS result, wait.question AS question, b.child_run, b.remote_task,
    coalesce(b.handoff, false) AS handoff, c.created_at, c._partition, c._offset, c._timestamp
FROM calls AS c LEFT JOIN requested AS q USING (run_id) LEFT JOIN over AS o USING (run_id)
LEFT JOIN cut USING (thread_id)
LEFT JOIN begun AS b ON b.run_id = c.run_id AND b.turn_id = c.turn_id AND b.call_id = c.call.id
LEFT JOIN ended AS e ON e.run_id = c.run_id AND e.turn_id = c.turn_id AND e.call_id = c.call.id
LEFT JOIN paused AS p ON p.run_id = c.run_id AND p.turn_id = c.turn_id AND p.call_id = c.call.id
LEFT JOIN resumed AS s ON s.run_id = c.run_id AND s.call_id = c.call.id
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
_THREADS = """
WITH once AS (
    FROM threads QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
)
SELECT thread_id, arg_min(agent_id, _offset) FILTER (agent_id IS NOT NULL) AS agent_id,
    count(DISTINCT run_id) FILTER (kind = 'run_requested') AS runs,
    left(arg_min(messages[-1].content, _offset) FILTER (kind = 'run_requested' AND len(messages) > 0), 200) AS question,
    arg_max(kind, _offset) AS last_event, max(created_at) AS changed_at, min(_partition) AS _partition,
    max(_offset) AS _offset, max(_timestamp) AS _timestamp
FROM once GROUP BY thread_id
"""
_MESSAGES = """
WITH once AS (
    SELECT * REPLACE (max(agent_id) OVER (PARTITION BY thread_id, run_id) AS agent_id)
    FROM threads QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
)
SELECT thread_id, run_id, agent_id, kind, actor, message.role AS role, message.content AS content,
    list_transform(message.tool_calls, lambda c: concat(c.name, ' ', c.arguments)) AS calls, number, error, created_at,
    _partition, _offset, _timestamp
FROM (SELECT *, unnest(messages) AS message, generate_subscripts(messages, 1) AS number FROM once)
UNION ALL BY NAME
SELECT thread_id, run_id, agent_id, kind, actor, 0 AS number, error, created_at, _partition, _offset, _timestamp
FROM once WHERE len(messages) = 0 AND error IS NOT NULL
"""
OF_TENANT = "(starts_with(thread_id, {prefix}) OR starts_with(agent_id, {prefix}))"
_ABOUT = (
    ("thread_list", "one row per thread: its agent, its first question, and how many runs it has", _THREADS),
    ("thread_messages", "one row per message of a thread: its role, its text, its calls, and its run", _MESSAGES),
    ("run_calls", "one row per call of a tool by a run: its result, and how long it took", _CALLS),
    (
        "run_steps",
        "one row per call in an answer of a run: its state, also without a result, and what it waits for",
        _STEPS,
    ),
    (
        "run_tree",
        "one row per run of a thread: the run and the call that it answers, its depth, and how it ended",
        _TREE,
    ),
)
VIEWS = tuple(SqlView(name, "threads", about, OF_TENANT, sql) for name, about, sql in _ABOUT)
LISTS = (
    ViewList(
        "threads",
        "Threads",
        "thread_list",
        columns=("thread_id", "question", "agent_id", "runs", "last_event", "changed_at"),
        order="changed_at DESC",
        filters=("agent_id",),
        key="thread_id",
        sections=(
            ListSection(
                "Conversation",
                "thread_messages",
                ("role", "content", "calls", "error", "kind", "actor", "run_id", "created_at"),
                "thread_id = {key}",
                "_offset, number",
            ),
            ListSection(
                "Runs, and those of agents that answer their calls",
                "run_tree",
                ("run_id", "agent_id", "depth", "parent_id", "tool_id", "ending", "requested_at", "ended_at"),
                "thread_id = {key}",
                "requested_at",
            ),
            ListSection(
                "Calls of tools",
                "run_steps",
                ("run_id", "name", "arguments", "state", "result", "created_at"),
                "thread_id = {key}",
                "created_at, number",
            ),
        ),
    ),
    ViewList(
        "run-calls",
        "Calls of tools",
        "run_calls",
        columns=("run_id", "agent_id", "tool_id", "arguments", "result", "error", "duration_ms", "ended_at"),
        order="ended_at DESC",
        filters=("agent_id", "tool_id", "error"),
        links={"run_id": "run-trees/{run_id}"},
    ),
)
