"""Policies: their versions with where each comes from, who answers, the decisions, and how they learn.

adapters ──► versions, and folded: statuses, decisions    groups ──► mean reward by version, a curve per scenario
batches, groups ──► what each version was made of         adapters ──► held-out score by version, a curve per suite

The fold is that of the view `rollout`, and gives the same rows: in SQL it takes seconds for a thousand versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.events import AdapterEvent
from streams.adapters.serving import Serving, Status, refusal, step_in_place
from streams.errors import NotFoundError
from streams.evaluation.intervals import wilson
from streams.tools.query.views import literal
from streams.tools.views.log_view import Look, Row

MOST = 100
"""Versions on one page, and decisions."""

POLICIES_SQL = """
WITH named AS (SELECT policy FROM adapters UNION SELECT policy FROM groups)
SELECT n.policy, max(a.version) FILTER (a.kind = 'trained') AS newest,
    count(*) FILTER (a.kind = 'promoted') AS promotions, max(a._timestamp) AS changed
FROM named AS n LEFT JOIN adapters AS a USING (policy) GROUP BY n.policy ORDER BY n.policy
"""


def versions_sql(policy: str) -> str:
    """Return the statement of a policy's versions, newest first: what made each, and what its answers were worth."""
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


def told_sql(policy: str) -> str:
    """Return the statement of everything that was said of a policy's versions, in its order."""
    return f"""
SELECT policy, kind, version, expected_version, suite, CAST(share AS DOUBLE) AS share, actor, reason, event_id,
    _partition, _offset, _timestamp
FROM adapters WHERE policy = {literal(policy)} ORDER BY _partition, _offset
"""  # noqa: S608


@dataclass(slots=True)
class Curve:
    """A line over versions, with a band."""

    name: str
    points: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Version, value, and the band's lower and upper end."""


def curves(look: Look, policy: str) -> dict[str, list[Curve]]:
    """Return the curves of a policy, by what they show."""
    return {name: found(look, policy) for name, found in CURVES.items()}


def held_out(look: Look, policy: str) -> list[Curve]:
    """Return the curves of held-out scores, one for each suite."""
    found: dict[str, Curve] = {}
    for row in look.rows(held_out_sql(policy)):
        if row["exact"] is not None and row["n"]:
            band = wilson(row["exact"], row["n"])
            curve = found.setdefault(row["suite"], Curve(row["suite"] or "held out"))
            curve.points.append((row["version"], row["exact"], band.low, band.high))
    return [*found.values()]


def train_reward(look: Look, policy: str) -> list[Curve]:
    """Return the curves of rewards, one for each scenario."""
    found: dict[str, Curve] = {}
    for row in look.rows(rewards_sql(policy)):
        curve = found.setdefault(row["scenario"], Curve(row["scenario"]))
        curve.points.append((row["version"], row["mean"], row["low"], row["high"]))
    return [*found.values()]


CURVES = {"Held-out score": held_out, "Train reward": train_reward}


def one(look: Look, policy: str, first: int = 0) -> dict[str, Any]:
    """Return what the page of a policy shows, of versions and decisions MOST from the `first` on, the newest first.

    Raises NotFoundError without such a policy.
    """
    versions = look.rows(f"{versions_sql(policy)} LIMIT {MOST + 1} OFFSET {first}")
    told, became = folded(look.rows(told_sql(policy)))
    if not versions and not told and not first:
        known = ", ".join(row["policy"] for row in look.rows(POLICIES_SQL))
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}; there are {known or 'none'}")
    scores: dict[int, list[Row]] = {}
    for row in look.rows(held_out_sql(policy)):
        scores.setdefault(row["version"], []).append(row)
    decisions = [row for row in reversed(told) if row["kind"] not in ("trained", "evaluated")]
    more = len(versions) > MOST or len(decisions) > first + MOST
    return {
        "policy": policy,
        "versions": versions[:MOST],
        "scores": scores,
        "statuses": became,
        "serving": told[-1] if told else None,
        "decisions": decisions[first : first + MOST],
        "first": first,
        "most": MOST,
        "more": first + MOST if more else None,
        "curves": curves(look, policy),
    }


def folded(told: list[Row]) -> tuple[list[Row], dict[int, str]]:
    """Return the rows of `rollout` for what was said of a policy's versions, and what became of each version."""
    statuses: dict[int, Status] = {0: "primary"}
    serving, before, rows = Serving(statuses), set[tuple[Any, ...]](), []
    for row in told:
        event = AdapterEvent(
            event_id=row["event_id"], policy=row["policy"], created_at=0, version=row["version"], kind=row["kind"],
            actor=row["actor"], reason=row["reason"], expected_version=row["expected_version"], share=row["share"],
        )  # fmt: skip
        effect = "refused"
        if _again(row, before, statuses):
            effect = "again"
        elif refusal(event, serving) is None:
            serving, effect = step_in_place(serving, event, statuses), "effective"
        now = {"effect": effect, "primary_version": serving.primary, "candidate_version": serving.candidate}
        rows.append(row | now | {"share": serving.share})
    return rows, {version: status.replace("_", " ") for version, status in statuses.items()}


def _again(row: Row, before: set[tuple[Any, ...]], known: Mapping[int, Status]) -> bool:
    """Return whether something was said before, and note it: by its id, or once for each version that is known."""
    if row["kind"] == "trained":
        return row["version"] in known
    if row["kind"] == "evaluated" and row["version"] not in known:
        return False
    what = (row["version"], row["suite"] or "") if row["kind"] == "evaluated" else (row["event_id"],)
    again = what in before
    before.add(what)
    return again


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
