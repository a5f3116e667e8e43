"""The views of the log: one per topic, and the most frequent joins.

    topic `group-control` ──► view group_control       groups + responses ──► group_responses
    the columns of streams/arrow                       adapters + batches + groups ──► lineage
                                                       adapters, folded          ──► rollout, policy_checkpoints
                                                       groups + responses        ──► spans
                                                       tasks                     ──► unique_tasks, and others of UNIQUE
                                                       every other subject's: those of plugins

A view has a leading topic: `--since`, `--key` and the like choose records of that one, and a join looks up the others
in the whole log (schema `whole`), so that a narrow window never loses the other half of a row. Duplicate records count
once in a join: the first in its partition wins, as in the stages.

If no answer of a group was scored, `reward_mean` and `reward_std` are NULL; the record itself has 0.

Token ids and logprobs are in `groups.responses`. `rollout` folds all events of a policy, even those in a wrong
partition, which agents never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache

from schemas.conventions import UNSCORED
from schemas.events import GroupResponse
from streams.errors import SettingsError
from streams.kafka.topics import SHAPES, topics
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings
from streams.tools.archive.columns import MEMBERS, PER_TOKEN
from streams.tools.query.runs_view import RUNS
from streams.tools.query.sql_view import SqlView
from streams.topics.shape import NO_TENANT, OWN_POLICY


def identifier(name: str) -> str:
    """Return a name as SQL reads it literally."""
    return '"' + name.replace('"', '""') + '"'


_MEMBER_FIELDS = ", ".join(
    f"'{name}': one.{identifier(name)}"
    for name in (member_field.name for member_field in fields(GroupResponse))
    if name not in PER_TOKEN
)
_MEMBERS = f"list_transform(responses, lambda one: {{{_MEMBER_FIELDS}}})"
_ANSWERED = f"group_size > len(list_filter(left_out, lambda slot: slot.reason IN {UNSCORED}))"
HAS_SCORES = f"""{_ANSWERED}
    AND (purpose <> 'serve' OR len(list_filter({{members}}, lambda one: cardinality(one.components) > 0)) > 0)"""
"""`schemas.conventions.has_scores` in SQL."""


def _of_groups(has_scores: str) -> dict[str, str]:
    computed = {name: f"CASE WHEN {has_scores} THEN {name} END" for name in ("reward_mean", "reward_std")}
    return {**computed, "members": "{members}"}


COMPUTED = {"groups": _of_groups(HAS_SCORES)}
"""By topic: columns that are not the field of their name. `members` is stored in the archive, and made of the log's."""
APART = {"groups": {"purpose <> 'serve'": _of_groups(_ANSWERED), "purpose = 'serve'": COMPUTED["groups"]}}
"""By topic: conditions of which each record meets one, and what is computed of those records. The archive's files are
read once for each: whether a group has scores is a question about its members only where its purpose is `serve`, and
reading the members of all groups takes ten times as long as reading their rewards."""
GROUP_RESPONSES = """
WITH first AS (SELECT _partition, min(_offset) AS _offset FROM whole.groups GROUP BY _partition, group_id),
members AS (
    SELECT g.* EXCLUDE (members), unnest(g.members) AS m FROM
    (SELECT _partition, _offset, _timestamp, _key, group_id, task_id, policy, purpose, scenario, tenant,
            adapter_version, complete, dropped_reason, formula, reward_mean, reward_std, members FROM groups) AS g
    SEMI JOIN first USING (_partition, _offset)
)
SELECT
    g.policy, g.adapter_version, g.scenario, g.purpose, g.tenant, g.task_id, g.group_id, m.slot, m.response_id,
    r.text, m.finish_reason,
    CASE WHEN g.purpose <> 'serve' OR cardinality(m.components) > 0 THEN m.reward END AS reward, m.advantage,
    m.components, g.formula, g.reward_mean, g.reward_std, g.complete,
    r.prompt_tokens, r.completion_tokens, r.latency_ms, r.created_at AS sampled_at,
    m."partition" AS response_partition, m."offset" AS response_offset,
    g._partition AS group_partition, g._offset AS group_offset, g._timestamp AS grouped_at
FROM members AS g
LEFT JOIN whole.responses AS r ON r._partition = m."partition" AND r._offset = m."offset"
"""
SPANS = """
WITH first AS (SELECT _partition, min(_offset) AS _offset FROM whole.groups GROUP BY _partition, group_id),
members AS (
    SELECT g.* EXCLUDE (members), unnest(g.members) AS m FROM
    (SELECT _partition, _offset, _timestamp, _key, group_id, task_id, policy, purpose, scenario, adapter_version,
            credit, members FROM groups) AS g
    SEMI JOIN first USING (_partition, _offset)
), said AS (
    SELECT g.*, r.success, unnest(r.turns) AS t
    FROM members AS g JOIN whole.responses AS r ON r._partition = g.m."partition" AND r._offset = g.m."offset"
), credited AS (
    SELECT *, list_filter(m.spans, lambda one: one.chain = t.chain AND one.start = t.start)[1] AS s FROM said
)
SELECT policy, adapter_version, scenario, purpose, task_id, group_id, credit, m.slot, m.response_id, t.number AS turn,
    t.chain, t.start AS first_token, t."end" AS next_token, t.observation, t.tool, t.ok, t.reward AS environment_reward,
    s.reward, coalesce(s.advantage, m.advantage) AS advantage, success, m.reward AS response_reward,
    m.advantage AS response_advantage, _partition AS group_partition, _offset AS group_offset, _timestamp AS grouped_at
FROM credited
"""
"""A turn without a span of its own has the advantage of its response."""
KNOWN_VERSIONS = """
WITH RECURSIVE numbered AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY policy ORDER BY _partition, _offset) AS n, coalesce(suite, '') AS asked_of
    FROM whole.adapters
), known AS (
    SELECT DISTINCT policy, CAST(0 AS INTEGER) AS version, CAST(0 AS BIGINT) AS known_from FROM numbered
    UNION ALL
    SELECT policy, t.version, min(t.n) FROM known AS k JOIN numbered AS t USING (policy)
    WHERE t.kind = 'trained' AND t.version = k.version + 1 AND t.n > k.known_from GROUP BY ALL
)
"""
"""Since which event each version exists: its first `trained` after that of the version before it."""
CUT = """cut AS (
    SELECT policy, sequence, groups_partition, unnest(groups_offsets) AS group_offset, _partition, _offset, _timestamp
    FROM (FROM whole.batches QUALIFY row_number() OVER (PARTITION BY policy, sequence ORDER BY _offset) = 1)
), made AS (
    SELECT _partition, _offset, group_id, task_id, adapter_version, coalesce(trained_batches, adapter_version) AS taken,
        unnest(members) AS m
    FROM whole.groups
)"""
"""Each group of each batch, and each response of each group."""
LINEAGE = """, steps AS (
    SELECT policy, version, last_batch, _partition, _offset
    FROM numbered SEMI JOIN known ON known.policy = numbered.policy AND n = known_from
    SEMI JOIN adapters USING (_partition, _offset)
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
FOLDED = """, told AS MATERIALIZED (
    SELECT e.*, coalesce(CAST(e.share AS DOUBLE), 0) AS wanted,
        CASE e.kind
            WHEN 'trained' THEN e.version = 0 OR e.n > k.known_from
            WHEN 'evaluated' THEN e.n > k.known_from
                AND sum(CAST(e.n > k.known_from AS INTEGER)) OVER (PARTITION BY e.policy, e.kind, e.version, e.asked_of
                    ORDER BY e.n) > 1
            ELSE row_number() OVER (PARTITION BY e.policy, e.event_id, e.kind IN ('trained', 'evaluated')
                ORDER BY e.n) > 1
        END AS again
    FROM numbered AS e LEFT JOIN known AS k USING (policy, version)
), fold AS (
    SELECT DISTINCT policy, CAST(0 AS BIGINT) AS n, CAST(NULL AS BOOLEAN) AS works, MAP {0: 'primary'} AS statuses,
        0 AS primary_version, CAST(NULL AS INTEGER) AS candidate_version, CAST(0 AS DOUBLE) AS share
    FROM told
    UNION ALL
    SELECT policy, n, works,
        CASE WHEN NOT works THEN statuses
            WHEN kind = 'trained' THEN map_concat(statuses, MAP {version: 'trained'})
            WHEN kind = 'canary_started' THEN map_concat(statuses, MAP {version: 'canary'})
            WHEN kind IN ('rejected', 'retired') THEN map_concat(statuses, MAP {version: kind})
            WHEN swaps THEN map_concat(
                statuses,
                CASE WHEN candidate_version IS NULL THEN MAP {} ELSE MAP {candidate_version: 'trained'} END,
                MAP {primary_version: CASE kind WHEN 'promoted' THEN 'superseded' ELSE 'rolled_back' END},
                MAP {version: 'primary'})
            ELSE statuses
        END,
        CASE WHEN works AND swaps THEN version ELSE primary_version END,
        CASE WHEN NOT works THEN candidate_version WHEN splits THEN version WHEN ends THEN NULL ELSE candidate_version
        END,
        CASE WHEN NOT works THEN share WHEN splits THEN wanted WHEN ends THEN 0 ELSE share END
    FROM (
        SELECT f.* EXCLUDE (n, works), t.n, t.kind, t.version, t.wanted,
            kind IN ('promoted', 'rolled_back') AS swaps, kind IN ('canary_started', 'canary_advanced') AS splits,
            swaps OR (kind = 'rejected' AND version = candidate_version) AS ends,
            NOT again AND coalesce((expected_version = primary_version OR NOT (swaps OR splits OR
                (kind = 'rejected' AND expected_version IS NOT NULL))) AND CASE kind
                WHEN 'trained' THEN statuses[version - 1] IS NOT NULL
                WHEN 'canary_started' THEN
                    statuses[version] = 'trained' AND candidate_version IS NULL AND wanted > f.share AND wanted <= 1
                WHEN 'canary_advanced' THEN statuses[version] = 'canary' AND wanted > f.share AND wanted <= 1
                WHEN 'promoted' THEN statuses[version] IN ('trained', 'canary', 'superseded', 'rolled_back')
                WHEN 'rolled_back' THEN statuses[version] IN ('trained', 'superseded', 'rolled_back')
                WHEN 'rejected' THEN statuses[version] IN ('trained', 'canary')
                WHEN 'retired' THEN
                    version <> 0 AND statuses[version] IN ('trained', 'superseded', 'rolled_back', 'rejected')
                ELSE statuses[version] IS NOT NULL
            END, false) AS works
        FROM fold AS f JOIN told AS t ON t.policy = f.policy AND t.n = f.n + 1
    )
)
"""
"""The state of each policy after each of its events."""
ROLLOUT = (
    FOLDED
    + """
