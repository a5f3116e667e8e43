"""The held-out questions of a policy by version: which were answered right, and what changed between versions.

adapters (evaluated) ──► outcome of each question, by version ──► what flipped ──► questions, the most changed first
tasks (eval)         ──► the text of each question, and the task in which a version was asked it

A question is right if more than half of its answers are: a suite asks once, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from plugins.page.views.curves import suite_scores, suite_title
from streams.tools.query.views import literal
from streams.tools.views.log_view import LogSnapshot, Row

VERSION_COLUMNS = 8
"""The first version that was asked, and the newest of the others."""
QUESTION_ROWS = 50
RIGHT = 0.5
"""More than this share of a question's answers, and it is right."""

Flip = Literal["better", "worse", ""]
"""Wrong before and right now, the other way round, or neither."""


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """How a version did on a question."""

    success: float | None
    """Share of its answers that are right; None without a score."""
    reward: float | None
    flip: Flip = ""
    """Against the version in the column before."""
    task_id: str | None = None
    """In which it was asked."""

    @property
    def is_right(self) -> bool:
        """Whether it counts as right."""
        return self.success is not None and self.success > RIGHT

    @property
    def word(self) -> str:
        """The outcome in a word."""
        return "no score" if self.success is None else "right" if self.is_right else "wrong"


@dataclass(frozen=True, slots=True)
class HeldOutQuestion:
    """A question, and how each version did on it; None: it was not asked."""

    number: int
    text: str | None
    outcomes: list[QuestionOutcome | None]

    @property
    def flips(self) -> int:
        """How often it changed."""
        return sum(outcome is not None and outcome.flip != "" for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class VersionColumn:
    """A version that was asked, and what changed since the column before."""

    version: int
    right: int
    questions: int
    better: int
    worse: int


@dataclass(frozen=True, slots=True)
class QuestionTable:
    """The held-out questions of a suite by version."""

    suite: str
    title: str
    suites: list[tuple[str, str]]
    """Name and title of every suite, the one that was asked last first."""
    columns: list[VersionColumn] = field(default_factory=list)
    questions: list[HeldOutQuestion] = field(default_factory=list)
    """QUESTION_ROWS of them, the most changed first."""
    more: int = 0
    """How many questions are not shown."""


def outcomes_sql(policy: str, suite: str, versions: Iterable[int]) -> str:
    """Return the statement of the outcomes of a suite's questions, by the newest evaluation of each version."""
    return f"""
SELECT version, o."index" AS number, o.success AS success, o.reward AS reward FROM (
    SELECT version, unnest(outcomes) AS o FROM (
        FROM adapters WHERE policy = {literal(policy)} AND kind = 'evaluated' AND suite = {literal(suite)}
            AND version IN ({", ".join(map(str, versions))})
        QUALIFY row_number() OVER (PARTITION BY version ORDER BY _offset DESC) = 1))
ORDER BY number, version
"""  # noqa: S608 - literals


def questions_sql(policy: str, suite: str, versions: Iterable[int]) -> str:
    """Return the statement of the tasks in which versions were asked the questions of a suite."""
    return f"""
SELECT task_id, adapter_version AS version, TRY_CAST(metadata['suite_index'] AS INTEGER) AS number,
    messages[-1].content AS question
FROM tasks WHERE purpose = 'eval' AND policy = {literal(policy)} AND metadata['suite'] = {literal(suite)}
    AND adapter_version IN ({", ".join(map(str, versions))})
"""  # noqa: S608


def read_questions(log: LogSnapshot, policy: str, suite: str = "") -> QuestionTable | None:
    """Return the questions of a suite, default: the one asked last; None if not found."""
    scores = [row for row in suite_scores(log, policy) if row["suite"]]
    newest = {row["suite"]: row["time_ms"] for row in sorted(scores, key=lambda row: row["time_ms"])}
    suites = sorted(newest, key=lambda name: -newest[name])
    if not suites:
        return None
    name = suite if suite in newest else suites[0]
    return log.recall(f"questions {name} {policy}", lambda: _read_questions(log, policy, name, suites), from_log=True)


def _read_questions(log: LogSnapshot, policy: str, suite: str, suites: Sequence[str]) -> QuestionTable:
    titles = [(name, suite_title(name)) for name in suites]
    versions = sorted(row["version"] for row in suite_scores(log, policy) if row["suite"] == suite)
    versions = [*versions[:1], *versions[1:][-(VERSION_COLUMNS - 1) :]]
    questions = read_pair(log, policy, suite, versions)
    columns = [_column(questions, place, version) for place, version in enumerate(versions)] if questions else []
    questions.sort(key=lambda question: (not _is_flipped_last(question), -question.flips, question.number))
    more = max(0, len(questions) - QUESTION_ROWS)
    return QuestionTable(suite, suite_title(suite), titles, columns, questions[:QUESTION_ROWS], more)


def read_pair(log: LogSnapshot, policy: str, suite: str, versions: Sequence[int]) -> list[HeldOutQuestion]:
    """Return the questions of a suite with the outcomes of these versions, by number."""
    by_question, texts, tasks = _read_outcomes(log, policy, suite, versions)
    return [
        HeldOutQuestion(number, texts.get(number), _outcomes(number, rows, versions, tasks))
        for number, rows in by_question.items()
    ]


def _read_outcomes(
    log: LogSnapshot, policy: str, suite: str, versions: Sequence[int]
) -> tuple[dict[int, dict[int, Row]], dict[int, str], dict[tuple[int, int], str]]:
    """Return the outcomes by question and version, the texts of questions, and the task of each."""
    by_question: dict[int, dict[int, Row]] = {}
    for row in log.rows(outcomes_sql(policy, suite, versions)):
        by_question.setdefault(row["number"], {})[row["version"]] = row
    texts: dict[int, str] = {}
    tasks: dict[tuple[int, int], str] = {}
    for row in log.rows(questions_sql(policy, suite, versions)) if by_question else ():
        texts[row["number"]] = row["question"]
        tasks[row["number"], row["version"]] = row["task_id"]
    return by_question, texts, tasks


def _outcomes(
    number: int, rows: Mapping[int, Row], versions: Sequence[int], tasks: Mapping[tuple[int, int], str]
) -> list[QuestionOutcome | None]:
    """Return how each version did on a question, and where that is another outcome than before."""
    plain = [
        QuestionOutcome(rows[version]["success"], rows[version]["reward"], "", tasks.get((number, version)))
        if version in rows
        else None
        for version in versions
    ]
    return [*plain[:1], *(_compare(before, after) for before, after in pairwise(plain))]


def _compare(before: QuestionOutcome | None, after: QuestionOutcome | None) -> QuestionOutcome | None:
    if before is None or after is None or None in (before.success, after.success) or before.is_right == after.is_right:
        return after
    return QuestionOutcome(after.success, after.reward, "better" if after.is_right else "worse", after.task_id)


def _column(questions: Sequence[HeldOutQuestion], place: int, version: int) -> VersionColumn:
    outcomes = [outcome for question in questions if (outcome := question.outcomes[place]) is not None]
    flips = [outcome.flip for outcome in outcomes]
    right = sum(outcome.is_right for outcome in outcomes)
    return VersionColumn(version, right, len(outcomes), flips.count("better"), flips.count("worse"))


def _is_flipped_last(question: HeldOutQuestion) -> bool:
    """Return whether a question changed from the second newest version to the newest."""
    return question.outcomes[-1] is not None and question.outcomes[-1].flip != ""
