"""The views `survivorship`, `staleness` and `stages`.

    responses to train tasks ──► in a batch, or in none ──► how both are distributed, and whether they differ
    batches ──► their responses ──► how many versions old those are, and how many one conversation spans
    responses, by version ──► when at least one was sampled, and how long the step took that they led to

A run that leaves out what is long, slow or failed learns from what is left. The test is that of Mann and Whitney (Ann.
Math. Stat. 18, 1947), by mean ranks and its normal approximation, with the variance for ties.

Not covered: answers of tasks that were never sampled.
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ViewList
from streams.tools.query.views import CUT
from streams.topics.shape import NO_TENANT

TRAINED = """, trained AS MATERIALIZED (
    SELECT cut.*, adapter_version, taken, m.response_id, m."partition" AS response_partition,
        m."offset" AS response_offset
    FROM cut JOIN made ON made._partition = groups_partition AND made._offset = group_offset
)
"""
"""Each response of each batch."""
SURVIVORSHIP = """, sampled AS (
    SELECT policy, response_id, completion_tokens, latency_ms, steps, finish_reason, error,
        response_id IN (SELECT response_id FROM trained) AS is_trained
    FROM responses WHERE task_id IN (SELECT task_id FROM whole.tasks WHERE purpose = 'train')
    QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY _offset) = 1
), measured AS (
    SELECT policy, is_trained, unnest([
        {measure: 'completion_tokens', amount: CAST(completion_tokens AS DOUBLE)},
        {measure: 'latency_ms', amount: latency_ms},
        {measure: 'turns', amount: CAST(coalesce(steps, 1) AS DOUBLE)},
        {measure: 'cut at the limit', amount: CAST(finish_reason = 'length' AS DOUBLE)},
        {measure: 'failed', amount: CAST(error IS NOT NULL AS DOUBLE)}
    ], recursive := true)
    FROM sampled
), placed AS (
    SELECT *, rank() OVER same + (count(*) OVER tied - 1) / 2 AS place, count(*) OVER tied AS ties
    FROM measured
    WINDOW same AS (PARTITION BY policy, measure ORDER BY amount), tied AS (PARTITION BY policy, measure, amount)
), summed AS (
    SELECT policy, measure, count(*) AS n, count(*) FILTER (is_trained) AS k,
        sum(place) FILTER (is_trained) AS places, sum(ties * ties - 1) AS ties,
        avg(amount) AS sampled_mean, avg(amount) FILTER (is_trained) AS trained_mean,
        avg(amount) FILTER (NOT is_trained) AS untrained_mean,
        quantile_cont(amount, 0.5) AS sampled_median, quantile_cont(amount, 0.5) FILTER (is_trained) AS trained_median,
        quantile_cont(amount, 0.95) AS sampled_p95, quantile_cont(amount, 0.95) FILTER (is_trained) AS trained_p95
    FROM placed GROUP BY policy, measure
), tested AS (
    SELECT *, (places - k * (n + 1) / 2) / nullif(sqrt(k * (n - k) / 12 * (n + 1 - ties / (n * (n - 1)))), 0) AS z
    FROM summed
)
SELECT policy, measure, n AS sampled, k AS trained, sampled_mean, trained_mean, untrained_mean, sampled_median,
    trained_median, sampled_p95, trained_p95, z, coalesce(abs(z) > 1.96, false) AS differs
FROM tested ORDER BY policy, measure
"""
STALENESS = """, spans AS (
    SELECT trajectory_id, max(adapter_version) - min(adapter_version) AS span FROM whole.turns GROUP BY trajectory_id
), aged AS (
    SELECT t.*, t.sequence - t.taken AS age, r.completion_tokens AS tokens, coalesce(span, 0) AS span
    FROM trained AS t
    LEFT JOIN whole.responses AS r ON r._partition = t.response_partition AND r._offset = t.response_offset
    LEFT JOIN spans ON spans.trajectory_id = t.response_id
)
SELECT policy, sequence AS batch, count(DISTINCT group_offset) AS groups, count(*) AS responses,
    avg(CAST(adapter_version >= 0 AS INTEGER)) AS known_share, avg(age) AS mean_age,
    sum(age * tokens) / nullif(sum(tokens), 0) AS token_mean_age, max(age) AS oldest_age,
    min(adapter_version) AS oldest_version, max(adapter_version) AS newest_version, max(span) AS longest_span,
    _partition, _offset, _timestamp
