"""Policies: their versions and the sources of each, the primary, the decisions, and the learning curves.

    adapters        ──► versions, and folded: statuses, decisions
    batches, groups ──► what each version was made of, and what its answers were worth
    overlays.py     ──► its curves              question_flips.py ──► its held-out questions by version

The fold is that of the view `rollout`, and gives the same rows: in SQL it takes seconds for a thousand versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plugins.page.views.curves import TRAINED_SQL, answered_sql, read_trend, step_figures, suite_scores, train_groups
from plugins.page.views.overlays import CurveOverlay, read_experiments, read_overlay
from plugins.page.views.question_flips import QuestionTable, read_questions
from schemas.events import AdapterEvent
from streams.adapters.serving import Serving, Status, refusal, step_in_place
from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.replay.experiments import Experiment
from streams.tools.views.curve import Over
from streams.tools.views.log_view import LogSnapshot, Row, RowPage

PAGE_SIZE = 100
"""Versions on one page, and decisions."""
MOST_GROUPS = 20_000
"""Groups of a policy up to which its page has its curves at once."""
NO_ANSWERS: Row = dict.fromkeys(("groups", "reward", "differed", "taught", "cut_share"))
"""Of a version that has answered no train task."""
NO_STEP: Row = dict.fromkeys(
    ("parent_version", "metrics", "tuned", "_partition", "_offset", "_timestamp", "sequence", "batch_groups",
     "responses", "loss_tokens", "passed_over", "batch_partition", "batch_offset")
)  # fmt: skip
"""Of a version that no step made: the base model."""

POLICIES_SQL = """
WITH named AS (SELECT policy FROM adapters UNION SELECT policy FROM groups)
SELECT n.policy, max(a.version) FILTER (a.kind = 'trained') AS newest,
    count(*) FILTER (a.kind = 'promoted') AS promotions, max(a._timestamp) AS changed
FROM named AS n LEFT JOIN adapters AS a USING (policy) GROUP BY n.policy ORDER BY n.policy
"""


def numbers_sql(policy: str) -> str:
    """Return the statement of the versions that were made or have answered, the newest first."""
    return f"""
SELECT version FROM adapters WHERE policy = {literal(policy)} AND kind = 'trained'
UNION SELECT adapter_version FROM groups WHERE {train_groups(policy)} AND adapter_version >= 0
ORDER BY version DESC
"""  # noqa: S608 - a literal


def versions_sql(policy: str, versions: Sequence[int]) -> str:
    """Return the statement of what made some versions: their events, and the batches of their steps."""
    return f"""
WITH made AS (
    SELECT version, parent_version, first_batch, last_batch, metrics, tuning IS NOT NULL AS tuned, uri, _partition,
        _offset, _timestamp
    {TRAINED_SQL.format(f"{literal(policy)} AND version IN ({_number_list(versions)})")}
), cut AS (
    SELECT sequence, groups AS batch_groups, responses, loss_tokens, len(dropped) AS passed_over,
        _partition AS batch_partition, _offset AS batch_offset
    FROM batches WHERE policy = {literal(policy)} AND sequence IN (SELECT last_batch FROM made)
    QUALIFY row_number() OVER (PARTITION BY sequence ORDER BY _offset) = 1
)
SELECT * FROM made LEFT JOIN cut ON cut.sequence = made.last_batch
"""  # noqa: S608 - a literal


def _number_list(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or "NULL"


def events_sql(policy: str) -> str:
    """Return the statement of all events of a policy's versions, in their order."""
    return f"""
SELECT policy, kind, version, expected_version, suite, CAST(share AS DOUBLE) AS share, actor, reason, event_id,
    _partition, _offset, _timestamp
FROM adapters WHERE policy = {literal(policy)} ORDER BY _partition, _offset
"""  # noqa: S608


def usage_sql(policy: str) -> str:
    """Return the statement of what a policy used until now: its answers and their tokens, once each."""
    return f"""
SELECT count(*) AS answers, CAST(sum(tokens) AS BIGINT) AS tokens, epoch_ms(min(first)) AS began_ms,
    epoch_ms(max(first)) AS newest_ms
FROM (SELECT arg_min(completion_tokens, _offset) AS tokens, min(_timestamp) AS first FROM responses
    WHERE policy = {literal(policy)} GROUP BY response_id)
"""  # noqa: S608 - a literal


# --- one policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyChoice:
    """What a visitor wants to see of a policy."""

    first: int = 0
    """How many versions, and decisions, come before those that are shown."""
    others: tuple[str, ...] = ()
    """Names of policies and experiments that are laid over its curves."""
    over: Over = "version"
    at_once: bool = False
    """Whether the curves are read however long that takes."""
    suite: str = ""
    """The suite of the questions that are shown; `` is the one that was asked last."""
    pinned: tuple[str, ...] = ()
    """Keys of charts that come first, in this order."""


