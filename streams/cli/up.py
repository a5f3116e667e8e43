"""`streamward up`: the loop of streams/loop on tasks of one's own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import click

from streams.cli.runtime import AppContext, pass_call
from streams.cli.task_file import TaskFileOptions, read_tasks, task_file_options


@click.command()
@click.option("--tasks", "file", type=click.Path(path_type=Path), metavar="FILE|FOLDER", help="The tasks to train on.")
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Questions never trained on; every second version is asked them, as the tasks are.",
)
@task_file_options
@click.option("--steps", type=click.IntRange(min=1), help="Stop after this many adapter versions.")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this many minutes.  [default: no limit]"
)
@click.option("--model", metavar="NAME", help="A known model, a hub id or a folder.  [default: model.base]")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="json: end with one line on stdout."
)
@pass_call
def up(
    call: AppContext,
    /,
    file: Path | None,
    held_out: Path | None,
    reading: TaskFileOptions,
    steps: int | None,
    minutes: float | None,
    model: str | None,
    output: str,
) -> None:
    """Run the whole loop, on tasks of your own.

    Starts the stream worker, a scoring agent, a policy agent and the trainer, on the embedded Kafka node or on the
    Kafka in kafka.bootstrap; submits the tasks, read as `tasks submit` does; shows where every group is; and ends when
    all tasks are done. Without --tasks it works on what others submit, until it is stopped. A scorer that cannot be
    loaded is an error before anything is started.

    Ctrl-C stops everything cleanly; run the same command again to resume. Settings that you leave open are as one
    machine learns best, and ./streamward.toml gets them, unless that is a file of your own.
    """
    from rich.console import Console

    from streams.errors import SettingsError
    from streams.loop import run as loop
    from streams.loop.up import UpPlan
    from streams.scorers import named_sources
    from streams.stages.scoring.trial import load_scorers

    policy = () if reading.policy is None else (f"policy.name={reading.policy}",)
    scorers = (text.partition("=")[0].partition(":") for text in reading.scorers)
    plan = UpPlan(
        steps=steps,
        minutes=minutes,
        model=model,
        config=call.config,
        overrides=(*call.overrides, *policy),
        modules=tuple(dict.fromkeys(module for module, colon, _ in scorers if colon)),
    )
    settings = plan.settings()
    if file is not None:
        tasks = read_tasks(settings, file, reading).tasks
        if not tasks:
            raise SettingsError(f"--tasks {file}: there is no task in it")
        plan = replace(plan, train=tuple(tasks))
    if held_out is not None:
        asked = read_tasks(settings, held_out, replace(reading, epochs=1))
        plan = replace(plan, held_out=tuple(asked.tasks))
    asked_of = (*(plan.train or ()), *plan.held_out)
    sources = (*named_sources(reading.scorers), *(source for task in asked_of for source in task.reward_sources))
    load_scorers(settings.scoring, sources)
    result = loop.run(plan, Console(stderr=output == "json"))
    if output == "json":
        sys.stdout.write(json.dumps(result) + "\n")