SELECT t.policy, t.kind, t.version, CASE WHEN f.works THEN 'effective' WHEN t.again THEN 'again' ELSE 'refused' END
    AS effect, f.primary_version, f.candidate_version, f.share, t.actor, t.reason, t.event_id, t._partition, t._offset,
    t._timestamp
FROM fold AS f JOIN told AS t USING (policy, n) SEMI JOIN adapters USING (_partition, _offset)
"""
)
"""What streams/adapters/serving.py does with events, in SQL: a property test folds random histories with both."""

CHECKPOINTS = """, newest AS (
    SELECT policy, arg_max(statuses, n) AS statuses, arg_max(share, n) AS share FROM fold GROUP BY policy
), measured AS (
    SELECT policy, version, arg_max(suite, n) AS suite, arg_max(metrics['exact'], n) AS success,
        arg_max(metrics['mean_reward'], n) AS held_out_reward
    FROM told WHERE kind = 'evaluated' GROUP BY policy, version
)
SELECT t.policy, t.version, s.statuses[t.version] AS status, CASE s.statuses[t.version] WHEN 'canary' THEN s.share END
    AS share, t.parent_version,
    CASE WHEN t.tuning IS NOT NULL THEN t.tuning.method WHEN t.outside IS NOT NULL THEN 'outside'
        WHEN t.recipe['imported.framework'] IS NOT NULL THEN 'imported' ELSE 'batches' END AS made_by,
    t.tuning.dataset AS dataset, t.first_batch, t.last_batch, m.suite, m.success, m.held_out_reward,
    t.metrics['reward'] AS reward, t.uri, CAST(list_sum(list_transform(t.files, lambda f: f.bytes)) AS BIGINT) AS bytes,
    t.base_digest, t.actor, t.created_at, t._partition, t._offset, t._timestamp
