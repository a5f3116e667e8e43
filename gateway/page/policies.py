"""Policies: their versions with where each comes from, who answers, the decisions, and how they learn.

adapters ──► versions, statuses, decisions     groups ──► mean reward by version, a curve per scenario
batches, groups ──► what each version was made of         adapters ──► held-out score by version, a curve per suite
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.page.log_view import Look, Row
from streams.errors import NotFoundError
from streams.evaluation.intervals import wilson
from streams.tools.query.views import literal

BECOMES = {"promoted": "primary", "rolled_back": "primary", "canary_started": "canary", "canary_advanced": "canary"}
"""What a decision makes of its version; any other is called as its kind."""

POLICIES_SQL = """
WITH named AS (SELECT policy FROM adapters UNION SELECT policy FROM groups)
SELECT n.policy, max(a.version) FILTER (a.kind = 'trained') AS newest,
    count(*) FILTER (a.kind = 'promoted') AS promotions, max(a._timestamp) AS changed
FROM named AS n LEFT JOIN adapters AS a USING (policy) GROUP BY n.policy ORDER BY n.policy
"""


def versions_sql(policy: str) -> str:
    """Return the statement of a policy's versions: what made each, and what the answers it gave were worth."""
    return f"""
WITH made AS (
    SELECT version, parent_version, first_batch, last_batch, metrics, tuning IS NOT NULL AS tuned, uri, _partition,
        _offset, _timestamp
    FROM adapters WHERE policy = {literal(policy)} AND kind = 'trained'
    QUALIFY row_number() OVER (PARTITION BY version ORDER BY _offset) = 1
), answered AS (
    SELECT adapter_version AS version, count(*) AS groups, avg(reward_mean) AS reward,
        count(*) FILTER (dropped_reason IS NOT NULL) AS dropped
    FROM groups WHERE policy = {literal(policy)} AND purpose = 'train' AND adapter_version >= 0 GROUP BY ALL
), cut AS (
    SELECT sequence, groups AS batch_groups, responses, loss_tokens, len(dropped) AS passed_over,
        _partition AS batch_partition, _offset AS batch_offset
    FROM batches WHERE policy = {literal(policy)}
    QUALIFY row_number() OVER (PARTITION BY sequence ORDER BY _offset) = 1
)
SELECT * FROM made FULL JOIN answered USING (version) LEFT JOIN cut ON cut.sequence = made.last_batch ORDER BY version
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


def decisions_sql(policy: str) -> str:
    """Return the statement of everything that was said of a policy's versions, and whether it took effect."""
    return f"SELECT * FROM rollout WHERE policy = {literal(policy)} ORDER BY _partition, _offset"  # noqa: S608


@dataclass(slots=True)
class Curve:
    """A line over versions, with a band."""

    name: str
    points: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Version, value, and the band's lower and upper end."""


def curves(look: Look, policy: str) -> dict[str, list[Curve]]:
    """Return the curves of a policy, by what they show."""
    reward: dict[str, Curve] = {}
    for row in look.rows(rewards_sql(policy)):
        curve = reward.setdefault(row["scenario"], Curve(row["scenario"]))
        curve.points.append((row["version"], row["mean"], row["low"], row["high"]))
    held_out: dict[str, Curve] = {}
    for row in look.rows(held_out_sql(policy)):
        if row["exact"] is not None and row["n"]:
            band = wilson(row["exact"], row["n"])
            curve = held_out.setdefault(row["suite"], Curve(row["suite"] or "held out"))
            curve.points.append((row["version"], row["exact"], band.low, band.high))
    return {"Held-out score": [*held_out.values()], "Train reward": [*reward.values()]}


def one(look: Look, policy: str) -> dict[str, Any]:
    """Return what the page of a policy shows. Raises NotFoundError without such a policy."""
    versions, decisions = look.rows(versions_sql(policy)), look.rows(decisions_sql(policy))
    if not versions and not decisions:
        known = ", ".join(row["policy"] for row in look.rows(POLICIES_SQL))
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}; there are {known or 'none'}")
    scores: dict[int, list[Row]] = {}
    for row in look.rows(held_out_sql(policy)):
        scores.setdefault(row["version"], []).append(row)
    return {
        "policy": policy,
        "versions": versions,
        "scores": scores,
        "statuses": statuses(decisions),
        "serving": decisions[-1] if decisions else None,
        "decisions": [row for row in decisions if row["kind"] not in ("trained", "evaluated")],
        "curves": curves(look, policy),
    }


def statuses(decisions: list[Row]) -> dict[int, str]:
    """Return what became of each version, from the rows of `rollout`."""
    found, primary = {0: "primary"}, 0
    for row in decisions:
        version, kind = row["version"], row["kind"]
        if row["effect"] != "effective" or kind in ("evaluated", "judged"):
            continue
        if kind in ("promoted", "rolled_back"):
            found |= {one: "trained" for one, status in found.items() if status == "canary"}
            found[primary] = "superseded" if kind == "promoted" else "rolled back"
            primary = version
        found[version] = BECOMES.get(kind, str(kind))
    return found


def plain(found: list[Curve]) -> dict[str, Any]:
    """Return curves as uPlot takes them: one row of versions, and for each curve its values at them."""
    versions = sorted({point[0] for curve in found for point in curve.points})
    at = [{point[0]: point[1:] for point in curve.points} for curve in found]
    return {
        "x": versions,
        "curves": [
            {
                "name": curve.name,
                **{
                    name: [points[version][number] if version in points else None for version in versions]
                    for number, name in enumerate(("mean", "low", "high"))
                },
            }
            for curve, points in zip(found, at, strict=True)
        ],
    }
