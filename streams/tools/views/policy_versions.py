"""Policies: their versions with what each was made of, which one answers, the decisions, and how they learn.

    adapters        ──► versions, and folded: statuses, decisions
    batches, groups ──► what each version was made of, and what its answers were worth
    overlays.py     ──► its curves              question_flips.py ──► its held-out questions by version

The fold is that of the view `rollout`, and gives the same rows: in SQL it takes seconds for a thousand versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.events import AdapterEvent
from streams.adapters.serving import Serving, Status, refusal, step_in_place
from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.replay.experiments import Experiment
from streams.tools.views.curves import TRAINED_SQL, Over, answer_figures, suite_scores
from streams.tools.views.log_view import LogSnapshot, Row, RowPage
from streams.tools.views.overlays import CurveOverlay, read_experiments, read_overlay
from streams.tools.views.question_flips import QuestionTable, read_questions

PAGE_SIZE = 100
"""Versions on one page, and decisions."""
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


def versions_sql(policy: str) -> str:
    """Return the statement of what made each version: its event, and the batch of its step."""
    return f"""
WITH made AS (
    SELECT version, parent_version, first_batch, last_batch, metrics, tuning IS NOT NULL AS tuned, uri, _partition,
        _offset, _timestamp
    {TRAINED_SQL.format(literal(policy))}
), cut AS (
    SELECT sequence, groups AS batch_groups, responses, loss_tokens, len(dropped) AS passed_over,
        _partition AS batch_partition, _offset AS batch_offset
    FROM batches WHERE policy = {literal(policy)}
    QUALIFY row_number() OVER (PARTITION BY sequence ORDER BY _offset) = 1
)
SELECT * FROM made LEFT JOIN cut ON cut.sequence = made.last_batch ORDER BY version DESC
"""  # noqa: S608 - a literal


def events_sql(policy: str) -> str:
    """Return the statement of all events of a policy's versions, in their order."""
    return f"""
SELECT policy, kind, version, expected_version, suite, CAST(share AS DOUBLE) AS share, actor, reason, event_id,
    _partition, _offset, _timestamp
FROM adapters WHERE policy = {literal(policy)} ORDER BY _partition, _offset
"""  # noqa: S608


# --- one policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyChoice:
    """What a visitor wants to see of a policy."""

    first: int = 0
    """How many versions, and decisions, come before those that are shown."""
    others: tuple[str, ...] = ()
    """Names of policies and experiments that are laid over its curves."""
    over: Over = "version"
    suite: str = ""
    """The suite of the questions that are shown; `` is the one that was asked last."""


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
    rows = log.recall(f"versions {policy}", lambda: _version_rows(log, policy), from_log=True)
    events, statuses = log.recall(f"events {policy}", lambda: fold_events(log.rows(events_sql(policy))), from_log=True)
    if not rows and not events:
        names = ", ".join(row["policy"] for row in log.rows(POLICIES_SQL))
        raise NotFoundError(f"the log knows no policy {policy[:80]!r}; there are {names or 'none'}")
    scores: dict[int, list[Row]] = {}
    for row in suite_scores(log, policy):
        scores.setdefault(row["version"], []).append(row)
    decisions = [row for row in reversed(events) if row["kind"] not in ("trained", "evaluated")]
    end = choice.first + PAGE_SIZE
    versions = rows[choice.first : end]
    return PolicyHistory(
        policy,
        RowPage(versions, choice.first, PAGE_SIZE, is_last=max(len(rows), len(decisions)) <= end),
        [*dict.fromkeys(name for row in versions for name in row["metrics"] or ())],
        scores,
        statuses,
        serving=events[-1] if events else None,
        decisions=decisions[choice.first : end],
        curves=read_overlay(log, policy, choice.others, choice.over),
        questions=read_questions(log, policy, choice.suite),
    )


def _version_rows(log: LogSnapshot, policy: str) -> list[Row]:
    """Return every version that was made or answered, the newest first."""
    answers = {row["version"]: row for row in answer_figures(log, policy)}
    steps = {row["version"]: row for row in log.rows(versions_sql(policy))}
    numbers = sorted(answers.keys() | steps.keys(), reverse=True)
    return [
        NO_ANSWERS | answers.get(number, {}) | steps.get(number, NO_STEP | {"version": number}) for number in numbers
    ]


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
