"""Two versions of a policy next to each other: what each was made of, how it did, and where its answers differ.

adapters, batches, groups ──► the figures of each version          held-out outcomes ──► questions that flipped, texts
groups of both, by question ──► the answers of each to the same    rewards, lengths  ──► how many of each
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from plugins.page.views.curves import share_bounds, suite_scores, suite_title, train_groups
from plugins.page.views.group_list import groups_at
from plugins.page.views.policy_versions import numbers_sql, version_rows
from plugins.page.views.question_flips import HeldOutQuestion, QuestionOutcome, read_pair
from streams.errors import NotFoundError
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row

QUESTIONS_SHOWN = 20
"""Of those that both versions answered, the most different ones."""
BARS = 10
"""Intervals of a distribution with more values than that."""
TEXT_SHOWN = 400
"""Characters of an answer to a held-out question."""


class DistributionRow(NamedTuple):
    """How many answers of each version have a value, or one in an interval."""

    label: str
    counts: tuple[int, int]
    shares: tuple[float, float]
    """Of the answers of each version."""


@dataclass(frozen=True)
class VersionFigures:
    """One version."""

    version: int
    row: Row
    """What made it, and what its answers were worth."""
    score: float | None
    score_low: float | None
    score_high: float | None
    questions: int | None


@dataclass(frozen=True)
class FlippedQuestion:
    """A held-out question whose outcome is another one, with the answers of both versions."""

    question: HeldOutQuestion
    texts: list[str | None]

    @property
    def after(self) -> QuestionOutcome | None:
        """The outcome of the second version."""
        return self.question.outcomes[-1]


@dataclass(frozen=True)
class VersionPair:
    """Two versions of a policy."""

    policy: str
    versions: list[int]
    """All that can be compared, the newest first."""
    pair: list[VersionFigures]
    suite: str
    suite_title: str
    flips: dict[str, list[FlippedQuestion]] = field(default_factory=dict)
    """By "worse" and "better"."""
    same: list[tuple[str, Row, Row]] = field(default_factory=list)
    """Questions that both were trained on answering, the most different rewards first, and the groups of both."""
    rewards: list[DistributionRow] = field(default_factory=list)
    lengths: list[DistributionRow] = field(default_factory=list)


def compare_versions(log: LogSnapshot, policy: str, before: int | None, after: int | None) -> VersionPair:
    """Return two versions; default: the newest one, and the one before it. Raises NotFoundError."""
    numbers = [row["version"] for row in log.rows(numbers_sql(policy))]
    for version in (before, after):
        if version is not None and version not in numbers:
            raise NotFoundError(f"policy {policy[:80]!r} has no version {version}; /policies lists what there is")
    if len(numbers) < 2:
        raise NotFoundError(f"policy {policy[:80]!r} has fewer than two versions to compare")
    after = (numbers[0] if before is None or before != numbers[0] else numbers[1]) if after is None else after
    if before is None:
        before = next((number for number in numbers if number < after), numbers[1])
    pair = (before, after)
    suites = [{row["suite"]: row for row in suite_scores(log, policy) if row["version"] == each} for each in pair]
    suite = (
        next((name for name in suites[1] if name in suites[0] and name), next(iter(suites[1] or suites[0]), "")) or ""
    )
    rows = {row["version"]: row for row in version_rows(log, policy, sorted({*pair}))}
    return VersionPair(
        policy,
        numbers,
        [_figures(each, rows[each], scores.get(suite)) for each, scores in zip(pair, suites, strict=True)],
        suite,
        suite_title(suite),
        _flips(log, policy, suite, pair),
        _same_questions(log, policy, pair),
        *_distributions(log, policy, pair),
    )


def _figures(version: int, row: Row, score: Row | None) -> VersionFigures:
    exact, count = (None, None) if score is None else (score["exact"], score["n"])
    low, high = (None, None) if score is None or exact is None or not count else share_bounds(score)
    return VersionFigures(version, row, exact, low, high, count)


# --- held-out questions -----------------------------------------------------------------------------------------------


def _flips(log: LogSnapshot, policy: str, suite: str, pair: tuple[int, int]) -> dict[str, list[FlippedQuestion]]:
    """Return the questions of a suite whose outcome changed, by how, with the answers of both versions."""
    questions = [question for question in read_pair(log, policy, suite, pair) if question.flips]
    tasks = [outcome.task_id for question in questions for outcome in question.outcomes if outcome and outcome.task_id]
    texts = _answer_texts(log, tasks) if tasks else {}
    flips: dict[str, list[FlippedQuestion]] = {"worse": [], "better": []}
    for question in questions:
        answers = [None if outcome is None else texts.get(outcome.task_id or "") for outcome in question.outcomes]
        after = question.outcomes[-1]
        if after is not None and after.flip:
            flips[after.flip].append(FlippedQuestion(question, answers))
    return flips


def _answer_texts(log: LogSnapshot, task_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the beginning of the first answer to each task."""
    rows = log.rows(
        f"SELECT task_id, left(arg_min(text, row(slot, _offset)), {TEXT_SHOWN}) AS text FROM responses "  # noqa: S608
        f"WHERE task_id IN ({', '.join(map(literal, task_ids))}) AND coalesce(error, '') = '' GROUP BY task_id"
    )
    return {row["task_id"]: row["text"] for row in rows}


