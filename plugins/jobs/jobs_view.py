"""View `training_jobs`: one row per job, as plugins/jobs/fold/state.py folds its events.

jobs, in their order ──► by the table of transitions: which took effect ──► status, progress, cost
"""

from __future__ import annotations

from plugins.jobs.fold.state import TRANSITIONS
from streams.tools.query.sql_view import SqlView
from streams.topics.shape import OF_TENANT

FOLD = """
WITH RECURSIVE transitions(kind, allowed, after) AS (VALUES $TRANSITIONS), numbered AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY _partition, _offset) AS n
    FROM whole.jobs WHERE kind <> 'month_closed'
), steps AS (
    SELECT DISTINCT job_id, CAST(0 AS BIGINT) AS n, 0 AS effects, '' AS status, false AS works FROM numbered
    UNION ALL
    SELECT job_id, n, effects + CAST(works AS INTEGER), CASE WHEN works THEN after ELSE status END, works
    FROM (
        SELECT s.job_id, e.n, s.effects, s.status, t.after,
            e.sequence = s.effects AND list_contains(t.allowed, s.status) AND (s.status <> '' OR e.spec IS NOT NULL)
                AS works
        FROM steps AS s JOIN numbered AS e ON e.job_id = s.job_id AND e.n = s.n + 1 JOIN transitions AS t USING (kind)
    )
), effective AS (
    SELECT e.*, s.status FROM steps AS s JOIN numbered AS e USING (job_id, n) WHERE s.works
), used AS (
    SELECT job_id, CAST(arg_max(metrics['prompt_tokens'], n) FILTER (metrics['prompt_tokens'] IS NOT NULL) AS BIGINT)
            AS prompt_tokens,
        CAST(arg_max(metrics['completion_tokens'], n) FILTER (metrics['completion_tokens'] IS NOT NULL) AS BIGINT)
            AS completion_tokens,
        arg_max(metrics['trainer_s'], n) FILTER (metrics['trainer_s'] IS NOT NULL) AS trainer_s
    FROM effective WHERE n > 1 GROUP BY job_id
), jobs_now AS (
    SELECT job_id, arg_min(policy, n) AS policy, arg_min(tenant, n) AS tenant, arg_min(actor, n) AS ordered_by,
        arg_min(spec, n) AS spec, min(created_at) AS created_at, arg_max(created_at, n) AS updated_at,
        arg_max(status, n) AS status, arg_max(reason, n) AS reason, max(n) AS newest,
        coalesce(arg_max(iteration, n) FILTER (kind = 'iteration'), 0) AS iteration,
        arg_min(version, n) FILTER (kind = 'started') AS base_version,
        coalesce(arg_max(best, n) FILTER (kind = 'evaluated'), []) AS best,
        arg_max(metrics['success'], n) FILTER (kind = 'evaluated') AS success,
        arg_max(metrics['success_gain'], n) FILTER (kind = 'evaluated') AS success_gain,
        arg_max(metrics['mean_reward'], n) FILTER (kind = 'evaluated') AS held_out_reward,
        arg_max(metrics['reward'], n) FILTER (metrics['reward'] IS NOT NULL) AS reward,
        arg_min(_partition, n) AS _partition, arg_min(_offset, n) AS _offset, arg_min(_timestamp, n) AS _timestamp
    FROM effective GROUP BY job_id
)
SELECT j.job_id, j.policy, j.tenant, j.ordered_by, coalesce(j.spec.tuning.method, 'grpo') AS method,
    j.spec.agent AS agent_id, j.status, j.reason, e.code, e.suggested_action, j.iteration,
    j.spec.iterations AS total_iterations, j.base_version + j.iteration AS version, j.best, j.success, j.success_gain,
    j.held_out_reward, j.reward, coalesce(u.prompt_tokens, 0) AS prompt_tokens,
    coalesce(u.completion_tokens, 0) AS completion_tokens, coalesce(u.trainer_s, 0) AS trainer_s,
    CASE WHEN j.spec.prices IS NOT NULL THEN (coalesce(u.prompt_tokens, 0) * j.spec.prices.prompt
        + coalesce(u.completion_tokens, 0) * j.spec.prices.completion) / 1e6
        + coalesce(u.trainer_s, 0) * j.spec.prices.trainer_hour / 3600 END AS cost_usd,
    j.spec.max_budget_usd AS budget_usd, j.created_at, j.updated_at, j._partition, j._offset, j._timestamp
FROM jobs_now AS j LEFT JOIN effective AS e ON e.job_id = j.job_id AND e.n = j.newest LEFT JOIN used AS u
    ON u.job_id = j.job_id
SEMI JOIN jobs ON jobs.job_id = j.job_id
"""
_ROWS = ", ".join(
    f"('{kind}', [{', '.join(repr(status or '') for status in sorted(step.allowed, key=str))}]::VARCHAR[], "
    f"'{step.status}')"
    for kind, step in TRANSITIONS.items()
)
VIEWS = (
    SqlView(
        "training_jobs",
        "jobs",
        "one row per job: what was ordered, how far it is, and its cost",
        OF_TENANT,
        FOLD.replace("$TRANSITIONS", _ROWS),
    ),
)
