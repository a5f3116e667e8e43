"""The commands of scorers: `scoring` runs an agent, `scoring try` tries one, `admin rescore` writes missing scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.engine_options import agent_options, on_engine, refuse_options
from streams.cli.runtime import AppContext, begin, output_option, pass_call, until_stopped, user_name
from streams.cli.task_file import TaskFileOptions, map_option, split_option

if TYPE_CHECKING:
    from schemas.events import Task
    from streams.output import Output


@click.group(invoke_without_command=True)
@agent_options
@click.pass_context
@pass_call
def scoring(call: AppContext, ctx: click.Context, on: str | None, replicas: int | None) -> None:
    """Run a scoring agent: responses in, rewards out.

    SIGTERM or Ctrl-C ends it, once in-flight work is finished. Several agents share the partitions. `scoring try` tries
    a scorer without a broker.
    """
    if ctx.invoked_subcommand is not None:
        refuse_options(f"scoring {ctx.invoked_subcommand}", on, replicas)
        return
    call.working = True
    if (run_agents := on_engine(on, replicas)) is not None:
        ctx.exit(run_agents(call, ["scoring"], replicas or 1))
    with until_stopped() as stop:
        begin(call, "scoring agent", "responses")
        from streams.stages.scoring import scoring_agent

        scoring_agent.run(call.settings, stop=stop)


@scoring.command("try")
@click.argument("name", metavar="NAME[=JSON]")
@click.option(
    "--task",
    "place",
    required=True,
    metavar="FILE[:LINE]",
    help="Task to score, as `tasks submit` reads it.  [default: the first of the file]",
)
@map_option
@split_option
@click.option("--text", required=True, metavar="TEXT", help="Response to score.")
@output_option
@pass_call
def scoring_try(
    call: AppContext, /, name: str, place: str, names: tuple[str, ...], split: str | None, text: str, output: Output
) -> None:
    """Score a text with a scorer, without a broker.

    The scorer runs as in the agent: your own function MODULE:FUNCTION runs in a process with the time limit
    scoring.timeout_s. JSON holds its settings.  [default: the settings in the task] Its own output goes to stderr.
    """
    from streams import output as show
    from streams.errors import EventError
    from streams.stages.scoring import trial

    task = _task(call, place, TaskFileOptions(names=names, split=split))
    source = trial.source_of(name, task)
    verdict = trial.try_scorer(call.settings.scoring, task, source, text)
    if verdict.error is not None:
        raise EventError(f"{source.name} gave no score: {verdict.error}")
    score = {"value": verdict.value, "components": verdict.components, "rationale": verdict.rationale}
    score |= {"abstained": True} if verdict.is_abstention else {}
    show.record(score | {"version": verdict.version, "latency_ms": round(verdict.latency_ms, 1)}, output)


def _task(call: AppContext, place: str, options: TaskFileOptions) -> Task:
    """Return the task in a line of a file. Raises NotFoundError, EventError."""
    from streams.arrow.file_rows import SEPARATED, rows
    from streams.errors import EventError, NotFoundError
    from streams.kafka.times import now_ms
    from streams.stages.tasks.line_task import Reading
    from streams.stages.tasks.lines import check_rows

    name, colon, number = place.rpartition(":")
    file, line = (Path(name), int(number)) if colon and number.isdecimal() else (Path(place), None)
    row = next((row for row in rows(file, options.split) if line in (row[0], None)), None)
    if row is None and line == 1 and file.suffix.lower() in SEPARATED:
        raise NotFoundError(f"{file}: line 1 is the header; the first task is in line 2")
    if row is None:
        raise NotFoundError(f"{file} has no task in line {line or 1}")
    settings = call.settings
    reading = Reading(
        now_ms=now_ms(),
        topic_settings=settings.topics,
        defaults=options.defaults(settings),
        names=options.fields_of_columns(),
    )
    checked = check_rows([row], str(file), reading)
    if checked.problems:
        raise EventError(str(checked.problems[0]))
    return checked.tasks[0]


@click.command()
@click.option("--failed", is_flag=True, help="Score what scoring agents could not score; the only choice so far.")
@click.option("--since", metavar="TIME|AGE", default=None, help="Only failures since then: 2026-01-31T12:00, 2h.")
@output_option
@click.pass_context
@pass_call
def rescore(call: AppContext, ctx: click.Context, failed: bool, since: str | None, output: Output) -> None:
    """Write missing scores, once their scorer is repaired.

    Scores the responses of the dead letters `score_failed`, `no_judge` and `module_not_listed`. Their groups wait until
    their deadline; for groups that timed out, use `streamward tasks resubmit --unscored`. Exit code 1 if a score fails
    again. `replay run --scorer` scores whole groups again with another scorer.
    """
    from streams import output as show
    from streams.errors import SettingsError
    from streams.kafka.times import parse_time
    from streams.tools.missing_scores import rescore_failed

    if not failed:
        raise SettingsError("name what to score: --failed; `replay run --scorer` scores finished groups again")
    since_ms = None if since is None else parse_time(since, "--since")
    result = rescore_failed(call.settings_to_write, since_ms=since_ms, actor=user_name())
    counts = {"rewards": result.rewards, "responses": len(result.whole)}
    show.record(counts | {"failed": len(result.errors), "too_late": result.too_late}, output)
    if result.too_late:
        way_out = "`streamward tasks resubmit --unscored` sends their tasks again"
        click.echo(f"The groups of {result.too_late} responses have timed out: {way_out}.", err=True)
    if result.errors:
        click.echo(f"{len(result.errors)} failed again, the last: {result.errors[-1]}", err=True)
        ctx.exit(1)
