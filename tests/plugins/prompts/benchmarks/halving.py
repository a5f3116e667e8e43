"""Search among five prompts, simulated: how often the better one is found, and how often another is called better.

    python -m tests.plugins.prompts.benchmarks.halving [--runs N] [--write]

    five prompts, one better by GAIN ──► halving.next_step ──► a verdict ──► found, undecided or wrong; answers

An answer is right or wrong; half of the questions are answered right with the first prompt. Where answers are greedy,
all prompts are asked the same questions, and each other prompt turns a share of right answers wrong, and as many wrong
ones right; the better one turns GAIN more of all questions right. Where they are drawn, as those to users of a live
search who are each asked once, the answers to one question have nothing to do with each other. `--write` puts the table
into docs/prompts.md. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from plugins.prompts.search.halving import Ask, SearchPlan, SearchVerdict, next_step

PAGE = Path(__file__).parents[2] / "docs" / "prompts.md"
BEGIN, END = "<!-- prompt-search:begin -->", "<!-- prompt-search:end -->"
PROMPTS, BETTER, ALPHA = 5, 3, 0.05
CASES = (
    *((True, gain, answers) for gain, answers in ((0.15, 400), (0.15, 800), (0.25, 400), (0.0, 400))),
    *((False, gain, answers) for gain, answers in ((0.15, 400), (0.15, 800), (0.15, 2000), (0.0, 2000))),
)
"""Whether answers are greedy, the gain, and answers at most."""
CHANGED = 0.05
"""Share of all questions that a prompt turns from right to wrong, and from wrong to right."""


class Simulated(Mapping[Ask, float | None]):
    """Every answer that could be asked for, drawn when it is."""

    def __init__(self, gain: float, seed: int, is_greedy: bool) -> None:
        self._gain, self._seed, self._is_greedy = gain, seed, is_greedy

    def __getitem__(self, ask: Ask) -> float:
        if not self._is_greedy:
            drawn = random.Random(f"{self._seed} {ask.question} {ask.version}").random()
            return float(drawn < 0.5 + (self._gain if ask.version == BETTER else 0.0))
        right = random.Random(f"{self._seed} {ask.question}").random() < 0.5
        if ask.version == 1:
            return float(right)
        change = random.Random(f"{self._seed} {ask.question} {ask.version}").random()
        turned = CHANGED + (self._gain if ask.version == BETTER and not right else 0.0)
        return float(right) if change >= 2 * turned else float(not right)

    def __contains__(self, ask: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Ask]:
        return iter(())

    def __len__(self) -> int:
        return 0


def outcome(gain: float, seed: int, answers: int, is_greedy: bool) -> SearchVerdict:
    """Return the verdict of one simulated search."""
    plan = SearchPlan(tuple(range(1, PROMPTS + 1)), tuple(range(answers)), answers, ALPHA)
    verdict = next_step(plan, Simulated(gain, seed, is_greedy))
    assert isinstance(verdict, SearchVerdict)
    return verdict


def row(is_greedy: bool, gain: float, answers: int, runs: int) -> str:
    """Return a row of the table."""
    verdicts = [outcome(gain, seed, answers, is_greedy) for seed in range(runs)]
    right = sum(verdict.winner == BETTER for verdict in verdicts) if gain > 0 else 0
    wrong = sum(verdict.winner is not None for verdict in verdicts) - right
    asked = sorted(verdict.answers for verdict in verdicts)
    shares = " | ".join(f"{100 * count / runs:.1f} %" for count in (right, runs - right - wrong, wrong))
    kind = "greedy" if is_greedy else "drawn"
    return f"| {kind} | {gain:.2f} | {answers} | {shares} | {statistics.median(asked):.0f} |"


def table(runs: int) -> str:
    """Return the table of the page."""
    head = (
        f"Simulated: {runs:,} searches a row, alpha {ALPHA} (`python -m tests.plugins.prompts.benchmarks.halving`).\n\n"
        "| answers | better by | answers at most | found | undecided | another called better | answers, median |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    rows = [row(*case, runs) for case in CASES]
    return head + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    printed = table(options.runs)
    print(printed)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{printed}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
