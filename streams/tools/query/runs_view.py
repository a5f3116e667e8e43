"""View `runs`: one row per conversation, agent's run, and answer to a task.

    responses without an agent ──► one turn each ───────────────────┐
    trajectories by conversation, turns, responses of agents ───────┴─► + tasks, groups, rewards, curation ──► runs

It has a column for each field of `FinishedRun`, with the same values: streams/tools/runs/run_row.py and tool_use.py
define them, and a property test compares the two. Open runs, and answers in open groups, are rows, too; their missing
figures are NULL. The last columns, `_label`, `_partition`, `_offset` and `_timestamp`, are the place of the run's first
record, in `trajectories` or `responses`.
"""

from __future__ import annotations

from collections.abc import Collection

from schemas.conventions import OUTSIDE_ENGINE
from streams.kafka.topics import SHAPES
from streams.settings.model import Settings
from streams.tools.query.conversation_runs import RUN_TURNS
from streams.tools.query.sql_view import SqlView
from streams.topics.shape import OWN_RUN

VERDICTS = "curation"
"""The topic of verdicts, if a loaded plugin has it."""
ENDS = """
steps AS (
    SELECT *, coalesce(metadata['conversation'], trajectory_id) AS conversation FROM whole.trajectories WHERE $OF_TASKS
    QUALIFY row_number() OVER (PARTITION BY trajectory_id, kind ORDER BY _partition, _offset) = 1
), parts AS (
    SELECT *, row_number() OVER run - 1 AS place, lead(run_id) OVER run IS NULL AS is_last,
        bool_and(has_ended) OVER (PARTITION BY conversation) AS all_ended FROM (
        SELECT conversation, trajectory_id AS run_id, task_id AS asked_id,
            coalesce(metadata['conversation'], task_id) AS row_task, bool_and(sampling_id IS NULL) AS is_chat,
            min(created_at) AS first_at, bool_or(kind = 'ended') AS has_ended FROM steps GROUP BY ALL)
    WINDOW run AS (PARTITION BY conversation ORDER BY first_at, run_id)
), owners AS (
    SELECT asked_id AS task_id, min(row_task) AS row_task FROM parts GROUP BY asked_id
), begun AS (
    SELECT s.* REPLACE (s.conversation AS trajectory_id, p.row_task AS task_id)
    FROM steps AS s JOIN parts AS p ON p.run_id = s.trajectory_id WHERE kind = 'started'
    QUALIFY row_number() OVER (PARTITION BY s.conversation ORDER BY place) = 1
), ended AS (
    SELECT s.* REPLACE (s.conversation AS trajectory_id)
    FROM steps AS s JOIN parts AS p ON p.run_id = s.trajectory_id WHERE kind = 'ended' AND all_ended
    QUALIFY row_number() OVER (PARTITION BY s.conversation ORDER BY place DESC) = 1
)
"""
"""How runs of agents began and ended, those of a conversation in order; from here on `trajectory_id` and `task_id` are
the conversation's. `owners`: of each task with such a run, the task of its row."""
TOOLS = """
once AS (
    SELECT turn_id, coalesce(p.conversation, trajectory_id) AS trajectory_id, trajectory_id AS run_id, task_id,
        coalesce(p.place, 0) * $RUN_TURNS + number AS number,
        _partition, _offset, adapter_version, continuity, choice, error,
        malformed, started_at, created_at, observed, error IS NULL AND delivered AS is_answered,
        CASE WHEN error IS NULL AND delivered THEN reply.tool_calls ELSE [] END AS calls,
        len(reply.tool_calls) AS writes, metadata['thread'] AS thread,
        len(prompt_token_ids) AS prompt_tokens, len(completion_token_ids) AS sampled_tokens,
        TRY(from_json(metadata['failed_tools'], '["VARCHAR"]')) AS failed_calls,
        CASE WHEN p.place > 0 AND parent_id IS NULL THEN list_max(list_transform(messages, lambda m, i:
            CASE WHEN m.role = 'assistant' THEN i ELSE 0 END)) ELSE 0 END AS repeated,
        list_filter(list_transform(messages, lambda m, i: CASE
            WHEN m.role = 'tool' AND observed IS NULL AND i > repeated THEN {
            'call': coalesce(nullif(m.tool_call_id, ''), concat(number, '.', i - 1)), 'place': i,
            'is_error': CASE WHEN contains(m.content, '"isError"') AND json_valid(m.content)
                THEN coalesce(CAST(json_extract(m.content, '$.isError') AS VARCHAR) = 'true', false) ELSE false END
        } END), lambda m: m IS NOT NULL) AS results
    FROM whole.turns LEFT JOIN parts AS p ON p.run_id = trajectory_id WHERE $OF_TASKS
    QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _partition, _offset) = 1
), placed AS (
    SELECT *, lag(is_answered) OVER run AS answered_before, lag(writes) OVER run AS writes_before,
        lead(number) OVER run IS NULL AS is_last, max(number) FILTER (is_answered) OVER (PARTITION BY trajectory_id)
            AS last_answer
    FROM once WINDOW run AS (PARTITION BY trajectory_id ORDER BY number, _partition, _offset)
), actions AS (
    SELECT trajectory_id, number, observed.tool AS tool, observed.ok AS ok, writes_before AS writes
    FROM placed WHERE observed.ok IS NOT NULL AND answered_before
    UNION ALL
    SELECT trajectory_id, 2147483647, e.observed.tool, e.observed.ok, p.writes
    FROM placed AS p JOIN ended AS e USING (trajectory_id)
    WHERE p.is_last AND p.is_answered AND e.observed.ok IS NOT NULL
), results AS (
    SELECT trajectory_id, r.call AS call, number, r.place AS place,
        NOT r.is_error AND NOT coalesce(list_contains(failed_calls, r.call), false) AS ok
    FROM (SELECT trajectory_id, number, failed_calls, unnest(results) AS r FROM placed)
    UNION ALL
    SELECT trajectory_id, concat('action ', number), number, 0, ok FROM actions WHERE tool IS NOT NULL OR writes > 0
), outcomes AS (
    SELECT trajectory_id, count(*) FILTER (NOT ok) AS failed_tools,
        count(*) FILTER (NOT ok AND number < last_success) AS recoveries
    FROM (
        SELECT *, max(number) FILTER (ok) OVER (PARTITION BY trajectory_id) AS last_success FROM (
            FROM results QUALIFY row_number() OVER (PARTITION BY trajectory_id, call ORDER BY number, place) = 1)
    ) GROUP BY trajectory_id
), called AS (
    SELECT trajectory_id, count(*) AS tool_calls,
        count(arguments) - count(DISTINCT (name, arguments)) FILTER (arguments IS NOT NULL) AS retries,
        count(*) FILTER (list_contains($ESCALATION_TOOLS, name)) AS escalations
    FROM (
        SELECT trajectory_id, c.name AS name, c.arguments AS arguments
        FROM (SELECT trajectory_id, unnest(calls) AS c FROM placed)
        UNION ALL SELECT trajectory_id, tool, NULL FROM actions WHERE tool IS NOT NULL AND writes = 0
    ) GROUP BY trajectory_id
), turned AS (
    SELECT trajectory_id, list_sort(list(DISTINCT adapter_version)) AS versions, count(*) AS turns,
        count(*) FILTER (error IS NOT NULL) AS failed_turns, count(*) FILTER (malformed IS NOT NULL) AS malformed,
        count(*) FILTER (continuity = 'rewrites') AS rewritten,
        count(*) FILTER (continuity IN ('forks', 'rewrites') AND choice = 0) AS rewrites,
        count(*) FILTER (error IS NOT NULL AND number < last_answer) AS recoveries,
        coalesce(arg_max(is_answered AND writes > 0, number) FILTER (continuity <> 'auxiliary'), false) AS waits,
        CAST(sum(prompt_tokens) AS BIGINT) AS prompt_tokens, CAST(sum(sampled_tokens) AS BIGINT) AS sampled_tokens,
        arg_min(thread, number) AS thread
    FROM placed GROUP BY trajectory_id
), lasted AS (
    SELECT trajectory_id, CAST(sum(ms) AS DOUBLE) AS latency_ms FROM (
        SELECT trajectory_id, max(epoch_ms(created_at)) - min(epoch_ms(started_at)) AS ms FROM placed
        GROUP BY trajectory_id, run_id) GROUP BY trajectory_id
), joined AS (
    SELECT conversation AS answer_id, list(run_id ORDER BY place) AS run_ids, any_value(is_chat) FILTER (is_last)
        AS is_chat, any_value(asked_id) FILTER (is_last) AS last_task FROM parts GROUP BY conversation
)
"""
"""Sums over the turns of each run, and the runs of each conversation."""
COURSES = """
written AS (
    SELECT w._partition, w._offset, w._timestamp, response_id, coalesce(conversation, response_id) AS answer_id,
        w.task_id, policy, agent_id, adapter_version, created_at,
        latency_ms, error, finish_reason, steps, success, prompt_tokens, completion_tokens,
        metadata['purpose'] AS purpose, epoch_ms(created_at) - CAST(trunc(latency_ms) AS BIGINT) AS began_ms
    FROM (FROM whole.responses WHERE $OF_TASKS) AS w SEMI JOIN (
        SELECT _partition, min(_offset) AS _offset FROM whole.responses WHERE $OF_TASKS AND $OF_AGENTS
        GROUP BY _partition, response_id
    ) USING (_partition, _offset) LEFT JOIN parts ON run_id = response_id WHERE coalesce(is_last, true)
), direct AS (
    SELECT response_id AS answer_id, task_id, policy, agent_id, metadata['purpose'] AS purpose, false AS is_chat,
        CASE WHEN adapter_version < 0 THEN [] ELSE [adapter_version] END AS versions,
        epoch_ms(created_at) - CAST(trunc(latency_ms) AS BIGINT) AS began_ms,
        epoch_ms(created_at) AS ended_ms, CASE WHEN error IS NULL THEN 'completed' ELSE 'failed' END AS ending,
        coalesce(error, finish_reason) AS reason, 1 AS turns, CAST(error IS NOT NULL AS INTEGER) AS failed_turns,
        0 AS malformed, 0 AS tool_calls, 0 AS failed_tools, 0 AS retries, 0 AS rewrites, 0 AS recoveries,
        0 AS escalations,
        latency_ms, prompt_tokens, completion_tokens AS sampled_tokens, success, engine = $OUTSIDE AS is_outside,
        TRY_CAST(metadata['cost_usd'] AS DOUBLE) AS own_usd, 'responses' AS _label, _partition, _offset, _timestamp
    FROM (FROM responses WHERE $OF_TASKS) SEMI JOIN (
        SELECT _partition, min(_offset) AS _offset FROM whole.responses WHERE $OF_TASKS AND NOT ($OF_AGENTS)
        GROUP BY _partition, response_id
    ) USING (_partition, _offset)
), agents AS (
    SELECT coalesce(metadata['conversation'], trajectory_id) AS answer_id FROM trajectories
    WHERE $OF_TASKS AND kind = 'started'
    UNION SELECT coalesce(conversation, response_id) FROM (FROM responses WHERE $OF_TASKS AND $OF_AGENTS)
    LEFT JOIN parts ON run_id = response_id
), of_agents AS (
    SELECT answer_id, coalesce(b.task_id, r.task_id) AS task_id, p.last_task AS last_task, p.run_ids AS run_ids,
        coalesce(r.policy, b.policy) AS policy,
        coalesce(r.agent_id, b.agent_id) AS agent_id, coalesce(b.purpose, r.purpose) AS purpose, t.thread AS thread,
        coalesce(p.is_chat, false) AS is_chat,
        CASE WHEN t.turns IS NOT NULL THEN t.versions WHEN r.adapter_version >= 0 THEN [r.adapter_version] ELSE [] END
            AS versions,
        coalesce(epoch_ms(b.created_at), r.began_ms) AS began_ms,
        epoch_ms(coalesce(e.created_at, r.created_at)) AS ended_ms,
        coalesce(CASE WHEN r.response_id IS NULL AND e.ending = 'completed' AND t.waits AND e.observed IS NULL
            AND e.output IS NULL
            THEN if(coalesce(e.metadata['waits_for'] = 'consent', false), 'waits_for_consent', 'waits_for_tool')
            ELSE e.ending END,
            CASE WHEN r.response_id IS NULL THEN NULL WHEN r.error IS NULL THEN 'completed' ELSE 'failed' END
        ) AS ending,
        coalesce(CASE WHEN e.ending = 'completed' THEN r.error END, e.reason, r.error, r.finish_reason) AS reason,
        coalesce(t.turns, r.steps, 0) AS turns,
        coalesce(t.failed_turns, 0) AS failed_turns, coalesce(t.malformed, 0) AS malformed,
        coalesce(c.tool_calls, 0) AS tool_calls, coalesce(o.failed_tools, 0) AS failed_tools,
        coalesce(c.retries, 0) + coalesce(t.rewritten, 0) AS retries, coalesce(t.rewrites, 0) AS rewrites,
        coalesce(o.recoveries, 0) + coalesce(t.recoveries, 0) AS recoveries, coalesce(c.escalations, 0) AS escalations,
        coalesce(CASE WHEN r.response_id = answer_id THEN r.latency_ms END, l.latency_ms, r.latency_ms, 0)
            AS latency_ms,
        coalesce(t.prompt_tokens, r.prompt_tokens, 0) AS prompt_tokens,
        coalesce(t.sampled_tokens, r.completion_tokens, 0) AS sampled_tokens,
        CASE WHEN r.response_id IS NULL THEN e.success ELSE r.success END AS success,
        CASE WHEN b.trajectory_id IS NULL THEN 'responses' ELSE 'trajectories' END AS _label,
        coalesce(b._partition, r._partition) AS _partition, coalesce(b._offset, r._offset) AS _offset,
        coalesce(b._timestamp, r._timestamp) AS _timestamp
    FROM agents LEFT JOIN begun AS b ON b.trajectory_id = answer_id LEFT JOIN ended AS e ON e.trajectory_id = answer_id
    LEFT JOIN written AS r USING (answer_id) LEFT JOIN joined AS p USING (answer_id)
    LEFT JOIN turned AS t ON t.trajectory_id = answer_id
    LEFT JOIN lasted AS l ON l.trajectory_id = answer_id
    LEFT JOIN called AS c ON c.trajectory_id = answer_id LEFT JOIN outcomes AS o ON o.trajectory_id = answer_id
)
"""
"""When each run began, how it ended, and its figures."""
JUDGED = """SELECT answer_id, arg_max(verdict, (labeller = 'person', _partition, _offset)) AS verdict FROM (
    FROM whole.curation WHERE $OF_TASKS
    QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
) GROUP BY answer_id
"""
"""The newest verdict on each run; one of a person counts before all others."""
UNJUDGED = "SELECT CAST(NULL AS VARCHAR) AS answer_id, CAST(NULL AS VARCHAR) AS verdict WHERE false"
"""In place of JUDGED where no loaded plugin has the topic `curation`."""
OPINIONS = """
asked AS (
    SELECT task_id,
        arg_min({'scenario': scenario, 'tenant': tenant, 'purpose': purpose, 'thread': thread}, _offset) AS t
    FROM whole.tasks WHERE $OF_TASKS GROUP BY task_id
), grouped AS (
    SELECT task_id, m.response_id AS answer_id,
        CASE WHEN purpose <> 'serve' OR cardinality(m.components) > 0 THEN m.reward END AS reward
    FROM (
        SELECT task_id, purpose, unnest(members) AS m FROM (FROM whole.groups WHERE $OF_TASKS) SEMI JOIN (
            SELECT _partition, min(_offset) AS _offset FROM whole.groups WHERE $OF_TASKS GROUP BY _partition, group_id
        ) USING (_partition, _offset))
), scored AS (
    SELECT task_id, response_id AS answer_id, coalesce(list_sum(list(cost ORDER BY source)), 0) AS cost_usd,
        map_from_entries(list((source, value) ORDER BY source) FILTER (value IS NOT NULL)) AS scores
    FROM (
        SELECT task_id, response_id, source, s.value AS value, s.cost AS cost FROM (
            SELECT task_id, response_id, source, arg_min({'value': value, 'cost': components['cost_usd']}, _offset) AS s
            FROM whole.rewards WHERE $OF_TASKS AND NOT starts_with(source, 'feedback/') GROUP BY ALL)
    ) GROUP BY ALL
), marked AS (
    SELECT coalesce(o.row_task, task_id) AS task_id, coalesce(p.conversation, answer_id) AS answer_id,
        first(reward ORDER BY reward IS NULL, cost_usd IS NULL, place DESC) AS reward,
        first(scores ORDER BY reward IS NULL, cost_usd IS NULL, place DESC) AS scores,
        list_sum(list(cost_usd ORDER BY place)) AS cost_usd
    FROM scored FULL JOIN grouped USING (task_id, answer_id) LEFT JOIN owners AS o USING (task_id)
    LEFT JOIN parts AS p ON p.run_id = answer_id GROUP BY ALL
), opinions AS (
    SELECT _partition, _offset, reward_id, task_id, response_id, value FROM whole.rewards
    WHERE $OF_TASKS AND starts_with(source, 'feedback/')
    QUALIFY row_number() OVER (PARTITION BY reward_id ORDER BY _partition, _offset) = 1
), rated AS (
    SELECT coalesce(c.row_task, o.task_id) AS task_id,
        coalesce(t.trajectory_id, p.conversation, o.response_id) AS answer_id,
        list_avg(list(coalesce(o.value, 0) ORDER BY o._partition, o._offset)) AS feedback
    FROM opinions AS o LEFT JOIN once AS t ON t.turn_id = o.response_id AND t.task_id = o.task_id
    LEFT JOIN parts AS p ON p.run_id = o.response_id LEFT JOIN owners AS c ON c.task_id = o.task_id GROUP BY ALL
), judged AS ($JUDGED)
"""
"""The task of each run, and the scores, opinions and verdict of its answer. Sums are in a fixed order."""
ROWS = """
SELECT a.answer_id, a.task_id, a.policy, a.agent_id,
    coalesce(q.t.scenario, CASE WHEN a.is_chat THEN 'chat' ELSE 'default' END) AS scenario,
    coalesce(q.t.tenant, CASE WHEN contains(a.agent_id, '.') THEN split_part(a.agent_id, '.', 1) END) AS tenant,
    coalesce(q.t.purpose, a.purpose, 'serve') AS purpose,
    CASE WHEN q.task_id IS NULL THEN a.thread ELSE q.t.thread END AS thread,
    coalesce(a.run_ids, [a.answer_id]) AS run_ids, a.versions, a.began_ms, a.ended_ms,
    a.ending, a.reason, a.turns, a.failed_turns, a.malformed, a.tool_calls, a.failed_tools, a.retries, a.rewrites,
    a.recoveries, a.escalations, a.latency_ms, a.prompt_tokens, a.sampled_tokens, $COST AS cost_usd, s.reward,
    coalesce(s.scores, MAP {}) AS scores, f.feedback, a.success, j.verdict,
    a._label, a._partition, a._offset, a._timestamp
FROM (FROM direct UNION ALL BY NAME FROM of_agents) AS a
LEFT JOIN marked AS s USING (task_id, answer_id) LEFT JOIN rated AS f USING (task_id, answer_id)
LEFT JOIN judged AS j USING (answer_id) LEFT JOIN asked AS q ON q.task_id = coalesce(a.last_task, a.task_id)
"""


