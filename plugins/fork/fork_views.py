"""The views `moments` and `forks`.

    turns, and responses without turns ──► every call that a run may be forked at
    tasks ──► those that are forks, the run that each comes from, and the rewards of both

Not covered: `--since` and the like choose turns alone, so answers without turns are always rows of `moments`.
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.topics.shape import OWN_TASK

WITH_PAID = """WITH paid AS (
    SELECT m.response_id AS run, any_value(m.reward) AS reward FROM (
        SELECT unnest(members) AS m FROM whole.groups WHERE reward_mean IS NOT NULL) GROUP BY run
)
"""
MOMENTS = """, asked AS (
    FROM whole.tasks QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
), answered AS (
    FROM whole.responses QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _partition, _offset) = 1
), calls AS (
    SELECT task_id, trajectory_id, number AS turn, policy, adapter_version, agent_id, finish_reason, error,
        prompt_tokens, len(completion_token_ids) AS completion_tokens, reply.content AS text,
        list_transform(reply.tool_calls, lambda one: one.name) AS tools, _partition, _offset, _timestamp
    FROM turns QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY _partition, _offset) = 1
    UNION ALL BY NAME
    SELECT task_id, response_id AS trajectory_id, 0 AS turn, policy, adapter_version, agent_id, finish_reason, error,
        prompt_tokens, completion_tokens, text, _partition, _offset, _timestamp
    FROM answered WHERE agent_id IS NULL AND finish_reason <> 'error'
)
SELECT c.*, max(turn) OVER (PARTITION BY trajectory_id) + 1 AS turns, a.purpose, a.scenario, a.tenant,
    a.environment.name AS environment, a.fork IS NOT NULL AS is_fork, r.success, reward
FROM calls AS c LEFT JOIN asked AS a USING (task_id)
LEFT JOIN answered AS r ON r.response_id = trajectory_id LEFT JOIN paid ON run = trajectory_id
"""
FORKS = """, own AS (
    SELECT task_id, avg(m.reward) AS reward_mean, count(*) AS answers FROM (
        SELECT task_id, unnest(members) AS m FROM whole.groups WHERE reward_mean IS NOT NULL) GROUP BY task_id
)
SELECT t.task_id, t.fork.task_id AS of_task, t.fork.trajectory_id AS of_run, t.fork.turn AS turn, t.fork.mode AS mode,
    t.fork.recorded_tokens AS recorded_tokens, t.policy, t.adapter_version, t.purpose, t.scenario, t.tenant,
    t.group_size, own.answers, own.reward_mean, paid.reward AS of_reward, t._partition, t._offset, t._timestamp
FROM tasks AS t LEFT JOIN own ON own.task_id = t.task_id LEFT JOIN paid ON run = t.fork.trajectory_id
WHERE t.fork IS NOT NULL
"""
VIEWS = (
    SqlView(
        "moments",
        "turns",
        "one row per call that a run may be forked at: run, turn, version, reward and success of the run",
        OWN_TASK,
        WITH_PAID + MOMENTS,
        ("tasks", "responses", "groups"),
    ),
    SqlView(
        "forks",
        "tasks",
        "one row per fork: the run and turn that it begins at, its mode, and the rewards of both",
        OWN_TASK,
        WITH_PAID + FORKS,
        ("groups",),
    ),
)
