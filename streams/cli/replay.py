"""The commands that replay part of the log under other settings, and compare the results.

    replay plan, run, evaluate ──► an experiment: a log of its own ──► experiments list, show, compare

The commands below `experiments` are in streams/cli/experiments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streams.cli.runtime import (
    INTERRUPTED,
    AppContext,
    archive_for,
    json_object,
    on_option,
    output_option,
    pass_call,
    source_option,
    until_stopped,
)

if TYPE_CHECKING:
    from streams.kafka.history import History
    from streams.output import Output
    from streams.settings.model import Settings
    from streams.tools.archive.history import Source
    from streams.tools.distributed.engine import EngineName
    from streams.tools.replay.held_out import HeldOutSuite
    from streams.tools.replay.replay import Report
    from streams.tools.replay.run import ReplayRequest

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = (
    click.argument("name"),
    click.option("--policy", default=None, metavar="NAME", help="Whose tasks. Default: policy.name."),
    click.option("--since", default=None, metavar="TIME|AGE", help="Tasks recorded since then: 2026-01-31T12:00, 2h."),
    click.option("--until", default=None, metavar="TIME|AGE", help="Tasks recorded before then."),
    click.option("--from", "first", type=click.IntRange(min=0), default=None, help="First offset in every partition."),
    click.option("--to", "next_", type=click.IntRange(min=0), default=None, help="Offset after the last one."),
    click.option("--key", default=None, metavar="TASK_ID", help="Only this task."),
    click.option("--scenario", default=None, metavar="NAME", help="Tasks of this family."),
    click.option("--where", default=None, metavar="SQL", help="Tasks for which this condition on their columns holds."),
    click.option("--advantage", default=None, metavar="NAME|MODULE:FUNCTION", help="Another advantages.formula."),
    click.option("--max-policy-lag", type=click.IntRange(min=0), default=None, help="Another batches.max_policy_lag."),
    click.option("--credit", default=None, metavar="NAME|MODULE:FUNCTION", help="Another advantages.credit."),
    click.option("--gamma", type=float, default=None, help="Another advantages.gamma."),
    click.option("--turn-weight", type=float, default=None, help="Another advantages.turn_weight."),
    click.option("--min-group", type=click.IntRange(min=2), default=None, help="Another advantages.min_group."),
    click.option("--groups", type=click.IntRange(min=1), default=None, help="Groups in a batch."),
    click.option(
        "--scorer",
        "scorers",
        multiple=True,
        metavar="NAME[=JSON]",
        help="Score the recorded responses with this instead. May be given again; the rewards are added.",
    ),
    click.option(
        "--recipe",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE.toml",
        help="Other settings of the trainer, in its section [trainer].",
    ),
    click.option("--steps", type=click.IntRange(min=1), default=None, help="Train at most this many versions."),
    click.option("--no-train", is_flag=True, help="Stop after the batches."),
    click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default=None,
        help="Folder of its settings, adapters and checkpoints.  [default: .streamward/experiments/NAME]",
    ),
    source_option,
)


def _asked(command: F) -> F:
    """Add the arguments that `plan` and `run` share."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group()
def replay() -> None:
    """Replay recorded tasks under other settings."""


@replay.command("plan")
@_asked
@output_option
@pass_call
def replay_plan(call: AppContext, /, output: Output, source: Source, **given: Any) -> None:
    """Estimate what a replay would produce.

    Counts tasks, responses, rewards, groups, batches and steps, and estimates how long it takes. Writes nothing.
    """
    from streams import output as show
    from streams.tools.replay import plan as planning

    made = planning.plan(call.settings, _request(call.settings, given, source), _history(call.settings, source)).plain()
    if output == "table":
        made = {key: value for key, value in made.items() if value not in (None, {}, [])}
    show.record(made, output)


@replay.command("run")
@_asked
@click.option("--skip-bad", is_flag=True, help="Exit with 0 although records could not be read.")
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
    skip_bad: bool,
    on: EngineName | None,
    **given: Any,
) -> None:
    """Replay tasks into an experiment: a log of its own.

    Copies the chosen tasks, their responses and rewards; scores again with --scorer; joins, cuts and trains under the
    other settings. No live process sees any of it. Ctrl-C stops it cleanly, and the same command resumes it; its
    progress is recorded in the topic `experiments`.

    With --on, an archive is read, copied and joined on the executors of Ray or Spark; what comes out has the same
    bytes. docs/scale.md.
    """
    from streams import output as show
    from streams.tools.replay import run as replaying

    source = archive_for(on, source)
    request = _request(call.settings, given, source)
    with until_stopped() as stop, _progress() as report:
        result = replaying.run(
            call.settings_to_write, request, _history(call.settings, source), stop=stop, report=report, on=on
        )
    config = request.place / "streamward.toml"
    show.record({"experiment": result.experiment, "state": result.kind, **result.counts, "config": str(config)}, output)
    if result.kind == "stopped":
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)
    if bad := result.counts.get("unreadable", 0):
        click.echo(f"{bad} records could not be read and were left out{'' if skip_bad else ' (--skip-bad)'}.", err=True)
        ctx.exit(0 if skip_bad else 1)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show the progress of each step on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        known: dict[str, Any] = {}

        def report(stage: str, done: int, of: int | None) -> None:
            if stage and stage not in known:
                known[stage] = bars.add_task(stage, total=of)
            if stage:
                bars.update(known[stage], completed=done, total=of)

        yield report


