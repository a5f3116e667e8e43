"""Policies: their versions with what each was made of, which one answers, the decisions, and how they learn.

adapters ──► versions, and folded: statuses, decisions    groups ──► mean reward by version, a curve per scenario
batches, groups ──► what each version was made of         adapters ──► held-out score by version, a curve per suite

The fold is that of the view `rollout`, and gives the same rows: in SQL it takes seconds for a thousand versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from schemas.events import AdapterEvent
from streams.adapters.serving import Serving, Status, refusal, step_in_place
from streams.errors import NotFoundError
from streams.evaluation.intervals import wilson
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row, RowPage
from streams.tools.views.task import outcomes_sql

PAGE_SIZE = 100
"""Versions on one page, and decisions."""

POLICIES_SQL = """
WITH named AS (SELECT policy FROM adapters UNION SELECT policy FROM groups)
SELECT n.policy, max(a.version) FILTER (a.kind = 'trained') AS newest,
    count(*) FILTER (a.kind = 'promoted') AS promotions, max(a._timestamp) AS changed
FROM named AS n LEFT JOIN adapters AS a USING (policy) GROUP BY n.policy ORDER BY n.policy
"""


_TRAINED_SQL = """FROM adapters WHERE policy = {} AND kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY version ORDER BY _offset) = 1"""
"""Each version of a policy once, by the event that made it."""


def versions_sql(policy: str) -> str:
    """Return the statement of a policy's versions, newest first: what made each, and what its answers were worth."""
    of_policy = f"policy = {literal(policy)} AND purpose = 'train'"
    return f"""
WITH made AS (
    SELECT version, parent_version, first_batch, last_batch, metrics, tuning IS NOT NULL AS tuned, uri, _partition,
        _offset, _timestamp
    {_TRAINED_SQL.format(literal(policy))}
), answered AS (
    SELECT adapter_version AS version, count(*) AS groups, avg(reward_mean) AS reward,
        count(*) FILTER (NOT flat) AS differed, sum(cut_answers) / nullif(sum(scored), 0) AS cut_share
    FROM ({outcomes_sql(of_policy)}) WHERE adapter_version >= 0 GROUP BY ALL
), cut AS (
    SELECT sequence, groups AS batch_groups, responses, loss_tokens, len(dropped) AS passed_over,
        _partition AS batch_partition, _offset AS batch_offset
    FROM batches WHERE policy = {literal(policy)}
    QUALIFY row_number() OVER (PARTITION BY sequence ORDER BY _offset) = 1
)
SELECT * FROM made FULL JOIN answered USING (version) LEFT JOIN cut ON cut.sequence = made.last_batch
ORDER BY version DESC
"""  # noqa: S608 - a literal


def held_out_sql(policy: str) -> str:
    """Return the statement of the held-out scores: one row per version and suite, the newest of each."""
    return f"""
SELECT suite, version, metrics['exact'] AS exact, metrics['mean_reward'] AS mean_reward,
    CAST(metrics['n'] AS BIGINT) AS n, _partition, _offset
FROM adapters WHERE policy = {literal(policy)} AND kind = 'evaluated'
QUALIFY row_number() OVER (PARTITION BY suite, version ORDER BY _offset DESC) = 1 ORDER BY suite, version
"""  # noqa: S608


def rewards_sql(policy: str) -> str:
    """Return the statement of the curves: the mean reward of the train groups of each version, by scenario.

    The band is the mean and twice its standard error over groups: about 95 %.
    """
    return f"""
SELECT scenario, adapter_version AS version, count(*) AS groups, avg(reward_mean) AS mean,
    avg(reward_mean) - 2 * coalesce(stddev_samp(reward_mean), 0) / sqrt(count(*)) AS low,
    avg(reward_mean) + 2 * coalesce(stddev_samp(reward_mean), 0) / sqrt(count(*)) AS high
FROM (FROM groups WHERE policy = {literal(policy)} AND purpose = 'train' AND reward_mean IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1)
GROUP BY ALL ORDER BY scenario, version
"""  # noqa: S608


def events_sql(policy: str) -> str:
    """Return the statement of all events of a policy's versions, in their order."""
    return f"""
SELECT policy, kind, version, expected_version, suite, CAST(share AS DOUBLE) AS share, actor, reason, event_id,
    _partition, _offset, _timestamp
FROM adapters WHERE policy = {literal(policy)} ORDER BY _partition, _offset
"""  # noqa: S608


# --- curves -----------------------------------------------------------------------------------------------------------


class CurvePoint(NamedTuple):
    """A value of one version, and the ends of its band."""

    version: int
    value: float
    low: float
    high: float


@dataclass(slots=True)
class Curve:
    """A line over versions, with a band."""

    name: str
    points: list[CurvePoint] = field(default_factory=list)


def held_out(log: LogSnapshot, policy: str) -> list[Curve]:
    """Return the curves of held-out scores, one for each suite."""
    curves: dict[str, Curve] = {}
    for row in log.rows(held_out_sql(policy)):
        if row["exact"] is not None and row["n"]:
            band = wilson(row["exact"], row["n"])
            curve = curves.setdefault(row["suite"], Curve(row["suite"] or "held out"))
            curve.points.append(CurvePoint(row["version"], row["exact"], band.low, band.high))
    return [*curves.values()]


