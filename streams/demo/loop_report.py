"""Show a run: live while it runs, and afterwards as tables, a plot, a line of JSON and commands to try.

    Progress ──► Display: a rich panel drawn four times a second; without a terminal, one line per change
             ──► held-out score by adapter version, records per topic, commands to try next

A run has one seed; docs/experiments.md compares several.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streams.adapters.learning import LearningFigures
from streams.demo.loop_plan import Plan
from streams.demo.progress import HeldOut, Progress, waits
from streams.demo.settings_file import finds_settings
from streams.evaluation.diagnosis import RIGHT, SHOWN_CHARACTERS
from streams.evaluation.score_trend import flat_since
from streams.kafka.topics import topics
from streams.output import printable
from streams.settings.load import CONFIG_FILE, is_of_user
from streams.tools.views.places import PLACES

BARS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 10
"""Of a score of 1: with it the tables of versions fit 80 columns."""
RATE_WINDOW_S = 10.0
PLAIN_EVERY_S = 10.0


class Display:
    """The live view of one run. Use as a context manager."""

    def __init__(self, console: Console, *, steps: int | None, scored: bool, started_at: float) -> None:
        self._console = console
        self._steps = steps
        self._scored = scored
        self._started_at = started_at
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._samples: deque[tuple[float, int, int]] = deque()
        self._last_plain = 0.0
        self._last_key: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(printable(line), soft_wrap=True)

    def update(self, progress: Progress, memory_bytes: int) -> None:
        """Draw the current state."""
        now = time.monotonic()
        self._samples.append((now, progress.counts["responses"], progress.counts["groups"]))
        while now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        if self._live is not None:
            self._live.update(self._panel(progress, now, memory_bytes))
            return
        key = (progress.versions, len(progress.held_out))
        if key != self._last_key or now - self._last_plain > PLAIN_EVERY_S:
            self._last_key, self._last_plain = key, now
            self.say(self._line(progress, now))

    def _rates(self) -> tuple[float, float]:
        (t0, r0, g0), (t1, r1, g1) = self._samples[0], self._samples[-1]
        span = max(t1 - t0, 1e-9)
        return ((r1 - r0) / span, (g1 - g0) / span) if t1 > t0 else (0.0, 0.0)

    def _line(self, progress: Progress, now: float) -> str:
        responses, _ = self._rates()
        total = "" if self._steps is None else f"/{self._steps}"
        is_faulty = bool(progress.scoring_faults())
        activities = [f"{name}: {activity}" for name, activity in waits(progress) if name != "scoring" or is_faulty]
        return (
            f"{now - self._started_at:6.1f} s  v{progress.versions}{total}  {self._score(progress)}  "
            f"{progress.counts['responses']} responses ({responses:.0f}/s), {progress.counts['groups']} groups, "
            f"{progress.batches} batches  |  {_last_step(progress)}  |  {'; '.join(activities)}"
        )

    def _score(self, progress: Progress) -> str:
        """Return the latest held-out score; where nothing is held out, the reward of the latest version's answers."""
        if self._scored:
            latest = _latest(progress.held_out)
            return "held-out not scored yet" if latest is None else f"held-out {latest.exact:.2f} at v{latest.version}"
        versions = progress.scored_versions()
        if not versions:
            return "nothing scored yet"
        version = max(versions)
        return f"train reward {versions[version].mean_reward:.2f} at v{version}"

    def _panel(self, progress: Progress, now: float, memory_bytes: int) -> RenderableType:
        responses, groups = self._rates()
        total = "" if self._steps is None else f" of {self._steps}"
        head = Text.assemble(
            (f"{now - self._started_at:.0f} s", "bold"),
            f"   adapter v{progress.primary} serves, v{progress.versions}{total} trained   ",
            f"{responses:.0f} responses/s   {groups:.1f} groups/s   {memory_bytes / 2**30:.1f} GiB",
        )
        places = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        for place in PLACES:
            places.add_column(place, justify="right", min_width=9)
        places.add_row(*(str(progress.places[place]) for place in PLACES))
        doing = Table.grid(padding=(0, 2))
        for name, activity in waits(progress):
            doing.add_row(Text(name, "bold"), Text(printable(activity)))
        trend, last_step = self._trend(progress), Text(_last_step(progress))
        parts: list[RenderableType] = [head, Text(), places, Text(), trend, last_step, Text(), doing]
        if progress.counts["dead-letters"]:
            parts.append(Text(f"{progress.counts['dead-letters']} dead letters: streamward admin dlq list"))
        return Panel(
            Group(*parts), title=Text("streamward: where every group is"), title_align="left", border_style="dim"
        )

    def _trend(self, progress: Progress) -> Text:
        return trend(progress.held_out) if self._scored else Text(self._score(progress))


