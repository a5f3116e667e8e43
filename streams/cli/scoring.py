"""The commands about scorers beside the agent: `scoring try` before a scorer is used, `rescore` after it was repaired.

The agent itself is started in root.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call, user_name
from streams.cli.task_file import TaskFileOptions, map_option, split_option

if TYPE_CHECKING:
    from schemas.events import Task
    from streams.output import Output


@click.command("try")
@click.argument("name", metavar="NAME[=JSON]")
@click.option(
    "--task",
    "place",
    required=True,
    metavar="FILE[:LINE]",
    help="The task, as `tasks submit` reads it; else the first.",
)
@map_option
@split_option
@click.option("--text", required=True, metavar="TEXT", help="The response to be scored.")
@output_option
@pass_call
def scoring_try(
    call: AppContext, /, name: str, place: str, names: tuple[str, ...], split: str | None, text: str, output: Output
) -> None:
    """Score a text with a scorer, without a broker, and print what it says.

    It runs as in the agent: your own function MODULE:FUNCTION in a process with the time limit scoring.timeout_s. JSON
    are its settings; without, those that the task gives it. What the scorer prints goes to stderr.
    """
    from streams import output as show
    from streams.errors import EventError
    from streams.stages.scoring import trial

    task = _task(call, place, TaskFileOptions(names=names, split=split))
    source = trial.source_of(name, task)
    found = trial.try_scorer(call.settings.scoring, task, source, text)
    if found.error is not None:
        raise EventError(f"{source.name} gave no score: {found.error}")
    said = {"value": found.value, "components": found.components, "rationale": found.rationale}
    show.record(said | {"version": found.version, "latency_ms": round(found.latency_ms, 1)}, output)


def _task(call: AppContext, place: str, options: TaskFileOptions) -> Task:
    """Return the task in a line of a file. Raises NotFoundError, EventError."""
    from streams.errors import EventError, NotFoundError
    from streams.kafka.times import now_ms
    from streams.stages.tasks.lines import Reading, check_rows
    from streams.stages.tasks.rows import SEPARATED, rows

    name, colon, number = place.rpartition(":")
    file, line = (Path(name), int(number)) if colon and number.isdecimal() else (Path(place), None)
    row = next(((at, row) for at, row in rows(file, options.split) if line in (at, None)), None)
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
@click.option("--failed", is_flag=True, help="What scoring agents could not score: the only choice so far.")
@click.option("--since", metavar="TIME|AGE", default=None, help="What failed since then: 2026-01-31T12:00, 2h.")
@output_option
@click.pass_context
@pass_call
def rescore(call: AppContext, ctx: click.Context, failed: bool, since: str | None, output: Output) -> None:
    """Write scores that are missing, once their scorer is repaired.

    The responses are those of the dead letters `score_failed`, `no_judge` and `module_not_listed`. Their groups wait
    until their deadline; for those that have left there is `streamward tasks resubmit --unscored`. The exit code is 1
    if a score failed again. Use `replay run --scorer` to score whole groups again with another scorer.
    """
    from streams import output as show
    from streams.errors import SettingsError
    from streams.kafka.times import parse_time
    from streams.tools.missing_scores import rescore_failed

    if not failed:
        raise SettingsError("say what to score: --failed; `replay run --scorer` scores groups again that have left")
    since_ms = None if since is None else parse_time(since, "--since")
    found = rescore_failed(call.settings_to_write, since_ms=since_ms, actor=user_name())
    counts = {"rewards": found.rewards, "responses": len(found.whole)}
    show.record(counts | {"failed": len(found.errors), "too_late": found.too_late}, output)
    if found.too_late:
        way_out = "`streamward tasks resubmit --unscored` sends their tasks again"
        click.echo(f"The groups of {found.too_late} responses have left: {way_out}.", err=True)
    if found.errors:
        click.echo(f"Failed again, the last: {found.errors[-1]}", err=True)
        ctx.exit(1)