def reward_on_held_out(log: LogSnapshot, policy: str) -> list[Curve]:
    """Return the curves of rewards on held-out tasks, one for each suite whose rewards say more than right or wrong."""
    curves: dict[str, Curve] = {}
    says_more = set[str]()
    for row in log.rows(held_out_sql(policy)):
        reward = row["mean_reward"]
        if reward is not None:
            curve = curves.setdefault(row["suite"], Curve(row["suite"] or "held out"))
            curve.points.append(CurvePoint(row["version"], reward, reward, reward))
            if reward != row["exact"]:
                says_more.add(row["suite"])
    return [curve for suite, curve in curves.items() if suite in says_more]


def train_reward(log: LogSnapshot, policy: str) -> list[Curve]:
    """Return the curves of rewards, one for each scenario."""
    curves: dict[str, Curve] = {}
    for row in log.rows(rewards_sql(policy)):
        curve = curves.setdefault(row["scenario"], Curve(row["scenario"]))
        curve.points.append(CurvePoint(row["version"], row["mean"], row["low"], row["high"]))
    return [*curves.values()]


CURVES = {"Held-out score": held_out, "Held-out reward": reward_on_held_out, "Train reward": train_reward}
"""The curves of a policy, by title."""
MEASURES = {
    "loss": "loss",
    "kl": "KL to the sampler, nats per token",
    "entropy": "entropy, nats per token",
    "grad_norm": "norm of the gradient",
    "clipped": "share of tokens clipped",
    "effective": "effective share of the tokens",
}
"""Titles of the figures of a step that are drawn, by their names in its metrics."""


def measures(log: LogSnapshot, policy: str) -> list[Curve]:
    """Return what the trainer measured of each version's step, one curve for each figure."""
    curves = {name: Curve(title) for name, title in MEASURES.items()}
    for row in log.rows(f"SELECT version, metrics {_TRAINED_SQL.format(literal(policy))} ORDER BY version"):
        for name, curve in curves.items():
            if (value := row["metrics"].get(name)) is not None and math.isfinite(value):
                curve.points.append(CurvePoint(row["version"], value, value, value))
    return [curve for curve in curves.values() if len(curve.points) > 1]


# --- one policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyHistory:
    """A policy: of its versions and decisions PAGE_SIZE, the newest first; its curves are whole."""

    policy: str
    versions: RowPage
    scores: dict[int, list[Row]]
    """Held-out scores by version."""
    statuses: dict[int, str]
    serving: Row | None
    """Its last event, with the versions that answer since; None before the first."""
    decisions: list[Row]
    curves: dict[str, list[Curve]]
    measures: list[Curve]
    """What the trainer measured, a curve for each figure."""


def list_policies(log: LogSnapshot) -> RowPage:
    """Return every policy of the log."""
    return RowPage(log.rows(POLICIES_SQL))


def find_policy(log: LogSnapshot, policy: str, first: int = 0) -> PolicyHistory:
    """Return a policy, with its versions and decisions from the `first` on. Raises NotFoundError."""
    versions = log.page(versions_sql(policy), first, PAGE_SIZE)
    events, statuses = fold_events(log.rows(events_sql(policy)))
    if not versions.rows and not events and not first:
        names = ", ".join(row["policy"] for row in log.rows(POLICIES_SQL))
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}; there are {names or 'none'}")
    scores: dict[int, list[Row]] = {}
    for row in log.rows(held_out_sql(policy)):
        scores.setdefault(row["version"], []).append(row)
    decisions = [row for row in reversed(events) if row["kind"] not in ("trained", "evaluated")]
    is_last = versions.is_last and len(decisions) <= first + PAGE_SIZE
    return PolicyHistory(
        policy,
        replace(versions, is_last=is_last),
        scores,
        statuses,
        serving=events[-1] if events else None,
        decisions=decisions[first : first + PAGE_SIZE],
        curves={title: read(log, policy) for title, read in CURVES.items()},
        measures=measures(log, policy),
    )


def fold_events(events: list[Row]) -> tuple[list[Row], dict[int, str]]:
    """Return the rows of `rollout` for the events of a policy's versions, and the status of each version."""
    statuses: dict[int, Status] = {0: "primary"}
    serving, repeated, rows = Serving(statuses), set[tuple[Any, ...]](), []
    for row in events:
        event = AdapterEvent(
            event_id=row["event_id"], policy=row["policy"], created_at=0, version=row["version"], kind=row["kind"],
            actor=row["actor"], reason=row["reason"], expected_version=row["expected_version"], share=row["share"],
        )  # fmt: skip
        effect = "refused"
        if _is_repeated(row, repeated, statuses):
            effect = "again"
        elif refusal(event, serving) is None:
            serving, effect = step_in_place(serving, event, statuses), "effective"
        versions = {"primary_version": serving.primary, "candidate_version": serving.candidate}
        rows.append(row | {"effect": effect, "share": serving.share} | versions)
    return rows, {version: status.replace("_", " ") for version, status in statuses.items()}


def _is_repeated(row: Row, before: set[tuple[Any, ...]], statuses: Mapping[int, Status]) -> bool:
    """Return whether an event was there before, and note it: by its id, or once for each version and suite."""
    if row["kind"] == "trained":
        return row["version"] in statuses
    if row["kind"] == "evaluated" and row["version"] not in statuses:
        return False
    key = (row["version"], row["suite"] or "") if row["kind"] == "evaluated" else (row["event_id"],)
    is_repeated = key in before
    before.add(key)
    return is_repeated