FROM aged SEMI JOIN batches USING (_partition, _offset)
GROUP BY policy, sequence, _partition, _offset, _timestamp ORDER BY policy, batch
"""
STAGES = """
WITH answered AS (
    SELECT r.policy, r.adapter_version AS version, purpose, completion_tokens,
        epoch(r.created_at) - r.latency_ms / 1000 AS begun, epoch(r.created_at) AS ended
    FROM responses AS r JOIN whole.tasks AS t USING (task_id)
    QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY r._offset) = 1
), following AS (
    SELECT *, max(ended) OVER (
        PARTITION BY policy, version, purpose ORDER BY begun, ended ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS sampled_until
    FROM answered
), sampled AS (
    SELECT policy, version, count(*) AS responses, sum(completion_tokens) AS tokens,
        sum(seconds) FILTER (purpose = 'train') AS train_s, sum(seconds) FILTER (purpose = 'eval') AS held_out_s,
        sum(seconds) FILTER (purpose = 'serve') AS serve_s
    FROM (SELECT *, greatest(0, ended - greatest(begun, coalesce(sampled_until, begun))) AS seconds FROM following)
    GROUP BY policy, version
), made AS (
    SELECT policy, version, metrics['step_s'] AS step_s, epoch(created_at) AS at
    FROM whole.adapters WHERE kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY policy, version ORDER BY _offset) = 1
)
SELECT s.*, next.step_s, next.at - this.at AS until_next_s
FROM sampled AS s
LEFT JOIN made AS next ON next.policy = s.policy AND next.version = s.version + 1
LEFT JOIN made AS this ON this.policy = s.policy AND this.version = s.version
ORDER BY policy, version
"""
BATCHED = "WITH " + CUT + TRAINED
VIEWS = (
    SqlView(
        "survivorship",
        "responses",
        "one row per policy and measure: all answers to train tasks, against those in a batch",
        NO_TENANT,
        BATCHED + SURVIVORSHIP,
        ("tasks", "groups", "batches"),
    ),
    SqlView(
        "staleness",
        "batches",
        "one row per batch: how many versions old its answers are, and the most that one conversation spans",
        NO_TENANT,
        BATCHED + STALENESS,
        ("groups", "responses", "turns"),
    ),
    SqlView(
        "stages",
        "responses",
        "one row per version: seconds in which it answered, by purpose; of the step to the next one, and until that",
        NO_TENANT,
        STAGES,
        ("tasks", "adapters"),
    ),
)
LISTS = (
    ViewList(
        "survivorship",
        "Sampled and trained on",
        "survivorship",
        ("policy", "measure", "sampled", "trained", "sampled_mean", "trained_mean", "untrained_mean", "z", "differs"),
        filters=("policy",),
    ),
    ViewList(
        "staleness",
        "How old trained answers were",
        "staleness",
        (
            "policy", "batch", "groups", "responses", "known_share", "mean_age", "token_mean_age", "oldest_age",
            "oldest_version", "newest_version", "longest_span",
        ),
        order="policy, batch DESC",
        filters=("policy",),
    ),
    ViewList(
        "stages",
        "Where the time went",
        "stages",
        (
            "policy", "version", "responses", "tokens", "train_s", "held_out_s", "serve_s", "step_s", "until_next_s",
        ),
        order="policy, version DESC",
        filters=("policy",),
    ),
)  # fmt: skip
