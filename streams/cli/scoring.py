"""The commands about scorers beside the agent: scoring try.

The agent itself is started in root.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call

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
@click.option("--text", required=True, metavar="TEXT", help="The response to be scored.")
@output_option
@pass_call
def scoring_try(call: AppContext, name: str, place: str, text: str, output: Output) -> None:
    """Score a text with a scorer, without a broker, and print what it says.

    It runs as in the agent: your own function MODULE:FUNCTION in a process with the time limit scoring.timeout_s. JSON
    are its settings; without, those that the task gives it. What the scorer prints goes to stderr.
    """
    from streams import output as show
    from streams.errors import EventError
    from streams.stages.scoring import trial

    task = _task(call, place)
    source = trial.source_of(name, task)
    found = trial.try_scorer(call.settings.scoring, task, source, text)
    if found.error is not None:
        raise EventError(f"{source.name} gave no score: {found.error}")
    said = {"value": found.value, "components": found.components, "rationale": found.rationale}
    show.record(said | {"version": found.version, "latency_ms": round(found.latency_ms, 1)}, output)


def _task(call: AppContext, place: str) -> Task:
    """Return the task in a line of a file. Raises NotFoundError, EventError."""
    from streams.errors import EventError, NotFoundError
    from streams.kafka.times import now_ms
    from streams.stages.tasks.lines import Reading, check_rows
    from streams.stages.tasks.rows import rows

    name, colon, number = place.rpartition(":")
    file, line = (Path(name), int(number)) if colon and number.isdigit() else (Path(place), None)
    row = next(((at, row) for at, row in rows(file) if line in (at, None)), None)
    if row is None:
        raise NotFoundError(f"{file} has no task in line {line or 1}")
    settings = call.settings
    defaults = {"policy": settings.policy.name}
    reading = Reading(now_ms=now_ms(), topic_settings=settings.topics, defaults=defaults)
    checked = check_rows([row], str(file), reading)
    if checked.problems:
        raise EventError(str(checked.problems[0]))
    return checked.tasks[0]