def runs_sql(settings: Settings, task_ids: Collection[str] | None = None) -> str:
    """Return the statement of the view, with the current prices and tool names. `task_ids`: read only these tasks; a
    chat is its own task, and all tasks of a conversation and itself are among them if one is.
    """
    prompt, completion = settings.prices.prompt_usd, settings.prices.completion_usd
    cost = "CAST(NULL AS DOUBLE)"
    if prompt is not None and completion is not None:
        tokens = f"a.prompt_tokens * CAST({prompt!r} AS DOUBLE) + a.sampled_tokens * CAST({completion!r} AS DOUBLE)"
        cost = f"({tokens}) / 1e6 + coalesce(s.cost_usd, 0)"
    own = "a.own_usd + coalesce(s.cost_usd, 0)"
    cost = f"CASE WHEN a.is_outside THEN {own} ELSE {cost} END"
    parts = (ENDS, TOOLS, COURSES, OPINIONS.replace("$JUDGED", _verdicts_select()))
    sql = "WITH " + ", ".join(part.strip() for part in parts) + ROWS.replace("$COST", cost)
    return _fill(sql, settings, task_ids)


def failed_tools_sql(settings: Settings) -> str:
    """Return the statement of the runs with a failed tool, as `answer_id`."""
    found = "SELECT trajectory_id AS answer_id FROM outcomes WHERE failed_tools > 0"
    return _fill(f"WITH {ENDS.strip()}, {TOOLS.strip()} {found}", settings, None)


