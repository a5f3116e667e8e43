"""View `training_runs`: one row per model that calls train, as calls/call_state.py folds calls and results.

    training_calls ──► the first call of each id ──► the first that makes a model ──► its calls ──► counts
    training_results ► the first result of a call ──────────────────────────────────────────────────┘

Samples of a model's weights are among its calls, samples of the base are not. A call is open while the worker owes it a
result; calls that the server refused do not count as failed, as they never ran.
"""

from __future__ import annotations

from plugins.tinker.calls.call_state import ANSWERED
from streams.tools.query.sql_view import SqlView
from streams.topics.shape import OF_TENANT

_RUNS = """
WITH calls AS MATERIALIZED (
    SELECT * EXCLUDE (data) FROM whole.training_calls
    QUALIFY row_number() OVER (PARTITION BY call_id ORDER BY _partition, _offset) = 1
), results AS MATERIALIZED (
    SELECT * EXCLUDE (outputs) FROM whole.training_results
    QUALIFY row_number() OVER (PARTITION BY call_id ORDER BY _partition, _offset) = 1
), models AS (
    SELECT * FROM calls
    WHERE kind IN ('create_model', 'load_weights', 'copy_weights') AND lora IS NOT NULL AND base_model IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY model ORDER BY _partition, _offset) = 1
)
SELECT m.model, m.session_id, m.tenant, m.subject_id, m.base_model, m.lora.rank AS rank, count(*) AS calls,
    count(*) FILTER (r.call_id IS NULL AND c.kind IN ($ANSWERED)) AS open,
    count(*) FILTER (r.error IS NOT NULL AND c.kind <> 'refused') AS failed,
    count(*) FILTER (c.kind = 'refused') AS refused,
    count(*) FILTER (c.kind = 'optim_step' AND r.call_id IS NOT NULL AND r.error IS NULL) AS steps,
    count(*) FILTER (c.kind = 'sample') AS samples,
    coalesce(sum(r.prompt_tokens), 0)::BIGINT AS prompt_tokens,
    coalesce(sum(r.completion_tokens), 0)::BIGINT AS completion_tokens,
    coalesce(sum(r.seconds), 0) AS seconds, coalesce(sum(r.trainer_s), 0) AS trainer_s, sum(r.cost_usd) AS cost_usd,
    coalesce(list(r.version ORDER BY r.version) FILTER (r.version IS NOT NULL), []) AS versions,
    count(*) FILTER (c.kind = 'unload_model') > 0 AS unloaded, m.created_at, max(c.created_at) AS last_call_at,
    m._partition, m._offset, m._timestamp
FROM models AS m JOIN calls AS c ON c.model = m.model LEFT JOIN results AS r ON r.call_id = c.call_id
SEMI JOIN training_calls AS t ON t.model = m.model
GROUP BY ALL
"""
TRAINING_RUNS = SqlView(
    "training_runs",
    "training-calls",
    "one row per model of a training loop: its calls, steps, saved versions and cost",
    OF_TENANT,
    _RUNS.replace("$ANSWERED", ", ".join(f"'{kind}'" for kind in sorted(ANSWERED))),
    ("training-results",),
)
VIEWS = (TRAINING_RUNS,)
