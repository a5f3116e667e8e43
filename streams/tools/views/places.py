"""Where every group is, what waits for what, and how much comes.

tasks, responses, rewards, groups, batches, adapters ──► the place of each train task, counted by policy
consumer groups, and the rest of `streamward status` ──► who lives, what each process waits for
every topic                                          ──► records, and how many a minute
"""

from __future__ import annotations

from typing import Any

from streams.errors import StreamwardError
from streams.kafka.topics import topics
from streams.tools import status
from streams.tools.query.views import name_of, quoted
from streams.tools.views.log_view import LogReader, Row

RATE_MINUTES = 5
"""Over how long rates are taken."""
NEWEST = 25
PLACES = ("waiting", "sampled", "scored", "grouped", "batched", "trained", "left out")
"""The places of a train task, in the order it passes them."""

PLACES_SQL = """
WITH asked AS (
    SELECT task_id, policy FROM tasks WHERE purpose = 'train'
    QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1
), answered AS (
    SELECT task_id, max(group_size) AS size, count(DISTINCT slot) AS answers FROM responses GROUP BY task_id
), judged AS (
    SELECT task_id, count(DISTINCT slot) AS scores FROM rewards WHERE NOT starts_with(source, 'feedback/')
    GROUP BY task_id
), cut AS (
    SELECT policy, sequence, groups_partition AS _partition, unnest(groups_offsets) AS _offset FROM whole.batches
), made AS (
    SELECT policy, max(last_batch) AS last_batch FROM whole.adapters WHERE kind = 'trained' GROUP BY policy
), left_behind AS (
    SELECT policy, groups_partition AS _partition, unnest(dropped).offset AS _offset FROM whole.batches
), grouped AS (
    SELECT g.task_id, g.policy, g.dropped_reason IS NOT NULL OR l._offset IS NOT NULL AS is_left, c.sequence
    FROM (SELECT task_id, policy, dropped_reason, _partition, _offset FROM groups
        QUALIFY row_number() OVER (PARTITION BY task_id ORDER BY _partition, _offset) = 1) AS g
    LEFT JOIN cut AS c USING (_partition, _offset) LEFT JOIN left_behind AS l USING (_partition, _offset)
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
"""How many train tasks are at each place, by policy."""

ABOUT = {
    "waiting": "no answers yet, or not all of them",
    "sampled": "answered, and not scored yet",
    "scored": "scored, and not grouped yet",
    "grouped": "waits for a batch to be full",
    "batched": "waits for the trainer",
    "trained": "in an adapter version",
    "left out": "taught nothing",
}


def data(log: LogReader) -> dict[str, Any]:
    """Return what the page shows: processes and numbers of records are of all tenants, and nothing for one of them.

    Raises LogError if the log cannot be read.
    """
    whole = log.tenant is None
    with log.look() as look:
        return {
            "places": _by_policy(look.rows(PLACES_SQL)),
            "names": PLACES,
            "about": ABOUT,
            "whole": whole,
            "records": look.rows(records_sql(log)) if whole else [],
            "minutes": RATE_MINUTES,
            "at": look.at,
            "is_archive": log.source == "archive",
            "left_out": look.left_out(),
            **(_status(log) if whole else {"loop_status": None, "no_loop": None}),
        }


def records_sql(log: LogReader) -> str:
    """Return the statement that counts the records of every topic: all, and those of the last minutes."""
    recent = f"_timestamp > now() - INTERVAL {RATE_MINUTES} MINUTE"
    return " UNION ALL ".join(
        f"SELECT '{label}' AS topic, count(*) AS records, count(*) FILTER ({recent}) / {RATE_MINUTES}.0 AS per_minute, "  # noqa: S608
        f"max(_timestamp) AS newest FROM {quoted(name_of(label))}"
        for label in topics(log.settings.topics)
        if label not in log.rights.hidden
    )


def _by_policy(rows: list[Row]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["policy"], dict.fromkeys(PLACES, 0))[row["place"]] = row["tasks"]
    return found


def _status(log: LogReader) -> dict[str, Any]:
    """Return who lives and what was dropped; of an archive alone nothing of it is known."""
    if log.source == "archive":
        return {"loop_status": None, "no_loop": "This is an archive: it says nothing of processes."}
    try:
        return {"loop_status": status.look(log.settings), "no_loop": None}
    except StreamwardError as exc:
        return {"loop_status": None, "no_loop": str(exc)}
