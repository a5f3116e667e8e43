"""How often the detector of falls alarms for nothing, and how late it finds a fall, beside a chi-square test.

    python -m tests.plugins.improve.benchmarks.triggers [--runs N] [--write]

    rewards 0 or 1, drawn ──► a look after every one ──► share of streams with an alarm, delay of the median stream

The chi-square test is the one that drift dashboards run: a window of 200 against the reference every 50 rewards, at
p < 0.05. The streams go side by side in numpy, with the formula of detector.py written down a second time;
tests/plugins/improve/test_triggers.py compares the two. `--write` puts the table into docs/improve.md.

Not covered: rewards that depend on each other, and drift of the questions, which no signal looks at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugins.improve.triggers.detector import BETS, THRESHOLD, WINDOW, lower_bound

PAGE = Path(__file__).parents[4] / "docs" / "improve.md"
BEGIN, END = "<!-- triggers:begin -->", "<!-- triggers:end -->"
LOOKS, AFTER, SEED = 10_000, 3_000, 20261126
EVERY, CURRENT = 50, 200
"""Of the chi-square test: rewards between two looks, and its window."""
CHI_SQUARE = 3.841
"""Of one degree of freedom at p = 0.05."""

Floats = NDArray[np.float64]


class Alarms(NamedTuple):
    """What became of many streams."""

    share: float
    """With an alarm."""
    median: float
    """The look at which it came, of those with one."""


def paths(
    before: float, after: float, *, runs: int, looks: int, window: int = WINDOW, seed: int = SEED
) -> tuple[Floats, Floats, Floats]:
    """Return each stream's reference mean, its values [runs, looks], and its e-value after each."""
    rng = np.random.default_rng(seed)
    reference = rng.binomial(window, before, runs) / window
    values = (rng.random((runs, looks)) < after).astype(float)
    bound = np.array([lower_bound(mean, window) for mean in reference])[:, None]
    size = np.array(BETS) / (1 - bound)
    sums = np.zeros((runs, len(BETS)))
    e_values = np.empty((runs, looks))
    for look in range(looks):
        sums = (sums + 1) * (1 + size * (bound - values[:, look : look + 1]))
        e_values[:, look] = sums.mean(1)
    return reference, values, e_values


def alarms(before: float, after: float, *, runs: int, looks: int, window: int = WINDOW, seed: int = SEED) -> Alarms:
    """Return what the detector makes of streams whose mean is `before` in the reference and `after` from then on."""
    _, _, e_values = paths(before, after, runs=runs, looks=looks, window=window, seed=seed)
    return _alarms(e_values >= THRESHOLD)


def chi_square(before: float, after: float, *, runs: int, looks: int, seed: int = SEED) -> Alarms:
    """Return what a chi-square test makes of such streams, that looks every EVERY rewards at the newest CURRENT."""
    rng = np.random.default_rng(seed)
    reference = rng.binomial(WINDOW, before, runs)
    values = (rng.random((runs, looks)) < after).astype(float)
    total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    alarm = np.zeros((runs, looks), dtype=bool)
    for look in range(CURRENT, looks + 1, EVERY):
        current = total[:, look] - total[:, look - CURRENT]
        share = (reference + current) / (WINDOW + CURRENT)
        spread = share * (1 - share) * (1 / WINDOW + 1 / CURRENT)
        alarm[:, look - 1] = (reference / WINDOW - current / CURRENT) ** 2 > CHI_SQUARE * spread
    return _alarms(alarm)


def _alarms(alarm: NDArray[np.bool_]) -> Alarms:
    found = alarm.any(axis=1)
    first = alarm.argmax(axis=1)[found] + 1
    return Alarms(float(found.mean()), float(np.median(first)) if len(first) else float("nan"))


CASES: tuple[tuple[float, float, int], ...] = (
    (0.6, 0.6, LOOKS),
    (0.9, 0.9, LOOKS),
    (0.1, 0.1, LOOKS),
    (0.6, 0.5, AFTER),
    (0.6, 0.4, AFTER),
    (0.6, 0.3, AFTER),
    (0.9, 0.7, AFTER),
)
"""Mean of the reference, mean after it, and looks."""


def rows(runs: int) -> list[tuple[float, float, int, Alarms, Alarms]]:
    """Return the results of all cases."""
    sizes = {"runs": runs}
    return [
        (
            before,
            after,
            looks,
            alarms(before, after, looks=looks, **sizes),
            chi_square(before, after, looks=looks, **sizes),
        )
        for before, after, looks in CASES
    ]


def table(results: list[tuple[float, float, int, Alarms, Alarms]], runs: int, date: str) -> str:
    """Return them as Markdown."""
    lines = [
        f"Simulated on {date}: {runs:,} streams a row, a reference of {WINDOW} rewards "
        "(`python -m tests.plugins.improve.benchmarks.triggers`).",
        "",
        "| mean before | after | looks | streams with an alarm | median delay | chi-square, p < 0.05: alarms | delay |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for before, after, looks, ours, theirs in results:
        delays = ["" if before == after else f"{test.median:.0f}" for test in (ours, theirs)]
        cells = [f"{before:g}", f"{after:g}", f"{looks:,}", f"{ours.share:.1%}", delays[0], f"{theirs.share:.1%}"]
        lines.append(f"| {' | '.join([*cells, delays[1]])} |")
    return "\n".join(lines)


def run() -> Iterator[dict[str, Any]]:
    """Yield the figures as lines of the benchmarks."""
    from tests.benchmarks.side_by_side import line

    runs = 1000
    for before, after, looks, ours, theirs in rows(runs):
        if before == after:
            case, own, limit, unit = f"no change at {before:g}, {looks} looks", ours.share, 0.01, "false alarms"
        else:
            case, own, limit, unit = f"{before:g} falls to {after:g}", ours.median, 200.0, "rewards until found"
        figures = {"ours": own, "peer": limit, "unit": unit, "ratio": limit / max(own, 1 / runs)}
        yield line("triggers", case, **figures, peer_is="the limit", chi_square=theirs._asdict())


def main(arguments: list[str]) -> int:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.plugins.improve.benchmarks.triggers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help=f"put it into docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    text = table(rows(options.runs), options.runs, time.strftime("%-d %B %Y", time.gmtime()))
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN, 1)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