def trend(held_out: dict[int, HeldOut]) -> Text:
    """Return the held-out scores as one bar per version, with the first and the latest as numbers."""
    if not held_out:
        return Text("held-out exact match: not scored yet", "dim")
    scores = [held_out[version] for version in sorted(held_out)]
    bars = "".join(BARS[round(score.exact * (len(BARS) - 1))] for score in scores)
    first, last = scores[0], scores[-1]
    text = Text.assemble("held-out exact match  ", (bars, "green"), f"  v{first.version} {first.exact:.2f}")
    return text if first is last else text.append(f"  to  v{last.version} {last.exact:.2f}", "bold green")


def _last_step(progress: Progress) -> str:
    """Return what the newest groups taught."""
    return f"last step: {progress.learning.last_step() or 'no group yet'}"


def _latest(held_out: dict[int, HeldOut]) -> HeldOut | None:
    return held_out[max(held_out)] if held_out else None


# --- when it has ended ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoopEnding:
    """How a run ended."""

    interrupted: bool = False
    finished: bool = True
    failure: str | None = None
    """Why it failed."""


def summarize(
    progress: Progress,
    *,
    loop_s: float,
    data_dir: Path,
    peak_bytes: dict[str, int],
    ending: LoopEnding,
) -> dict[str, Any]:
    """Return the report of a run, ready for JSON. `peak_bytes` is the peak memory of each process."""
    scores = [progress.held_out[version] for version in sorted(progress.held_out)]
    return {
        "held_out": [{"version": score.version, "exact": round(score.exact, 4), "n": score.n} for score in scores],
        "train_reward": [
            {"version": version, **learning.plain()} for version, learning in progress.scored_versions().items()
        ],
        "trained_on": progress.places["trained"],
        "taught_nothing": progress.taught_nothing,
        "adapters": progress.versions,
        "responses": progress.counts["responses"],
        "groups": progress.counts["groups"],
        "batches": progress.batches,
        **({"turns": asdict(progress.turns)} if progress.turns.turns else {}),
        "loop_s": round(loop_s, 1),
        "data_dir": str(data_dir),
        "bootstrap": progress.settings.kafka.bootstrap,
        "peak_bytes": peak_bytes,
        **asdict(ending),
    }