# --- what both answered -----------------------------------------------------------------------------------------------


def _same_questions(log: LogSnapshot, policy: str, pair: tuple[int, int]) -> list[tuple[str, Row, Row]]:
    """Return the questions that both versions answered for training, with the group of each."""
    rows = log.rows(f"""
WITH once AS (
    SELECT task_id, adapter_version, reward_mean, _partition, _offset FROM groups
    WHERE {train_groups(policy)} AND adapter_version IN ({pair[0]}, {pair[1]}) AND reward_mean IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1
), asked AS (
    SELECT task_id, arg_min(messages[-1].content, _offset) AS question FROM tasks SEMI JOIN once USING (task_id)
    GROUP BY task_id
), sides AS (
    SELECT question, adapter_version,
        arg_max(struct_pack(p := _partition, o := _offset, r := reward_mean), _offset) AS g
    FROM once JOIN asked USING (task_id) GROUP BY ALL
)
SELECT a.question, a.g AS before, b.g AS after FROM sides AS a JOIN sides AS b USING (question)
WHERE a.adapter_version = {pair[0]} AND b.adapter_version = {pair[1]}
ORDER BY abs(b.g.r - a.g.r) DESC, a.question LIMIT {QUESTIONS_SHOWN}
""")  # noqa: S608 - literals
    places = [{"_partition": row[side]["p"], "_offset": row[side]["o"]} for row in rows for side in ("before", "after")]
    groups = groups_at(log, places) if places else []
    return [(row["question"], *groups[2 * place : 2 * place + 2]) for place, row in enumerate(rows)]


def _distributions(
    log: LogSnapshot, policy: str, pair: tuple[int, int]
) -> tuple[list[DistributionRow], list[DistributionRow]]:
    """Return how the rewards and the lengths of the answers of both versions are distributed."""
    rows = log.rows(f"""
WITH member AS (
    SELECT adapter_version AS version, unnest(members) AS m FROM (FROM groups
    WHERE {train_groups(policy)} AND adapter_version IN ({pair[0]}, {pair[1]})
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY _offset) = 1)
)
SELECT version, m.reward AS reward, r.completion_tokens AS tokens FROM member
LEFT JOIN whole.responses AS r ON r._partition = m."partition" AND r._offset = m."offset"
""")  # noqa: S608
    sides = [[row for row in rows if row["version"] == version] for version in pair]
    return tuple(  # type: ignore[return-value]
        distribution(*([row[name] for row in side if row[name] is not None] for side in sides))
        for name in ("reward", "tokens")
    )


def distribution(before: Sequence[float], after: Sequence[float]) -> list[DistributionRow]:
    """Return how many of each version's values are the same, or in the same of BARS intervals; empty without any.

    >>> [(row.label, row.counts) for row in distribution([0.0, 1.0], [1.0, 1.0])]
    [('0', (1, 0)), ('1', (1, 2))]
    """
    values = sorted({value for value in (*before, *after) if math.isfinite(value)})
    if not values:
        return []
    if len(values) <= BARS:
        labels = {value: f"{value:.4g}" for value in values}
        keys = [labels[value] for value in values]
    else:
        size = (values[-1] - values[0]) / BARS
        ends = [values[0] + size * number for number in range(BARS + 1)]
        keys = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(ends)]
        labels = {value: keys[min(BARS - 1, int((value - values[0]) / size))] for value in values}
    counts = [Counter(labels[value] for value in side if value in labels) for side in (before, after)]
    return [
        DistributionRow(
            key,
            (counts[0][key], counts[1][key]),
            (counts[0][key] / max(1, len(before)), counts[1][key] / max(1, len(after))),
        )
        for key in dict.fromkeys(keys)
    ]
