"""Views and lists of what improves a policy: builds of data sets, rules that retrain, recipes of sweeps.

datasets ──► each build once ──► dataset_builds        triggers ──► each rule ──► retrain_rules, evidence over time
experiments ──► the newest event of each ──► replay_experiments: recipes of a sweep and other replays
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ListSection, ViewList
from streams.topics.shape import OF_TENANT

_BUILDS = """
SELECT dataset, left(digest, 12) AS build, digest, policy, tenant,
    counts, scenarios, labellers, selection, drift, ranges, versions, folder,
    code_version, actor, reason, created_at, _partition, _offset, _timestamp
FROM datasets WHERE kind = 'built' QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
"""
_RULES = """
WITH effective AS (
    FROM triggers QUALIFY row_number() OVER (PARTITION BY rule, sequence ORDER BY _partition, _offset) = 1
)
SELECT rule, any_value(policy) AS policy, any_value(tenant) AS tenant, count(*) FILTER (kind = 'crossed') AS crossed,
    arg_max(signal, sequence) FILTER (kind = 'crossed') AS last_signal,
    arg_max(job_id, sequence) FILTER (kind = 'crossed') AS job_id,
    max(created_at) FILTER (kind = 'crossed') AS crossed_at, arg_max(reason, sequence) AS reason,
    max(created_at) AS looked_at, min(_partition) AS _partition, max(_offset) AS _offset, max(_timestamp) AS _timestamp
FROM effective GROUP BY rule
"""
_EXPERIMENTS = """
SELECT experiment, policy, kind AS state, counts, changed,
    map_from_entries(list_filter(map_entries(settings), lambda s: list_contains(changed, s.key))) AS changes,
    selection, actor, reason, code_version, created_at, _partition, _offset, _timestamp
FROM experiments QUALIFY row_number() OVER (PARTITION BY experiment ORDER BY _partition, _offset DESC) = 1
"""
VIEWS = (
    SqlView("dataset_builds", "datasets", "one row per build of a data set: rows by split, and where they came from",
            OF_TENANT, _BUILDS),
    SqlView("retrain_rules", "triggers", "one row per rule that retrains: how often it was crossed, and its job",
            OF_TENANT, _RULES),
    SqlView("replay_experiments", "experiments", "one row per experiment, such as a recipe of a sweep: its state",
            "false", _EXPERIMENTS),
)  # fmt: skip
LISTS = (
    ViewList(
        "datasets",
        "Data sets",
        "dataset_builds",
        columns=("build", "dataset", "policy", "counts", "folder", "actor", "created_at"),
        order="created_at DESC",
        filters=("dataset", "policy"),
        key="build",
        facts=(
            "digest",
            "reason",
            "selection",
            "scenarios",
            "labellers",
            "versions",
            "drift",
            "ranges",
            "code_version",
        ),
        sections=(
            ListSection(
                "Tuned from it elsewhere",
                "datasets",
                ("created_at", "kind", "outside", "actor", "reason"),
                "left(digest, 12) = {key} AND kind <> 'built'",
                "created_at DESC",
            ),
        ),
    ),
    ViewList(
        "triggers",
        "Triggers",
        "retrain_rules",
        columns=("rule", "policy", "crossed", "last_signal", "job_id", "crossed_at", "looked_at"),
        order="looked_at DESC",
        filters=("policy",),
        key="rule",
        facts=("reason",),
        sections=(
            ListSection(
                "Evidence over time",
                "triggers",
                ("created_at", "kind", "signal", "evidence", "action", "job_id", "actor", "reason"),
                "rule = {key}",
                "created_at DESC",
            ),
        ),
    ),
    ViewList(
        "sweeps",
        "Sweeps",
        "replay_experiments",
        columns=("experiment", "policy", "state", "changes", "counts", "actor", "created_at"),
        order="created_at DESC",
        filters=("policy", "state"),
        key="experiment",
        facts=("reason", "selection", "code_version"),
        sections=(
            ListSection(
                "Its steps",
                "experiments",
                ("created_at", "kind", "counts", "actor", "reason"),
                "experiment = {key}",
                "created_at DESC",
            ),
        ),
    ),
)
