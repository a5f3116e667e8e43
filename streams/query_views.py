"""The views of the log: one per topic, and the joins that people would write again and again.

    topic `group-control` ──► view group_control       groups + responses ──► group_responses
    the columns of streams/columns.py                  adapters + batches + groups ──► lineage

A view has a topic that leads it: `--since`, `--key` and the like choose records of that one, and what a join looks up
beside them is looked up in the whole log (schema `whole`), so that a narrow window never loses the other half of a
row. Records that were written twice count once in a join: the first in its partition wins, as in the stages.

Not covered: what the trainer makes of a group. Token ids and logprobs are in `groups.responses`.
"""

from __future__ import annotations

from typing import NamedTuple

from streams.settings import Settings
from streams.topics import topics

WHOLE = "whole"
"""The schema of the views that no option narrows."""


class View(NamedTuple):
    """A name that a statement can read."""

    name: str
    label: str
    """Of the topic whose records lead: one row, or more, for each."""
    about: str
    sql: str = ""
    """How a join is made; `` for a topic itself."""
    also: tuple[str, ...] = ()
    """Labels of the topics that a join looks into besides."""


GROUP_RESPONSES = """
WITH first AS (SELECT _partition, min(_offset) AS _offset FROM whole.groups GROUP BY _partition, group_id),
members AS (
    SELECT g.* EXCLUDE (responses), unnest(g.responses) AS m FROM
    (SELECT _partition, _offset, _timestamp, _key, group_id, task_id, policy, purpose, scenario, tenant,
            adapter_version, complete, dropped_reason, formula, reward_mean, reward_std, responses FROM groups) AS g
    SEMI JOIN first USING (_partition, _offset)
)
SELECT
    g.policy, g.adapter_version, g.scenario, g.purpose, g.tenant, g.task_id, g.group_id, m.slot, m.response_id,
    r.text, m.finish_reason, m.reward, m.advantage, m.components, g.formula, g.reward_mean, g.reward_std, g.complete,
    r.prompt_tokens, r.completion_tokens, r.latency_ms, r.created_at AS sampled_at,
    m."partition" AS response_partition, m."offset" AS response_offset,
    g._partition AS group_partition, g._offset AS group_offset, g._timestamp AS grouped_at
FROM members AS g
LEFT JOIN whole.responses AS r ON r._partition = m."partition" AND r._offset = m."offset"
"""
LINEAGE = """
WITH steps AS (
    SELECT policy, version, last_batch, _partition, _offset FROM adapters WHERE kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY policy, version ORDER BY _offset) = 1
), cut AS (
    SELECT policy, sequence, groups_partition, unnest(groups_offsets) AS group_offset, _partition, _offset FROM (
        FROM whole.batches QUALIFY row_number() OVER (PARTITION BY policy, sequence ORDER BY _offset) = 1)
), made AS (
    SELECT _partition, _offset, group_id, task_id, adapter_version, unnest(responses) AS m FROM whole.groups
)
SELECT
    a.policy, a.version, b.sequence AS batch, g.group_id, g.task_id, g.adapter_version AS sampled_by,
    m.slot, m.response_id, m.reward, m.advantage,
    a._partition AS adapter_partition, a._offset AS adapter_offset,
    b._partition AS batch_partition, b._offset AS batch_offset,
    b.groups_partition AS group_partition, b.group_offset,
    m."partition" AS response_partition, m."offset" AS response_offset
FROM steps AS a
LEFT JOIN cut AS b ON b.policy = a.policy AND b.sequence = a.last_batch
LEFT JOIN made AS g ON g._partition = b.groups_partition AND g._offset = b.group_offset
"""
"""Each version's own step. What it was trained on before is in the rows of the versions before it."""

JOINS = (
    View(
        "group_responses", "groups", "one row per response in a group, with its reward", GROUP_RESPONSES, ("responses",)
    ),
    View(
        "lineage",
        "adapters",
        "adapter version <- batch <- group <- response, one row per response of its step",
        LINEAGE,
        ("batches", "groups"),
    ),
)


def views(settings: Settings) -> dict[str, View]:
    """Return every view by its name, topics first, in the order of the topics."""
    own = [
        View(name_of(label), label, f"one row per {topic.event.__name__} on {topic.name}")
        for label, topic in topics(settings.topics).items()
    ]
    return {view.name: view for view in (*own, *JOINS)}


def name_of(label: str) -> str:
    """Return the name of a topic's view."""
    return label.replace("-", "_")


def quoted(name: str) -> str:
    """Return a name as SQL reads it literally."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"