def _request(settings: Settings, given: dict[str, Any], source: Source) -> ReplayRequest:
    """Return what the options ask for. Raises SettingsError."""
    from streams.kafka.times import parse_time
    from streams.scorers import named_sources
    from streams.tools.replay.run import ReplayRequest
    from streams.tools.replay.selection import Selection

    policy = given["policy"] or settings.policy.name
    limits = {"since": given["since"], "until": given["until"], "from": given["first"], "to": given["next_"]}
    limits |= {name: given[name] for name in ("key", "scenario", "where")}
    selected = Selection(
        policy=policy,
        since_ms=None if given["since"] is None else parse_time(given["since"], "--since"),
        until_ms=None if given["until"] is None else parse_time(given["until"], "--until"),
        first=given["first"],
        next=given["next_"],
        key=given["key"],
        scenario=given["scenario"],
        where=given["where"],
        asked=tuple((name, str(text)) for name, text in limits.items() if text is not None),
    )
    changes = {
        "advantages.formula": given["advantage"],
        "advantages.credit": given["credit"],
        "advantages.gamma": given["gamma"],
        "advantages.turn_weight": given["turn_weight"],
        "advantages.min_group": given["min_group"],
        "batches.max_policy_lag": given["max_policy_lag"],
        "batches.groups": given["groups"],
    }
    return ReplayRequest(
        name=given["name"],
        selection=selected,
        changes={key: value for key, value in changes.items() if value is not None} | _recipe(given["recipe"]),
        origin="the options" if given["recipe"] is None else str(given["recipe"]),
        scorers=named_sources(given["scorers"]),
        steps=given["steps"],
        train=not given["no_train"],
        folder=given["folder"],
        where=partial(_where, source=source) if given["where"] is not None else None,
    )


def _recipe(file: Path | None) -> dict[str, Any]:
    """Return the settings in a recipe, by dotted key. Raises NotFoundError, SettingsError."""
    import tomllib

    from streams.errors import NotFoundError, SettingsError

    if file is None:
        return {}
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}; give a TOML file with a section [trainer]") from exc
    except (ValueError, RecursionError) as exc:  # also what is not UTF-8, or nested without end
        raise SettingsError(f"{file}: not TOML: {exc}") from exc
    if other := sorted(data.keys() - {"trainer"}):
        raise SettingsError(f"{file}: {other[0]} does not belong in a recipe, which has the section [trainer] alone")
    section = data.get("trainer", {})
    if not isinstance(section, dict):
        raise SettingsError(f"{file}: trainer must be a section; write its settings below [trainer]")
    return {f"trainer.{name}": value for name, value in section.items()}


def _history(settings: Settings, source: Source) -> History:
    """Return where to read the source."""
    from streams.tools.archive import history

    return history.of(settings, source)


def _where(settings: Settings, condition: str, *, source: Source) -> set[str]:
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
    "generator",
    default="sums",
    show_default=True,
    metavar="GENERATOR",
    help="The generator of the questions.",
)
@click.option("--options", default="{}", metavar="JSON", help="Options of the generator.")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Questions per version.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same questions.")
@click.option("--versions", default="0,last", show_default=True, metavar="N,N,last", help="The versions that answer.")
@click.option(
    "--scorer",
    "scorers",
    multiple=True,
    metavar="NAME[=JSON]",
    help="Score the answers with this instead of the suite's own scorer. May be given again.",
)
@output_option
@click.pass_context
@pass_call
def replay_evaluate(
    call: AppContext,
    ctx: click.Context,
    name: str,
    generator: str,
    options: str,
    count: int,
    seed: int,
    versions: str,
    scorers: tuple[str, ...],
    output: Output,
) -> None:
    """Evaluate an experiment's versions on held-out questions.

    A policy agent and a scoring agent run in this process until all are answered; for a suite of an environment also
    the server for agents and the built-in agent. `experiments compare` shows the scores. Repeating the command adds
    nothing.
    """
    from streams import output as show
    from streams.scorers import named_sources
    from streams.tools.replay import held_out as asking
    from streams.tools.replay.replay import Stopped

    suite = asking.HeldOutSuite(
        generator=generator,
        options=json_object(options, "--options"),
        count=count,
        seed=seed,
        versions=tuple(versions.split(",")),
        scorers=named_sources(scorers),
    )
    try:
        with until_stopped() as stop, _progress() as report, _played(call.settings, name, suite, report) as report:
            results = asking.run(call.settings_to_write, name, suite, stop=stop, report=report)
    except Stopped:
        click.echo("Stopped. Run the same command again to resume.", err=True)
        ctx.exit(INTERRUPTED)
    found = [{"version": number, "suite": event.suite, **event.metrics} for number, event in results.items()]
    columns = [show.Column(title, title) for title in ("version", "exact", "mean_reward", "n", "failed", "suite")]
    show.rows([{"exact": None, "mean_reward": None, **row} for row in found], columns, output)


@contextmanager
def _played(settings: Settings, name: str, suite: HeldOutSuite, report: Report) -> Iterator[Report]:
    """Have a suite of episodes played while the block runs; yield a report that also restarts whoever ended."""
    from streams.demo.players import playing
    from streams.tools.replay import experiments

    if not suite.in_environment:
        yield report
        return
    with playing(experiments.find(settings, name).folder / "streamward.toml") as check:

        def watched(stage: str, done: int, of: int | None) -> None:
            for line in check():
                click.echo(line, err=True)
            report(stage, done, of)

        yield watched
