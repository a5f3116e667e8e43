"""Bias by counterfactual: what a score owes to a term, as the paired difference between a text and its swap.

    task, answer ──► TermSwaps ──► both scored ──► (first terms, second terms) ──► BiasFigure with interval
    suite of swapped copies ──► outcomes of a version ──► the same pairs, in their order

Which of two texts is that of the first terms is decided by the first term in the question and the answer. A pair counts
once, so each text is its own control.

Not covered: bias without a term, as by style; and a difference that a question is right to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from schemas.events import Outcome, RewardSource, Task
from streams.evaluation import intervals
from streams.evaluation.intervals import MeanDifference
from streams.scorers.term_swaps import TermSwaps
from streams.settings.model import Scoring
from streams.stages.scoring.trial import try_answers

FIRST, SECOND = "-first", "-second"
"""Ends of the scenarios of swapped copies."""


class BiasPair(NamedTuple):
    """The scores of a text with the first terms, and of its swap."""

    first: float
    second: float


class BiasFigure(NamedTuple):
    """Figures of pairs."""

    first: float
    second: float
    difference: MeanDifference
    largest: float
    """The largest difference of a pair, without its sign."""

    @property
    def is_proven(self) -> bool:
        """Whether the interval has no zero in it."""
        return self.difference.low > 0 or self.difference.high < 0


class AnsweredTask(NamedTuple):
    """A task, and an answer to it."""

    task: Task
    text: str
    version: int | None = None
    """The version that gave the answer."""


class ScoredSwaps(NamedTuple):
    """Pairs of scores, by the version that gave the answers, and what gave none."""

    pairs: dict[int | None, list[BiasPair]]
    without_terms: int
    failed: int


def bias_figure(pairs: Sequence[BiasPair], confidence: float = intervals.CONFIDENCE) -> BiasFigure:
    """Return first minus second over pairs. Raises ValueError for none."""
    first, second = ([*side] for side in zip(*pairs, strict=True)) if pairs else ([], [])
    difference = intervals.difference(first, second, confidence)
    largest = max(abs(pair.first - pair.second) for pair in pairs)
    return BiasFigure(sum(first) / len(first), sum(second) / len(second), difference, largest)


def score_swaps(
    scoring: Scoring, source: RewardSource, answers: Iterable[AnsweredTask], swaps: TermSwaps
) -> ScoredSwaps:
    """Return the scores of answers and of their swaps, in pairs.

    Raises SettingsError if the scorer needs a judge and none is configured, or its module is not listed.
    """
    scored = ScoredSwaps({}, 0, 0)
    sided: list[tuple[AnsweredTask, bool]] = []
    neutral = 0
    for answer in answers:
        is_first = swaps.is_first("\n".join([*(message.content for message in answer.task.messages), answer.text]))
        if is_first is None:
            neutral += 1
        else:
            sided.append((answer, is_first))
    outcomes = try_answers(scoring, source, _with_swaps([answer for answer, _ in sided], swaps))
    failed = 0
    for (answer, is_first), as_written, swapped in zip(sided, outcomes, outcomes, strict=False):
        if as_written.value is None or swapped.value is None:
            failed += 1
            continue
        values = (as_written.value, swapped.value) if is_first else (swapped.value, as_written.value)
        scored.pairs.setdefault(answer.version, []).append(BiasPair(*values))
    return scored._replace(without_terms=neutral, failed=failed)


def _with_swaps(answers: Iterable[AnsweredTask], swaps: TermSwaps) -> Iterator[tuple[Task, str]]:
    """Yield each answer with its task, and then their swap."""
    for answer in answers:
        yield answer.task, answer.text
        yield swaps.swap_task(answer.task), swaps.swap(answer.text)


def pairs_of_outcomes(outcomes: Iterable[Outcome]) -> list[BiasPair]:
    """Return the rewards of a suite's swapped copies, in pairs; a pair without both rewards is left out.

    The n-th task of the scenario NAME-first and the n-th of NAME-second are a pair.
    """
    sides: dict[str, dict[str, list[float | None]]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.index):
        for ending in (FIRST, SECOND):
            if outcome.scenario.endswith(ending):
                side = sides.setdefault(outcome.scenario.removesuffix(ending), {FIRST: [], SECOND: []})
                side[ending].append(outcome.reward)
    return [
        BiasPair(first, second)
        for side in sides.values()
        for first, second in zip(side[FIRST], side[SECOND], strict=False)
        if first is not None and second is not None
    ]
