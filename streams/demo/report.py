"""What a run of the loop comes to: a table, a plot, a JSON line.

    Progress ──► held-out score by adapter version, what lies in each topic, what to try next

Not covered: judging whether the rise is real. One seed is one seed; the docs hold several.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from streams.demo.progress import Progress
from streams.kafka.topics import topics


def of(
    progress: Progress,
    *,
    loop_s: float,
    data_dir: Path,
    peak_bytes: dict[str, int],
    interrupted: bool,
    finished: bool,
) -> dict[str, Any]:
    """Return the report of a run, ready for JSON. Memory is each process's own peak, in bytes."""
    scores = [progress.held_out[version] for version in sorted(progress.held_out)]
    return {
        "held_out": [{"version": score.version, "exact": round(score.exact, 4), "n": score.n} for score in scores],
        "adapters": progress.versions,
        "responses": progress.counts["responses"],
        "groups": progress.counts["groups"],
        "batches": progress.batches,
        "loop_s": round(loop_s, 1),
        "data_dir": str(data_dir),
        "bootstrap": progress.settings.kafka.bootstrap,
        "peak_bytes": peak_bytes,
        "interrupted": interrupted,
        "finished": finished,
    }


def write(result: dict[str, Any], progress: Progress, folder: Path) -> None:
    """Write report.json and, once anything was scored, learning.png."""
    (folder / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    if progress.held_out:
        plot(progress, folder / "learning.png")


def plot(progress: Progress, path: Path) -> None:
    """Draw held-out exact match and mean train reward by adapter version into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rewards = progress.rewards_by_version
    axes.plot(
        sorted(rewards),
        [total / n for total, n in (rewards[version] for version in sorted(rewards))],
        color="#9aa5b1",
        marker=".",
        label="mean reward of train responses",
    )
    scores = [progress.held_out[version] for version in sorted(progress.held_out)]
    axes.plot(
        [score.version for score in scores],
        [score.exact for score in scores],
        color="#1f7a4d",
        marker="o",
        linewidth=2,
        label=f"held-out exact match (n = {scores[-1].n})",
    )
    axes.set(xlabel="adapter version", ylabel="score", ylim=(-0.03, 1.03), title="Learned from the log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


def show(result: dict[str, Any], progress: Progress, console: Console, config: Path) -> None:
    """Print the tables and the next commands."""
    console.print()
    if result["held_out"]:
        console.print(_scores(progress))
    console.print(_topics(progress))
    left = progress.places["left out"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in progress.reasons.most_common())
    console.print(
        f"{result['loop_s']:.0f} s. Train tasks: {progress.places['trained']} trained on, {left} left out"
        + (f" ({reasons})" if reasons else ""),
        highlight=False,
    )
    if result["held_out"]:
        console.print(f"Plot: {config.parent / 'learning.png'}", highlight=False)
    if not result["finished"]:
        why = "Stopped" if result["interrupted"] else "The time is over (--minutes)"
        console.print(f"{why}. Everything is in the log: run the same command again and it goes on.")
    console.print("\nTry next:", style="bold")
    for command in _next_commands(config):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


def _scores(progress: Progress) -> Table:
    table = Table(title="Held-out score by adapter version", title_justify="left", box=None, header_style="dim")
    for column in ("version", "exact", "n", "train reward"):
        table.add_column(column, justify="right")
    table.add_column("")
    for version in sorted(progress.held_out):
        score = progress.held_out[version]
        total, n = progress.rewards_by_version.get(version, (0.0, 0))
        reward = f"{total / n:.2f}" if n else "–"
        table.add_row(f"v{version}", f"{score.exact:.2f}", str(score.n), reward, "█" * round(score.exact * 30))
    return table


def _topics(progress: Progress) -> Table:
    table = Table(title="In the log", title_justify="left", box=None, header_style="dim")
    table.add_column("topic")
    table.add_column("records", justify="right")
    for topic in topics(progress.settings.topics).values():
        table.add_row(topic.name, str(progress.counts[topic.label]))
    return table


def _next_commands(config: Path) -> list[str]:
    program = _program()
    streamward = f"{program} --config {config}"
    return [
        f"{streamward} broker start",
        f"{streamward} adapters list",
        f"{streamward} events tail groups --from -3 --until-end --output jsonl",
        f"{streamward} events tail adapters --until-end",
        f"{program} demo --steps 30",
    ]


def _program() -> str:
    """Return what to type for this program: its name where a shell finds it by that, else how it was called."""
    called = sys.argv[0]
    found = Path(called).name != "streamward" or shutil.which("streamward") == called
    return "streamward" if found else called