def write(result: dict[str, Any], progress: Progress, folder: Path) -> None:
    """Write report.json and, once held-out questions were scored, learning.png."""
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
    versions = progress.scored_versions()
    axes.plot(
        [*versions],
        [learning.mean_reward or 0.0 for learning in versions.values()],
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


def show(result: dict[str, Any], progress: Progress, console: Console, config: Path, plan: Plan) -> None:
    """Print the tables and the next commands. `config` is the settings file of the run."""
    console.print()
    if result["held_out"]:
        console.print(_scores(progress))
    elif progress.scored_versions():
        console.print(_rewards(progress))
    console.print(_topics(progress))
    console.print(f"{result['loop_s']:.0f} s. {train_summary(progress)}")
    for line in (*_flat_scores(progress), *_faults(progress)):
        console.print(printable(line))
    if result["held_out"]:
        console.print(f"Plot: {config.parent / 'learning.png'}")
    if not result["finished"]:
        stopped = result["interrupted"] or result["failure"] is not None
        ending = "Stopped" if stopped else "The time is over (--minutes)"
        console.print(f"{ending}. Everything is in the log: run the same command again to resume.")
    finds_config = finds_settings(config)
    if finds_config:
        has = f"./streamward.toml and {config} have" if is_of_user(Path(CONFIG_FILE)) else "./streamward.toml now has"
        console.print(f"\n{has} these settings, for commands typed in this folder.")
    console.print("\nTry next:", style="bold")
    for command in _next_commands(None if finds_config else config, plan):
        console.print(f"  {command}", soft_wrap=True)


def train_summary(progress: Progress) -> str:
    """Return what became of the train tasks."""
    places = progress.places
    reasons = ", ".join(f"{count} {reason}" for reason, count in progress.reasons.most_common())
    parts = [
        f"{places['trained']} trained on"
        + (f", {progress.taught_nothing} of them taught nothing" if progress.taught_nothing else ""),
        f"{places['left out']} left out" + (f" ({reasons})" if reasons else ""),
    ]
    if waiting := progress.window():
        groups = progress.settings.batches.groups
        parts.append(f"{waiting} wait{'s' if waiting == 1 else ''} for a batch of {groups} (batches.groups)")
    under_way = places["waiting"] + places["sampled"] + places["scored"]
    under_way += places["batched"] if progress.settings.policy.engine != "scripted" else 0
    scoreless = f" ({progress.stalled_tasks()} without a score)" if progress.stalled_tasks() else ""
    return f"Train tasks: {', '.join(parts)}" + (f", {under_way} in flight{scoreless}" if under_way else "")


def _flat_scores(progress: Progress) -> Iterator[str]:
    """Yield since when held-out scores are flat, and what is answered instead."""
    scores = {version: (score.exact, score.low) for version, score in progress.held_out.items() if score.n}
    since = flat_since(scores)
    if since is None or max(scores.values())[0] >= RIGHT:
        return
    newest = max(scores)
    wrong = [f"{count} × {text[:SHOWN_CHARACTERS]!r}" for text, count in progress.held_out_answers.commonest_wrong()]
    answers = f" Its commonest wrong answers: {', '.join(wrong)}." if wrong else ""
    yield (
        f"Held out, no version is better beyond chance than v{since} ({scores[since][0]:.2f}); v{newest} has "
        f"{scores[newest][0]:.2f}.{answers}"
    )


def _faults(progress: Progress) -> Iterator[str]:
    """Yield a line on scores that failed, and on dead letters."""
    for error in progress.scoring_faults():
        yield f"scoring: {error}"
    if progress.letters:
        counts = Counter(progress.letters.values()).most_common()
        letters = ", ".join(f"{count} {reason}" for reason, count in counts)
        yield f"Dead letters: {letters} (`streamward admin dlq list`)"


def _scores(progress: Progress) -> Table:
    table = Table(title="Held-out score by adapter version", title_justify="left", box=None, header_style="dim")
    graded = any(abs(score.mean_reward - score.exact) > 1e-6 for score in progress.held_out.values())
    for column in ("version", "exact", *(["reward"] if graded else []), "n", *LEARNING_COLUMNS):
        table.add_column(column, justify="right")
    table.add_column("")
    versions = progress.scored_versions()
    for version in sorted(progress.held_out):
        score = progress.held_out[version]
        means = [f"{mean:.2f}" for mean in ((score.exact, score.mean_reward) if graded else (score.exact,))]
        learning = _learning_cells(versions.get(version))
        table.add_row(f"v{version}", *means, str(score.n), *learning, _bar(score.exact))
    return table


LEARNING_COLUMNS = ("train reward", "differed", "cut", "distinct")


def _learning_cells(learning: LearningFigures | None) -> list[str]:
    """Return what a version's train tasks taught: its answers' mean reward, groups that differed, share cut, texts."""
    if learning is None:
        return ["–"] * len(LEARNING_COLUMNS)
    return [
        f"{learning.mean_reward:.2f}",
        f"{learning.differed} of {learning.groups}",
        f"{learning.cut_share:.0%}",
        f"{learning.distinct} of {learning.answers}",
    ]


def _rewards(progress: Progress) -> Table:
    title = "Mean train reward by adapter version that answered"
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for column in ("version", *LEARNING_COLUMNS):
        table.add_column(column, justify="right")
    table.add_column("")
    for version, learning in progress.scored_versions().items():
        reward = learning.mean_reward or 0.0
        table.add_row(f"v{version}", *_learning_cells(learning), _bar(reward))
    return table


def _bar(score: float) -> str:
    """Return a score between 0 and 1 as a bar; one beyond is as long as its end."""
    return "█" * round(min(max(score, 0.0), 1.0) * BAR_WIDTH)


def _topics(progress: Progress) -> Table:
    table = Table(title="In the log", title_justify="left", box=None, header_style="dim")
    table.add_column("topic")
    table.add_column("records", justify="right")
    for topic in topics(progress.settings.topics).values():
        if count := progress.counts[topic.label]:
            table.add_row(topic.name, str(count))
    return table


def _next_commands(config: Path | None, plan: Plan) -> list[str]:
    """Return commands that work as printed; `config` is needed where they would not find the run's settings."""
    program = shlex.quote(_program())
    streamward = program if config is None else f"{program} --config {shlex.quote(str(config))}"
    return [
        *([f"{streamward} admin broker start"] if plan.starts_node else []),
        f"{streamward} adapters list",
        f"{streamward} events tail groups --from -3 --until-end --output jsonl",
        f"{streamward} events tail adapters --until-end",
        f"{streamward} audit",
        *([f"{streamward} admin broker stop"] if plan.starts_node else []),
        *([] if (words := plan.to_continue()) is None else [f"{program} {shlex.join(words)}"]),
    ]


def _program() -> str:
    """Return what to type for this program: its name where a shell finds it by that, else how it was called."""
    called = sys.argv[0]
    is_on_path = Path(called).name != "streamward" or shutil.which("streamward") == called
    return "streamward" if is_on_path else called