FROM fold AS f JOIN told AS t USING (policy, n) JOIN newest AS s USING (policy)
LEFT JOIN measured AS m ON m.policy = t.policy AND m.version = t.version
SEMI JOIN adapters USING (_partition, _offset)
WHERE f.works AND t.kind = 'trained'
"""
"""Each version that was made, as it is now."""

UNIQUE = {"tasks": "task_id", "responses": "response_id", "rewards": "reward_id", "groups": "group_id"}
"""By topic: the id of its events. `admin dlq retry` and a producer's retry write a record again, to its partition."""


def _unique(label: str, key: str) -> SqlView:
    sql = f"""
WITH first AS (SELECT _partition, min(_offset) AS _offset FROM whole.{label} GROUP BY _partition, {key})
FROM {label} SEMI JOIN first USING (_partition, _offset)
"""  # noqa: S608 - our names
    about = f"the first record of each {key}, however often it was written"
    return SqlView(f"unique_{label}", label, about, SHAPES[label].tenant, sql)


JOINS = (
    SqlView(
        "group_responses", "groups", "one row per response in a group, with its reward", NO_TENANT, GROUP_RESPONSES,
        ("responses",),
    ),
    SqlView(
        "lineage", "adapters", "adapter version <- batch <- group <- response, one row per response of its step",
        NO_TENANT, KNOWN_VERSIONS + ", " + CUT + LINEAGE, ("batches", "groups"),
    ),
    SqlView(
        "spans", "groups", "one row per turn of a grouped response, with its credit", NO_TENANT, SPANS, ("responses",)
    ),
    SqlView(
        "rollout", "adapters", "one row per AdapterEvent, with who answers after it", OWN_POLICY,
        KNOWN_VERSIONS + ROLLOUT,
    ),
    SqlView(
        "policy_checkpoints", "adapters",
        "one row per version of a policy: what made it, how it did, and what it is now", OWN_POLICY,
        KNOWN_VERSIONS + FOLDED + CHECKPOINTS,
    ),
    *(_unique(label, key) for label, key in UNIQUE.items()),
    RUNS,
)  # fmt: skip
"""Those of this distribution."""


