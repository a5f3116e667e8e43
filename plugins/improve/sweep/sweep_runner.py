"""Run a sweep: train and score recipes on recorded groups until one is left, or the budget is spent.

    experiments, adapters of each ──► results and usage ──► next_step ──► replay run, replay evaluate ──► the same logs

The log is the only state: a recipe is an experiment (streams/tools/replay), named by its values. So a sweep that was
stopped or killed does what is missing and pays for nothing twice, and one that has ended prints its verdict again.

The budget is checked before each piece of work, against the usage in the experiments' logs; the piece that exceeds it
is finished. Not counted: cutting and joining, which sample nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugins.improve.sweep import sweep_file
from plugins.improve.sweep.sweep_file import Recipe, SweepFile, SweepLimits
from plugins.improve.sweep.sweep_plan import (
    RecipeResult,
    Score,
    Side,
    SweepPlan,
    SweepVerdict,
    Train,
    next_step,
    rounds_of,
)
from plugins.jobs.fold.state import JobUsage, cost_usd
from schemas.events import Task
from schemas.serde import Poison
from streams.adapters import versions as adapters
from streams.adapters.versions import AdapterState
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.evaluation.suite import Suite
from streams.kafka.history import LogHistory
from streams.kafka.topics import topics
from streams.rows.row_texts import row_of_task
from streams.rows.training_gate import AllHeldOut, TrainingUse
from streams.settings.model import Settings
from streams.tools.replay import experiments, held_out, run_replay, selection
from streams.tools.replay.experiments import Experiment
from streams.tools.replay.held_out import HeldOutSuite
from streams.tools.replay.replay_context import Report, Stopped
from streams.tools.replay.run_replay import Condition, ReplayRequest

ACTOR = "sweep"
Players = Callable[[str, HeldOutSuite, Report], AbstractContextManager[Report]]
"""Plays a suite of episodes on an experiment while the block runs."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that was checked."""

    name: str
    recipes: tuple[Recipe, ...]
    plan: SweepPlan
    suites: Mapping[Side, Suite]
    limits: SweepLimits
    request: ReplayRequest
    """Of every recipe, but for its name and its changes."""


@dataclass(frozen=True, slots=True)
class SweepUsage:
    """What the recipes used, by their logs."""

    tokens: int = 0
    """Trained on, read and written."""
    usage: JobUsage = field(default_factory=JobUsage)

    def __add__(self, other: SweepUsage) -> SweepUsage:
        first, second = self.usage, other.usage
        total = JobUsage(
            first.prompt_tokens + second.prompt_tokens,
            first.completion_tokens + second.completion_tokens,
            first.trainer_s + second.trainer_s,
        )
        return SweepUsage(self.tokens + other.tokens, total)

    def cost_usd(self, limits: SweepLimits) -> float | None:
        """Return its cost; None without prices."""
        return None if limits.prices is None else cost_usd(self.usage, limits.prices)

    def over(self, limits: SweepLimits) -> str | None:
        """Return which limit is reached, in words; None: none is."""
        cost = self.cost_usd(limits)
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return f"{self.tokens} of {limits.tokens} tokens are used"
        if limits.trainer_s is not None and self.usage.trainer_s >= limits.trainer_s:
            return f"{self.usage.trainer_s:.1f} of {limits.trainer_s:g} seconds of training are used"
        if cost is not None and limits.usd is not None and cost >= limits.usd:
            return f"{cost:.4f} USD of {limits.usd:.4f} are spent"
        return None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """A sweep so far, or at its end."""

    verdict: SweepVerdict
    results: Mapping[str, RecipeResult]
    used: SweepUsage


