"""The places of train tasks on their way into a version.

    waiting ──► sampled ──► scored ──► grouped ──► batched ──► trained          left out: of every version, for good

PLACES_SQL counts them over all that the log holds; `demo` and `up` count one policy's record by record as
they come (streams/demo/progress.py), since a statement over the whole log four times a second would cost a core.
"""

from __future__ import annotations

PLACES = ("waiting", "sampled", "scored", "grouped", "batched", "trained", "left out")
"""The places of a train task, in the order it passes them."""
PLACE_NOTES = {
    "waiting": "no answers yet, or not all of them",
    "sampled": "answered, and not scored yet",
    "scored": "scored, and not grouped yet",
    "grouped": "waits for a batch to be full",
    "batched": "waits for the trainer",
    "trained": "in an adapter version",
    "left out": "in no version, for good",
}

PLACES_SQL = """
WITH asked AS (
    SELECT task_id, policy FROM tasks WHERE purpose = 'train'
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
), cut AS (
    SELECT policy, sequence, groups_partition AS _partition, unnest(groups_offsets) AS _offset FROM whole.batches
), made AS (
    SELECT policy, max(last_batch) AS last_batch FROM (
        SELECT policy, last_batch FROM whole.adapters WHERE kind = 'trained'
        QUALIFY row_number() OVER (PARTITION BY policy, version ORDER BY _offset) = 1
    ) GROUP BY policy
), left_behind AS (
    SELECT policy, groups_partition AS _partition, unnest(dropped).offset AS _offset FROM whole.batches
), grouped AS (
    SELECT g.task_id, g.policy, g.dropped_reason IS NOT NULL OR l._offset IS NOT NULL AS is_left, c.sequence
    FROM (SELECT task_id, policy, dropped_reason, _partition, _offset FROM groups
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1) AS g
    LEFT JOIN cut AS c USING (_partition, _offset) LEFT JOIN left_behind AS l USING (_partition, _offset)
), open AS (
    SELECT task_id FROM asked ANTI JOIN grouped USING (task_id)
), answered AS (
    SELECT task_id, max(group_size) AS size, count(DISTINCT slot) AS answers
    FROM responses SEMI JOIN open USING (task_id) GROUP BY task_id
), judged AS (
    SELECT task_id, count(DISTINCT slot) AS scores
    FROM rewards SEMI JOIN open USING (task_id) WHERE NOT starts_with(source, 'feedback/') GROUP BY task_id
)
SELECT t.policy, CASE
    WHEN g.sequence IS NOT NULL THEN CASE WHEN g.sequence <= m.last_batch THEN 'trained' ELSE 'batched' END
    WHEN g.is_left THEN 'left out' WHEN g.task_id IS NOT NULL THEN 'grouped'
    WHEN s.scores >= a.size THEN 'scored' WHEN a.answers >= a.size THEN 'sampled' ELSE 'waiting' END AS place,
    count(*) AS tasks
FROM asked AS t LEFT JOIN answered AS a USING (task_id) LEFT JOIN judged AS s USING (task_id)
LEFT JOIN grouped AS g USING (task_id) LEFT JOIN made AS m ON m.policy = t.policy
GROUP BY ALL ORDER BY ALL
"""
"""How many train tasks are at each place, by policy. Answers and scores are counted only of tasks without a group."""