@cache
def joins() -> tuple[SqlView, ...]:
    """Return every view that is no topic's. Raises SettingsError if a plugin's has a name or a topic that cannot be."""
    by_name = {view.name: view for view in JOINS}
    for plugin, _, _ in load_plugins():
        for view in plugin.load_all(plugin.views):
            if view.name in by_name or view.name in map(name_of, SHAPES):
                raise SettingsError(f"plugin {plugin.name}: view {view.name} is another's; give it another name")
            if unknown := [label for label in (view.label, *view.also) if label not in SHAPES]:
                raise SettingsError(f"plugin {plugin.name}: view {view.name} is of no topic {', '.join(unknown)}")
            by_name[view.name] = view
    return tuple(by_name.values())


def views(settings: Settings) -> dict[str, SqlView]:
    """Return every view by its name, topics first, in the order of the topics."""
    topic_views = [
        SqlView(name_of(label), label, f"one row per {topic.event.__name__} on {topic.name}", SHAPES[label].tenant)
        for label, topic in topics(settings.topics).items()
    ]
    return {view.name: view for view in (*topic_views, *joins())}


def tenant_conditions() -> dict[str, str]:
    """Return for each view which of its rows are a tenant's, as TopicShape has it."""
    topic_views = {name_of(label): shape.tenant for label, shape in SHAPES.items()}
    return topic_views | {view.name: view.tenant for view in joins()}


def name_of(label: str) -> str:
    """Return the name of a topic's view."""
    return label.replace("-", "_")


def columns(label: str, names: Iterable[str]) -> str:
    """Return the columns of a topic's view, as a SELECT of its fields lists them."""
    return _select_list(names, COMPUTED.get(label, {}), _MEMBERS)


def archived_columns(label: str, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of a topic's view, as SELECTs of a file of the archive list them, by their conditions.

    Each record meets one condition; `` is met by all.
    """
    apart = APART.get(label, {"": COMPUTED.get(label, {})})
    return {condition: _select_list(names, computed, MEMBERS) for condition, computed in apart.items()}


def _select_list(names: Iterable[str], computed: Mapping[str, str], members: str) -> str:
    expressions = {name: sql.format(members=members) for name, sql in computed.items()}
    all_names = dict.fromkeys([*names, *expressions])
    return ", ".join(
        f"{expressions[name]} AS {name}" if name in expressions else identifier(name) for name in all_names
    )


def literal(text: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"