@dataclass(frozen=True)
class PolicyHistory:
    """A policy: of its versions and decisions PAGE_SIZE, the newest first; its curves are whole."""

    policy: str
    versions: RowPage
    metric_names: list[str]
    """Of everything that was measured of these versions."""
    scores: dict[int, list[Row]]
    """Held-out scores by version."""
    statuses: dict[int, str]
    serving: Row | None
    """Its last event, with the versions that answer since; None before the first."""
    decisions: list[Row]
    curves: CurveOverlay
    questions: QuestionTable | None
    """None without a held-out question."""
    trend: str
    """How its held-out scores went, in a sentence."""
    usage: Row
    """Its `answers`, their `tokens`, `began_ms`, `newest_ms`, and the seconds of its training steps, `trainer_s`."""
    pinned: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyList:
    """Every policy, and every experiment."""

    policies: list[Row]
    experiments: list[Experiment]


def list_policies(log: LogSnapshot) -> PolicyList:
    """Return what there are curves of."""
    return PolicyList(log.rows(POLICIES_SQL), read_experiments(log))


def find_policy(log: LogSnapshot, policy: str, choice: PolicyChoice | None = None) -> PolicyHistory:
    """Return a policy, with what was chosen of it. Raises NotFoundError, and as `read_overlay`."""
    choice = choice or PolicyChoice()
    numbers = log.page(numbers_sql(policy), choice.first, PAGE_SIZE)
    events, statuses = log.recall(f"events {policy}", lambda: fold_events(log.rows(events_sql(policy))), from_log=True)
    if not numbers.rows and not events and not choice.first:
        names = ", ".join(row["policy"] for row in log.rows(POLICIES_SQL))
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}; there are {names or 'none'}")
    scores: dict[int, list[Row]] = {}
    for row in suite_scores(log, policy):
        scores.setdefault(row["version"], []).append(row)
    decisions = [row for row in reversed(events) if row["kind"] not in ("trained", "evaluated")]
    end = choice.first + PAGE_SIZE
    versions = version_rows(log, policy, [row["version"] for row in numbers.rows])
    is_late = not choice.at_once and _is_long(log, policy)
    return PolicyHistory(
        policy,
        replace(numbers, rows=versions, is_last=numbers.is_last and len(decisions) <= end),
        [*dict.fromkeys(name for row in versions for name in row["metrics"] or ())],
        scores,
        statuses,
        serving=events[-1] if events else None,
        decisions=decisions[choice.first : end],
        curves=_pin(read_overlay(log, policy, choice.others, choice.over, is_late=is_late), choice.pinned),
        questions=read_questions(log, policy, choice.suite),
        trend=read_trend(log, policy),
        usage=log.recall(f"usage {policy}", lambda: _read_usage(log, policy), from_log=True),
        pinned=choice.pinned,
    )


def _read_usage(log: LogSnapshot, policy: str) -> Row:
    steps = [row["metrics"].get("step_s", 0.0) for row in step_figures(log, policy)]
    usage = log.first(usage_sql(policy))
    assert usage is not None  # noqa: S101 - an aggregate has a row
    return usage | {"trainer_s": sum(steps)}


def _pin(curves: CurveOverlay, pinned: Sequence[str]) -> CurveOverlay:
    """Return curves with these charts first, in their order."""
    charts = {chart.figure.key: chart for section in curves.sections for chart in section.charts}
    first = [charts[key] for key in dict.fromkeys(pinned) if key in charts]
    if not first:
        return curves
    rest = [
        replace(section, charts=[chart for chart in section.charts if chart not in first])
        for section in curves.sections
    ]
    rest[0] = replace(rest[0], charts=[*first, *rest[0].charts])
    return replace(curves, sections=[section for section in rest if section.charts])


def version_rows(log: LogSnapshot, policy: str, versions: Sequence[int]) -> list[Row]:
    """Return what made each of some versions, and what its answers were worth."""
    narrowed = answered_sql(policy, f"adapter_version IN ({_number_list(versions)})")
    answers = {row["version"]: row for row in log.rows(narrowed)}
    steps = {row["version"]: row for row in log.rows(versions_sql(policy, versions))}
    return [
        NO_ANSWERS | answers.get(number, {}) | steps.get(number, NO_STEP | {"version": number}) for number in versions
    ]


def _is_long(log: LogSnapshot, policy: str) -> bool:
    """Return whether reading the curves of a policy takes longer than a reader would wait for a page."""
    count = log.first(f"SELECT count(*) AS groups FROM groups WHERE policy = {literal(policy)}")  # noqa: S608
    return count is not None and count["groups"] > MOST_GROUPS


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