def prepare(settings: Settings, sweep: SweepFile, file: Path, where: Condition | None = None) -> Sweep:
    """Return a sweep with everything that can be checked before anything is paid for.

    Recipes with the same settings as an earlier one are left out. Raises SettingsError, naming `file`; NotFoundError,
    and what reading the suite raises.
    """
    tasks = sweep.tasks.model_dump(by_alias=True)
    request = ReplayRequest(
        name="",
        selection=selection.parse(sweep.tasks.policy or settings.policy.name, tasks),
        origin=str(file),
        where=where,
        actor=ACTOR,
    )
    different: dict[tuple[tuple[str, str], ...], Recipe] = {}
    for recipe in sweep_file.recipes(sweep, file):
        deciding = experiments.deciding(run_replay.settings_of(settings, _request(request, recipe)))
        different.setdefault(tuple(sorted(deciding.items())), recipe)
    recipes = tuple(different.values())
    if len(recipes) < 2:
        raise SettingsError(f"{file}: every combination of the grid is the settings as they are; give it other values")
    search, report = sweep_file.sides(sweep, file, settings)
    return Sweep(
        name=sweep.name,
        recipes=recipes,
        plan=SweepPlan(tuple(recipe.name for recipe in recipes), sweep.first_steps),
        suites={"search": search, "report": report},
        limits=sweep_file.limits(sweep, file, settings),
        request=request,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A sweep while it is worked on."""

    settings: Settings
    sweep: Sweep
    stop: threading.Event
    report: Report
    players: Players = lambda name, suite, report: nullcontext(report)

    def run(self) -> SweepReport:
        """Do what the log lacks, and return its end.

        Raises SettingsError for an engine without weights, ContaminatedError if a task to train on gives a question of
        the suite away, Stopped, what replays and evaluations raise.
        """
        if self.settings.policy.engine == "scripted":
            raise SettingsError("policy.engine=scripted has no weights, and a sweep trains; use another engine")
        if self.sweep.recipes[0].name not in experiments.read(self.settings):
            _refuse_held_out(self.settings, self.sweep)
        before: Train | Score | None = None
        while True:
            recorded = experiments.read(self.settings)
            results, used = read(self.settings, self.sweep, recorded)
            step = next_step(self.sweep.plan, results, used.over(self.sweep.limits))
            if isinstance(step, SweepVerdict):
                return SweepReport(step, results, used)
            if step == before:
                raise RefusedError(f"{step.recipe} does not come to version {_version(step)}; see its log and events")
            if self.stop.is_set():
                raise Stopped
            recipe = next(one for one in self.sweep.recipes if one.name == step.recipe)
            if isinstance(step, Train):
                self._train(recipe, step.versions)
            else:
                self._score(recipe, step, recorded[recipe.name])
            before = step

    def _train(self, recipe: Recipe, versions: int) -> None:
        """Replay a recipe until it has so many versions. Raises Stopped, RefusedError if there is no batch."""
        request = _request(self.sweep.request, recipe, versions)
        result = run_replay.run(self.settings, request, stop=self.stop, report=self._prefix_report(recipe))
        if result.kind == "stopped":
            raise Stopped
        if not result.counts["batches"]:
            raise RefusedError(
                f"{recipe.name}: the recorded groups make no batch; see `streamward replay show {recipe.name}`"
            )

    def _score(self, recipe: Recipe, step: Score, experiment: Experiment) -> None:
        """Ask a version of a recipe the questions of a side. Raises Stopped."""
        if experiment.kind != "finished":  # it was killed between its last version and its end
            self._train(recipe, step.version)
        suite = HeldOutSuite(suite=self.sweep.suites[step.side], versions=(str(step.version),))
        with self.players(recipe.name, suite, self._prefix_report(recipe)) as report:
            held_out.run(self.settings, recipe.name, suite, stop=self.stop, report=report)

    def _prefix_report(self, recipe: Recipe) -> Report:
        return lambda stage, done, total: self.report(f"{recipe.name} {stage}" if stage else "", done, total)


def _refuse_held_out(settings: Settings, sweep: Sweep) -> None:
    """Raise RefusedError if a task to train on is held out, as by a question of the suite."""
    history, request = LogHistory(settings), sweep.request
    among = None
    if request.selection.where is not None and request.where is not None:
        among = request.where(settings, request.selection.where)
    ranges = selection.ranges_of(settings, history, request.selection)
    keys = selection.choose(settings, history, request.selection, ranges, among).keys
    starts, ends = selection.bounds(ranges, topics(settings.topics)["tasks"].name)
    tasks = (record.decode(Task) for record in history.read(starts, ends) if record.key in keys)
    rows = (row_of_task(task, f"task {task.task_id}") for task in tasks if not isinstance(task, Poison))
    way_out = "Nothing was trained. Leave the questions out of [suite], or the tasks out of [tasks]."
    AllHeldOut.of_suites(settings, [*sweep.suites.values()]).check(rows, TrainingUse(f"sweep {sweep.name}", way_out))


def _version(step: Train | Score) -> int:
    return step.versions if isinstance(step, Train) else step.version


def read(
    settings: Settings, sweep: Sweep, recorded: Mapping[str, Experiment]
) -> tuple[dict[str, RecipeResult], SweepUsage]:
    """Return what the log has of each recipe, and what they used together."""
    results: dict[str, RecipeResult] = {}
    used = SweepUsage()
    for recipe in sweep.recipes:
        if (experiment := recorded.get(recipe.name)) is None:
            continue
        try:
            state = adapters.read_state(experiments.of(settings, experiment), recipe.name)
        except NotFoundError:  # it was stopped before its topics existed
            continue
        results[recipe.name] = RecipeResult(
            versions=state.newest,
            batches=experiment.counts.get("batches"),
            outcomes={
                (side, number): version.outcomes[suite.name]
                for side, suite in sweep.suites.items()
                for number, version in state.versions.items()
                if suite.name in version.outcomes
            },
        )
        used += _usage(state)
    return results, used


def _usage(state: AdapterState) -> SweepUsage:
    """Return what an experiment used: every step, and every answer to a suite."""
    metrics = [version.metrics for version in state.versions.values()]
    outcomes = [
        outcome for version in state.versions.values() for answers in version.outcomes.values() for outcome in answers
    ]
    read = int(sum(outcome.prompt_tokens or 0.0 for outcome in outcomes))
    written = int(sum(outcome.sampled_tokens or 0.0 for outcome in outcomes))
    trained = int(sum(figures.get("tokens_run", 0.0) for figures in metrics))
    usage = JobUsage(read, written, sum(figures.get("step_s", 0.0) for figures in metrics))
    return SweepUsage(read + written + trained, usage)


def _request(request: ReplayRequest, recipe: Recipe, steps: int | None = None) -> ReplayRequest:
    return replace(request, name=recipe.name, changes=recipe.changes, steps=steps)


def recipe_rows(sweep: Sweep, end: SweepReport | None) -> list[dict[str, Any]]:
    """Return a row for each recipe: its newest version that was asked the questions to search by."""
    rows = []
    for recipe in sweep.recipes:
        result = RecipeResult() if end is None else end.results.get(recipe.name, RecipeResult())
        newest = max((number for side, number in result.outcomes if side == "search"), default=0)
        rewards = [one.reward for one in result.outcomes.get(("search", newest), ()) if one.reward is not None]
        rows.append(
            {
                "experiment": recipe.name,
                "versions": result.versions,
                "mean_reward": sum(rewards) / len(rewards) if rewards else None,
                "n": len(rewards),
                "settings": {key: str(value) for key, value in recipe.changes.items()},
            }
        )
    return rows


def plain(sweep: Sweep, end: SweepReport) -> dict[str, Any]:
    """Return the end of a sweep as one row."""
    verdict, gain = end.verdict, end.verdict.gain
    best = None if verdict.is_level else verdict.best
    changes: Mapping[str, Any] = next((one.changes for one in sweep.recipes if one.name == best), {})
    row: dict[str, Any] = {
        "sweep": sweep.name,
        "best": best,
        "version": verdict.version,
        "settings": {key: str(value) for key, value in changes.items()},
        "better": verdict.is_better,
        "rounds": f"{verdict.rounds} of {rounds_of(len(sweep.recipes) - 1)}",
    }
    if gain is not None:
        row |= {
            "gain": gain.gain.value,
            "gain_low": gain.gain.low,
            "gain_high": gain.gain.high,
            "mean_reward": gain.reward,
            "mean_reward_base": gain.reward_against,
            "n": gain.n,
        }
    used = end.used
    row |= {"tokens": used.tokens, "trainer_s": used.usage.trainer_s, "cost_usd": used.cost_usd(sweep.limits)}
    return row | {"over_budget": verdict.over_budget}
