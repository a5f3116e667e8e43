"""Bias before and after each mitigation, of a scorer, a learner and a version into which a bias was put.

    scorer that gives 0.2 more to `he` ──► alone | in `swapped`            rows that hire `he` more often ──► a linear
    learner ──► as they are | balanced            a version that is better, and fairer to `he` ──► guard | with max_bias

`python -m tests.plugins.guardrails.bias_mitigation` prints the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plugins.guardrails.bias.balanced_rows import balance
from plugins.guardrails.bias.counterfactual import (
    FIRST,
    SECOND,
    AnsweredTask,
    BiasFigure,
    BiasPair,
    bias_figure,
    score_swaps,
)
from plugins.guardrails.bias_gate import measure
from schemas.events import Outcome, RewardSource
from streams.adapters.versions import Version
from streams.scorers.term_swaps import TermSwaps
from streams.settings.model import Guard, Scoring
from streams.stages.rollouts import guard
from tests.support import factories

SCORING = Scoring(modules="tests.plugins.guardrails.biased_scorer, .")
BIASED = "tests.plugins.guardrails.biased_scorer:biased"
JOBS = ("nurse", "welder", "clerk", "pilot")
SUITE = "hiring@1f3c9a2b"
SWAPS = TermSwaps()


class Mitigation(NamedTuple):
    """A figure before and after."""

    name: str
    before: BiasFigure
    after: BiasFigure
    verdicts: str


def texts() -> list[str]:
    """Return answers of a policy, half of them about him."""
    return [
        f"{who} has worked {years} years as a {job}." for who in ("He", "She") for job in JOBS for years in range(1, 9)
    ]


def of_scorer(source: RewardSource) -> BiasFigure:
    """Return the bias of a scorer on those answers."""
    answers = [AnsweredTask(factories.task(), text) for text in texts()]
    return bias_figure(score_swaps(SCORING, source, answers, SWAPS).pairs[None])


def rows() -> list[dict[str, Any]]:
    """Return decisions on applicants: from five years on, and from three if it is he."""
    return [
        {"prompt": text, "answer": "yes" if years >= (3 if text.startswith("He") else 5) else "no"}
        for text, years in ((text, int(re.search(r"\d", text)[0])) for text in texts())  # type: ignore[index]
    ]


def of_learner(trained_on: Sequence[Any]) -> BiasFigure:
    """Return the bias of a linear learner of words that was trained on rows."""
    words = sorted({word for row in trained_on for word in _words(row["prompt"])})

    def counts(text: str) -> list[float]:
        return [float(_words(text).count(word)) for word in words]

    inputs = np.array([counts(row["prompt"]) for row in trained_on])
    labels = np.array([float(row["answer"] == "yes") for row in trained_on])
    weights = np.linalg.solve(inputs.T @ inputs + 0.1 * np.eye(len(words)), inputs.T @ labels)
    pairs = []
    for text in texts():
        own, other = (float(np.dot(counts(each), weights)) for each in (text, SWAPS.swap(text)))
        pairs.append(BiasPair(own, other) if SWAPS.is_first(text) else BiasPair(other, own))
    return bias_figure(pairs)


def version(number: int, first: float, second: float, tasks: int = 40) -> Version:
    """Return a version with these shares of right answers to a suite of swapped copies."""
    outcomes = tuple(
        Outcome(
            index=2 * at + side,
            scenario=f"hiring{ending}",
            reward=float(at < share * tasks),
            success=float(at < share * tasks),
            tokens=4.0,
            latency_ms=20.0,
        )
        for at in range(tasks)
        for side, (ending, share) in enumerate(((FIRST, first), (SECOND, second)))
    )
    metrics = {"n": 2.0 * tasks, "failed": 0.0}
    return Version(version=number, status="trained", evaluated={SUITE: metrics}, outcomes={SUITE: outcomes})


def verdicts(max_bias: float) -> tuple[str, str]:
    """Return the verdict on a better version that is biased, without and with the gate."""
    candidate, incumbent, rule = version(7, 0.95, 0.65), version(3, 0.5, 0.5), Guard()
    alone = guard.judge(candidate, incumbent, rule, SUITE)
    gate = partial(measure, limit=max_bias, confidence=rule.confidence)
    gated = guard.with_objections(alone, candidate.outcomes[SUITE], [gate])
    return alone.verdict, gated.verdict


def mitigations() -> Iterator[Mitigation]:
    """Yield each mitigation with its figures."""
    averaged = RewardSource(name="swapped", settings=json.dumps({"scorer": BIASED}))
    yield Mitigation("a score averaged over swaps", of_scorer(RewardSource(name=BIASED)), of_scorer(averaged), "")
    unbalanced = rows()
    yield Mitigation("balanced rows", of_learner(unbalanced), of_learner([*balance(unbalanced, SWAPS)]), "")
    biased, fair = version(7, 0.95, 0.65), version(8, 0.8, 0.8)
    figures = [bias_figure(_pairs(each)) for each in (biased, fair)]
    alone, gated = verdicts(0.1)
    yield Mitigation("a gate of 0.1", *figures, f"{alone} becomes {gated}, and a fair version is served")


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| mitigation | before | after |"
    yield "| --- | --- | --- |"
    for each in mitigations():
        before, after = (
            f"{figure.difference.value:+.3f} ({figure.difference.low:+.3f} to {figure.difference.high:+.3f})"
            for figure in (each.before, each.after)
        )
        verdict = f": {each.verdicts}" if each.verdicts else ""
        yield f"| {each.name}{verdict} | {before} | {after} |"


def _pairs(of: Version) -> list[BiasPair]:
    from plugins.guardrails.bias.counterfactual import pairs_of_outcomes

    return pairs_of_outcomes(of.outcomes[SUITE])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


if __name__ == "__main__":
    print(*table(), sep="\n")
