"""Rewards of the versions of a prompt, from view `prompt_rewards`.

    rows of the view ──► by version: tasks, mean reward, interval ──► PromptEarnings
                    └──► the same questions with two versions ──► paired comparison ──► Comparison

A version that got more easy questions looks better than it is. So versions are compared on the questions that both have
answered, by the mean of the answers to each; the means over all tasks are for information.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.events import Outcome
from streams.errors import NotFoundError
from streams.evaluation import intervals, paired
from streams.evaluation.paired import Comparison
from streams.tools.query.views import literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEarnings:
    """What one version earned."""

    version: int
    tasks: int
    questions: int
    mean_reward: float
    low: float
    high: float
    tokens: float
    """Sampled ones, per task."""


def rows_sql(prompt: str, *, policy: str | None = None, scenario: str | None = None) -> str:
    """Return the statement of a prompt's rows."""
    conditions = [f"prompt = {literal(prompt)}", "reward IS NOT NULL"]
    conditions += [] if policy is None else [f"policy = {literal(policy)}"]
    conditions += [] if scenario is None else [f"scenario = {literal(scenario)}"]
    return (
        "SELECT version, question, reward, tokens FROM prompt_rewards "  # noqa: S608 - literals
        f"WHERE {' AND '.join(conditions)} ORDER BY version, question, task_id"
    )


def earnings(rows: Iterable[Mapping[str, Any]]) -> list[PromptEarnings]:
    """Return the figures of each version, the best first."""
    by_version: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_version[int(row["version"])].append(row)
    figures = [_earnings(version, version_rows) for version, version_rows in sorted(by_version.items())]
    return sorted(figures, key=lambda one: (-one.mean_reward, one.version))


def compare(rows: Iterable[Mapping[str, Any]], first: int, second: int) -> Comparison:
    """Return one version against another on the questions that both answered. Raises NotFoundError without any."""
    rows = list(rows)
    outcomes = [_outcomes(row for row in rows if row["version"] == version) for version in (first, second)]
    numbers = {question: number for number, question in enumerate(sorted(outcomes[0].keys() | outcomes[1].keys()))}
    pairs = paired.pairs(*(_by_number(side, numbers) for side in outcomes))
    if not pairs:
        raise NotFoundError(
            f"versions {first} and {second} have no question in common that both were scored on; ask both the same "
            "ones, e.g. with `streamward improve prompts optimize`"
        )
    return paired.compare(pairs)


def _earnings(version: int, rows: list[Mapping[str, Any]]) -> PromptEarnings:
    rewards = [float(row["reward"]) for row in rows]
    mean = intervals.mean(rewards)
    return PromptEarnings(
        version=version,
        tasks=len(rows),
        questions=len({row["question"] for row in rows}),
        mean_reward=mean.value,
        low=mean.low,
        high=mean.high,
        tokens=math.fsum(row["tokens"] or 0 for row in rows) / len(rows),
    )


def _outcomes(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return mean reward and tokens by question."""
    by_question: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        by_question[row["question"]].append((float(row["reward"]), float(row["tokens"] or 0)))
    return {
        question: (math.fsum(reward for reward, _ in answers) / len(answers), math.fsum(t for _, t in answers))
        for question, answers in by_question.items()
    }


def _by_number(outcomes: Mapping[str, tuple[float, float]], numbers: Mapping[str, int]) -> list[Outcome]:
    return [
        Outcome(index=numbers[question], scenario="", reward=reward, tokens=tokens)
        for question, (reward, tokens) in outcomes.items()
    ]
