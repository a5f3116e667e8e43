"""The commands that replay part of the log under other settings, and compare the results.

    replay plan, run, evaluate ──► an experiment with its own log ──► replay list, show, compare

Those that compare are in experiments.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams import output as show
from streams.cli.engine_options import on_option
from streams.cli.runtime import (
    INTERRUPTED,
    AppContext,
    archive_for,
    json_object,
    output_option,
    pass_call,
    several,
    source_option,
    until_stopped,
)
from streams.cli.task_file import TaskFileOptions, map_option, read_tasks, split_option

if TYPE_CHECKING:
    from schemas.events import PromptUse
    from streams.evaluation.suite import Suite
    from streams.kafka.history import History
    from streams.output import Output
    from streams.settings.model import Settings
    from streams.tools.archive.history import Source
    from streams.tools.replay.held_out import HeldOutSuite
    from streams.tools.replay.replay_context import Report
    from streams.tools.replay.run_replay import ReplayRequest

OPTIONS = (
    click.argument("name"),
    click.option("--policy", default=None, metavar="NAME", help="Policy of the tasks.  [default: policy.name]"),
    click.option(
        "--since", default=None, metavar="TIME|AGE", help="Only tasks recorded since then: 2026-01-31T12:00, 2h."
    ),
    click.option("--until", default=None, metavar="TIME|AGE", help="Only tasks recorded before then."),
    click.option("--from", "first", type=click.IntRange(min=0), default=None, help="First offset in every partition."),
    click.option("--to", "next_", type=click.IntRange(min=0), default=None, help="Offset after the last one."),
    click.option("--key", default=None, metavar="TASK_ID", help="Only this task."),
    click.option("--scenario", default=None, metavar="NAME", help="Only tasks of this family."),
    click.option("--where", default=None, metavar="SQL", help="Only tasks for which this SQL condition holds."),
    click.option("--advantage", default=None, metavar="NAME|MODULE:FUNCTION", help="Override advantages.formula."),
    click.option("--max-policy-lag", type=click.IntRange(min=0), default=None, help="Override batches.max_policy_lag."),
    click.option("--credit", default=None, metavar="NAME|MODULE:FUNCTION", help="Override advantages.credit."),
    click.option("--gamma", type=float, default=None, help="Override advantages.gamma."),
    click.option("--turn-weight", type=float, default=None, help="Override advantages.turn_weight."),
    click.option("--min-group", type=click.IntRange(min=2), default=None, help="Override advantages.min_group."),
    click.option("--groups", type=click.IntRange(min=1), default=None, help="Override batches.groups."),
    click.option(
        "--scorer",
        "scorers",
        multiple=True,
        metavar="NAME[=JSON]",
        help="Score the recorded responses with this instead. May be repeated; the rewards are added.",
    ),
    click.option(
        "--prompt",
        default=None,
        metavar="NAME@VERSION",
        help="Ask the tasks again with this prompt, of version 0; only with --no-train.",
    ),
    click.option("--values", default="{}", metavar="JSON", help="The value of each variable of --prompt."),
    click.option(
        "--recipe",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE.toml",
        help="TOML file whose section [trainer] overrides the trainer's settings.",
    ),
    click.option("--steps", type=click.IntRange(min=1), default=None, help="Maximum of versions to train."),
    click.option("--no-train", is_flag=True, help="Stop after the batches."),
    click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default=None,
        help="Folder for its settings, adapters and checkpoints.  [default: .streamward/experiments/NAME]",
    ),
    source_option,
)


_request_options = several(*OPTIONS)
"""Adds the arguments that `plan` and `run` share."""


@click.group()
def replay() -> None:
    """Replay recorded tasks with other settings, and compare."""


@replay.command("plan")
@_request_options
@output_option
@pass_call
def replay_plan(call: AppContext, /, output: Output, source: Source, **options: Any) -> None:
    """Estimate the size and duration of a replay.

    Counts tasks, responses, rewards, groups, batches and steps, and estimates the time. Writes nothing.
    """
    from streams.tools.replay import plan_replay as planning

    request = _request(call.settings, options, source)
    row = planning.plan(call.settings, request, _history(call.settings, source)).plain()
    if output == "table":
        row = {key: value for key, value in row.items() if value not in (None, {}, [])}
    show.record(row, output)


@replay.command("run")
@_request_options
@click.option(
    "--show", "show_bars", is_flag=True, help="Also show the mean reward before and after; writes replay.svg."
)
@click.option("--skip-bad", is_flag=True, help="Exit with 0 even if records could not be read.")
@on_option
@output_option
@click.pass_context
@pass_call
def replay_run(
    call: AppContext,
    ctx: click.Context,
    /,
    output: Output,
    source: Source,
    show_bars: bool,
    skip_bad: bool,
    on: str | None,
    **options: Any,
) -> None:
    """Replay tasks into an experiment with its own log.

    Copies the chosen tasks, their responses and rewards; scores again with --scorer; joins, cuts and trains with the
    other settings. With --prompt nothing but the questions is copied: they are asked again after that prompt, and
    scored, by agents in this process. Live processes are not affected. Ctrl-C stops it cleanly, and the same command
    resumes it; its progress is recorded in the topic `experiments`.

    With --on, executors of a cluster read, copy and join the archive; the result has the same bytes
    (docs/distributed.md).
    """
    from streams.tools.replay import run_replay as replaying

    source = archive_for(on, source)
    request = _request(call.settings, options, source)
    with until_stopped() as stop, progress() as report:
        result = replaying.run(
            call.settings_to_write, request, _history(call.settings, source), stop=stop, report=report, on=on
        )
    config = request.place / "streamward.toml"
    show.record({"experiment": result.experiment, "state": result.kind, **result.counts, "config": str(config)}, output)
    if show_bars and result.kind == "finished":
        _show_bars(call.settings, result.experiment, request.place)
    if result.kind == "stopped":
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)
    bad = result.counts.get("unreadable", 0)
    if bad:
        click.echo(f"{bad} records could not be read and were left out{'' if skip_bad else ' (--skip-bad)'}.", err=True)
        ctx.exit(0 if skip_bad else 1)


def _show_bars(settings: Settings, name: str, folder: Path) -> None:
    """Print the two bars of an experiment on stderr, and draw them. Raises as `replay_bars`."""
    from streams.tools.replay import experiments, picture

    bars = picture.replay_bars(settings, experiments.find(settings, name))
    for line in bars.lines():
        click.echo(line, err=True)
    picture.draw(bars, folder / "replay.svg")
    click.echo(f"Plot: {folder / 'replay.svg'}", err=True)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show the progress of each step on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = show.console(sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        stages: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage and stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            if stage:
                bars.update(stages[stage], completed=done, total=total)

        yield report


def _request(settings: Settings, options: dict[str, Any], source: Source) -> ReplayRequest:
    """Return the request that the options make. Raises SettingsError."""
    from streams.scorers import named_sources
    from streams.tools.replay import selection
    from streams.tools.replay.run_replay import ReplayRequest

    limits = options | {"from": options["first"], "to": options["next_"]}
    selected = selection.parse(options["policy"] or settings.policy.name, limits)
    changes = {
        "advantages.formula": options["advantage"],
        "advantages.credit": options["credit"],
        "advantages.gamma": options["gamma"],
        "advantages.turn_weight": options["turn_weight"],
        "advantages.min_group": options["min_group"],
        "batches.max_policy_lag": options["max_policy_lag"],
        "batches.groups": options["groups"],
    }
    return ReplayRequest(
        name=options["name"],
        prompt=_prompt(settings, options["prompt"], options["values"]),
        selection=selected,
        changes={key: value for key, value in changes.items() if value is not None} | _recipe(options["recipe"]),
        origin="the options" if options["recipe"] is None else str(options["recipe"]),
        scorers=named_sources(options["scorers"]),
        steps=options["steps"],
        train=not options["no_train"],
        folder=options["folder"],
        where=partial(matching_tasks, source=source) if options["where"] is not None else None,
    )


def _prompt(settings: Settings, reference: str | None, values: str) -> PromptUse | None:
    """Return the version that --prompt means now, with its values. Raises EventError, NotFoundError, LogError."""
    from streams.stages.tasks.line_steps import LineSteps, log_now
    from streams.stages.tasks.prompted import named_prompt

    if reference is None:
        return None
    use = named_prompt(LineSteps(log_now(settings)), reference, json_object(values, "--values"), "")
    return replace(use, alias=None)


def _recipe(file: Path | None) -> dict[str, Any]:
    """Return the settings in a recipe, by dotted key. Raises NotFoundError, SettingsError."""
    from streams.errors import SettingsError
    from streams.settings.toml_file import read_toml

    if file is None:
        return {}
    data = read_toml(file, "give a TOML file with a section [trainer]")
    foreign = sorted(data.keys() - {"trainer"})
    if foreign:
        raise SettingsError(f"{file}: {foreign[0]} does not belong in a recipe, which has the section [trainer] alone")
    section = data.get("trainer", {})
    if not isinstance(section, dict):
        raise SettingsError(f"{file}: trainer must be a section; write its settings below [trainer]")
    return {f"trainer.{name}": value for name, value in section.items()}


def _history(settings: Settings, source: Source) -> History:
    """Return the history that a source names."""
    from streams.tools.archive import history

    return history.of(settings, source)


def matching_tasks(settings: Settings, condition: str, *, source: Source) -> set[str]:
    """Return the ids of the tasks for which an SQL condition holds. Raises as `query.Session` does."""
    from streams.tools.query.session import Session

    with Session(settings, source=source) as session:
        sql = f"SELECT DISTINCT task_id FROM tasks WHERE ({condition}\n)"  # noqa: S608 - parsed below; that \n ends a comment
        session.parse(sql)
        return {row for batch in session.run(sql).batches for row in batch.column(0).to_pylist()}


@replay.command("evaluate")
@click.argument("name")
@click.option(
    "--suite",
    default="sums",
    show_default=True,
    metavar="GENERATOR|FILE",
    help="Generator of the questions, or a suite's file, as in docs/examples/suite.yaml.",
)
@click.option("--options", default="{}", metavar="JSON", help="Options of the generator.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of a generator's questions per version.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same questions.")
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Ask these questions instead, read with the options below as `up` reads its --held-out.",
)
@map_option
@split_option
@click.option("--group-size", type=click.IntRange(min=1), help="Responses per question of --held-out.  [default: 8]")
@click.option("--system", default=None, metavar="TEXT", help="System message before each question of --held-out.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of a response.  [default: 256]")
@click.option("--versions", default="0,last", show_default=True, metavar="N,N,last", help="Versions that answer.")
@click.option(
    "--scorer",
    "scorers",
    multiple=True,
    metavar="NAME[=JSON]",
    help="Score the answers with this instead of the suite's own scorer. May be repeated.",
)
@output_option
@click.pass_context
@pass_call
def replay_evaluate(
    call: AppContext,
    ctx: click.Context,
    /,
    name: str,
    suite: str,
    options: str,
    count: int,
    seed: int,
    held_out: Path | None,
    versions: str,
    scorers: tuple[str, ...],
    output: Output,
    **reading: Any,
) -> None:
    """Evaluate an experiment's versions on held-out questions.

    A policy agent and a scoring agent run in this process until all questions are answered; for a suite in an
    environment, so do the server for agents and the built-in agent. `replay compare` shows the scores, of two
    experiments on the same questions side by side. Repeating the command adds nothing.
    """
    from streams.scorers import named_sources
    from streams.stages.tasks import suites
    from streams.tools.replay import held_out as asking
    from streams.tools.replay.replay_context import Stopped

    if held_out is not None:
        questions = _suite_of_file(call.settings, held_out, TaskFileOptions(**reading, scorers=scorers))
        asked = asking.HeldOutSuite(suite=questions, versions=tuple(versions.split(",")))
    else:
        if suite.endswith((".yaml", ".yml")):
            questions = suites.of_file(call.settings, Path(suite))
        else:
            questions = suites.generated(suite, count=count, seed=seed, options=json_object(options, "--options"))
        chosen = tuple(versions.split(","))
        asked = asking.HeldOutSuite(suite=questions, versions=chosen, scorers=named_sources(scorers))
    try:
        with until_stopped() as stop, progress() as report, players(call.settings, name, asked, report) as report:
            results = asking.run(call.settings_to_write, name, asked, stop=stop, report=report)
    except Stopped:
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)
    rows = [{"version": number, "suite": event.suite, **event.metrics} for number, event in results.items()]
    columns = [show.Column(title, title) for title in ("version", "exact", "mean_reward", "n", "failed", "suite")]
    show.rows([{"exact": None, "mean_reward": None, **row} for row in rows], columns, output)


def _suite_of_file(settings: Settings, file: Path, reading: TaskFileOptions) -> Suite:
    """Return the questions of a file, under the name that `up` gives them. Raises as `read_tasks`."""
    from streams.stages.tasks import suites

    return suites.of_tasks("held-out", read_tasks(settings, file, replace(reading, purpose="eval")).tasks)


@contextmanager
def players(settings: Settings, name: str, suite: HeldOutSuite, report: Report) -> Iterator[Report]:
    """Play a suite of episodes while the block runs; yield a report that also restarts players that ended."""
    from streams.demo.players import playing
    from streams.tools.replay import experiments

    if not suite.in_environment:
        yield report
        return
    with playing(experiments.find(settings, name).folder / "streamward.toml") as check:

        def check_and_report(stage: str, done: int, total: int | None) -> None:
            for line in check():
                click.echo(line, err=True)
            report(stage, done, total)

        yield check_and_report