def verdicts_sql() -> str:
    """Return the statement of the verdicts that count, as `answer_id` and `verdict`."""
    return _verdicts_select().replace("$OF_TASKS", "true")


def _verdicts_select() -> str:
    return JUDGED if VERDICTS in SHAPES else UNJUDGED


def _fill(sql: str, settings: Settings, task_ids: Collection[str] | None) -> str:
    names = f"CAST([{_literals(settings.serve.escalates)}] AS VARCHAR[])"
    of_tasks = "true" if task_ids is None else f"task_id IN ({_literals(task_ids) or 'NULL'})"
    return (
        sql.replace("$ESCALATION_TOOLS", names)
        .replace("$RUN_TURNS", str(RUN_TURNS))
        .replace("$OUTSIDE", f"'{OUTSIDE_ENGINE}'")
        .replace("$OF_TASKS", of_tasks)
        .replace("$OF_AGENTS", "(agent_id IS NOT NULL OR response_id IN (SELECT trajectory_id FROM begun))")
    )


def _literals(names: Collection[str]) -> str:
    return ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(names))


RUNS = SqlView(
    "runs",
    "trajectories",
    "one row per conversation, agent's run and answer to a task: its figures, scores and verdict",
    OWN_RUN,
    runs_sql,
    ("turns", "responses", "tasks", "groups", "rewards", *({VERDICTS} & SHAPES.keys())),
)
