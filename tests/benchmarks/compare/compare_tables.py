"""The tables and plots of docs/compare.md, from the runs.

runs ──► medians by arm, every run, losses of the killed ones ──► between the two marks of docs/compare.md
     ──► held-out score over seconds ──► compare.png          over tokens sampled, killed twice ──► compare-crash.png
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.compare.measured_run import MeasuredRun

BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"
SCORES = (0.8, 0.9)
COLORS = {"streamward": "#1f7a4d", "trl-tuned": "#b3541e", "trl-documented": "#9aa5b1"}
Point = tuple[float, int, int, float]


def write(runs: Sequence[MeasuredRun], docs: Path) -> None:
    """Write the tables into docs/compare.md and the plots next to it. Raises ValueError if the marks are missing."""
    page = docs / "compare.md"
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}; put them where the tables belong")
    page.write_text(f"{before}{BEGIN}\n{tables(runs)}\n{END}{after}", encoding="utf-8")
    shown = [run for run in runs if run.task == "sums"]
    _plot([run for run in shown if not run.kills], docs / "compare.png", "seconds", 0)
    if killed := [run for run in shown if run.kills]:
        _plot(killed, docs / "compare-crash.png", "tokens sampled", 2)


def tables(runs: Sequence[MeasuredRun]) -> str:
    """Return the text between the marks."""
    whole, killed = [run for run in runs if not run.kills], [run for run in runs if run.kills]
    parts = ["![Held-out score over seconds, a line a run](compare.png)", "", _machines(runs)]
    parts += [*_table(_MEDIANS, list(_by_arm(whole))), "Every run:", "", *_table(_EACH, whole)]
    if killed:
        parts += ["![Held-out score over tokens sampled, of runs killed twice](compare-crash.png)", ""]
        parts += ["Killed twice, medians:", "", *_table([*_MEDIANS[:6], *_LOSSES], list(_by_arm(killed)))]
        parts += ["Every one of them:", "", *_table([*_EACH, *_LOSSES], killed)]
    return "\n".join(parts).rstrip()


def _machines(runs: Sequence[MeasuredRun]) -> str:
    """Return a line on each machine and its versions."""
    lines = {
        f"{run.machine['cpu']}, {run.machine['cores']} cores, {run.machine['memory_gib']} GiB, Python "
        f"{run.machine['python']}, {', '.join(f'{name} {number}' for name, number in run.versions.items())}."
        for run in runs
    }
    return "\n".join([*sorted(lines), ""])


def _by_arm(runs: Sequence[MeasuredRun]) -> Iterator[list[MeasuredRun]]:
    """Yield the runs of each arm and task."""
    for arm in dict.fromkeys(run.arm for run in runs):
        yield [run for run in runs if run.arm == arm]


def _table(columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Iterable[Any]) -> list[str]:
    lines = [f"| {' | '.join(cell(row) for _, cell in columns)} |" for row in rows]
    return [f"| {' | '.join(name for name, _ in columns)} |", f"|{'---|' * len(columns)}", *lines, ""]


def _median(runs: Sequence[MeasuredRun], value: Callable[[MeasuredRun], float | None], form: str) -> str:
    """Return the median with the number of runs that have a value where some have none; a dash if none has."""
    found = [number for run in runs if (number := value(run)) is not None]
    if not found:
        return "–"
    note = "" if len(found) == len(runs) else f" ({len(found)} of {len(runs)})"
    return f"{statistics.median(found):{form}}{note}"


def _at(score: float, part: int) -> Callable[[MeasuredRun], float | None]:
    """Return a function that gives a part of the first point with this score."""

    def value(run: MeasuredRun) -> float | None:
        point: Point | None = run.first(score)
        return None if point is None else point[part]

    return value


def _mean(part: Callable[[MeasuredRun], float | None], form: str) -> Callable[[Any], str]:
    """Return a cell: of a run, or the median of several."""
    return lambda row: _median(row if isinstance(row, list) else [row], part, form)


def _arm(row: Any) -> str:
    runs = row if isinstance(row, list) else [row]
    return runs[0].arm + (f" ({len(runs)} runs)" if len(runs) > 1 else "")


def _last(run: MeasuredRun) -> float | None:
    return run.points[-1][3] if run.points else None


_REACHED = [(f"s to {score}", _mean(_at(score, 0), ".0f")) for score in SCORES]
_SAMPLED = [(f"tokens to {score}", _mean(_at(score, 2), ",.0f")) for score in SCORES]
_MEDIANS = [
    ("arm", _arm),
    *_REACHED,
    *_SAMPLED,
    ("last score", _mean(_last, ".2f")),
    ("peak GiB", _mean(lambda run: run.peak_bytes / 2**30, ".1f")),
    ("lines", _mean(lambda run: run.code_lines, ".0f")),
]
_EACH = [
    ("arm", _arm),
    ("seed", lambda run: str(run.seed)),
    *_REACHED,
    ("tokens to 0.9", _SAMPLED[1][1]),
    ("s in all", lambda run: f"{run.seconds:.0f}"),
    ("its evaluations, s", lambda run: f"{run.evaluation_s:.0f}" if run.evaluation_s else "inside"),
    ("scores", lambda run: _scores(run)),
]
_LOSSES = [
    ("trajectory-seconds lost", _mean(lambda run: run.lost["trajectory_s"], ",.0f")),
    ("questions twice", _mean(lambda run: run.lost["served_twice"], ".0f")),
    ("never trained", _mean(lambda run: run.lost["never_trained"], ".0f")),
    ("tokens again", _mean(lambda run: run.lost["tokens_again"], ",.0f")),
]


def _scores(run: MeasuredRun) -> str:
    """Return scores by step, at most ten of them, and why the run ended early."""
    every = -(-len(run.points) // 10) or 1
    points = [point for number, point in enumerate(reversed(run.points)) if number % every == 0]
    texts = [f"{step}: {score:.2f}" for _, step, _, score in reversed(points)]
    return "; ".join([*texts, *([run.error.replace("|", "/")] if run.error else [])])


def _plot(runs: Sequence[MeasuredRun], path: Path, label: str, part: int) -> None:
    """Draw the held-out score over a part of the points, a line a run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    named: set[str] = set()
    for run in runs:
        name = "_" if run.arm in named else run.arm
        named.add(run.arm)
        places = [point[part] for point in run.points]
        axes.plot(places, [point[3] for point in run.points], color=COLORS[run.arm], marker=".", label=name)
    for score in SCORES:
        axes.axhline(score, color="#9aa5b1", linewidth=0.6, linestyle=":")
    axes.set(xlabel=label, ylabel="held-out score", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
