"""`streamward up`: the loop of streams/demo on tasks of one's own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, pass_call
from streams.cli.task_file import TaskFileOptions, read_tasks, task_file_options

if TYPE_CHECKING:
    from streams.settings.model import Settings


@click.command()
@click.option("--tasks", "file", type=click.Path(path_type=Path), metavar="FILE|FOLDER", help="The tasks to train on.")
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Questions never trained on; every second version is asked them, as the tasks are.",
)
@click.option(
    "--environment",
    metavar="NAME|REFERENCE",
    help="Train on episodes in this environment, as `environments try` takes it, instead of tasks from a file.",
)
@click.option("--settings", "in_json", default="{}", metavar="JSON", help="Settings of the environment.")
@click.option("--episodes", type=click.IntRange(min=1), default=1000, show_default=True, help="Seeds to train on.")
@click.option(
    "--max-turns", type=click.IntRange(1, 1024), help="Most actions of an episode.  [default: its own, else 8]"
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
    environment: str | None,
    in_json: str,
    episodes: int,
    max_turns: int | None,
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
    loaded is an error before anything is started. Where tasks are episodes in an environment, the server for agents and
    the built-in agent answer them.

    Ctrl-C stops everything cleanly; run the same command again to resume. Settings that you leave open are as one
    machine learns best, and ./streamward.toml gets them, unless that is a file of your own.
    """
    from rich.console import Console

    from streams.demo import run as loop
    from streams.demo.up import UpPlan
    from streams.errors import SettingsError
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
        environments=() if environment is None or ":" not in environment else (environment,),
    )
    settings = plan.settings()
    if environment is not None:
        if file is not None or held_out is not None:
            raise SettingsError("--environment makes the tasks: leave out --tasks and --held-out")
        plan = replace(
            plan, **_episodes(settings, environment, in_json, count=episodes, max_turns=max_turns, reading=reading)
        )
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


def _episodes(
    settings: Settings, name: str, in_json: str, *, count: int, max_turns: int | None, reading: TaskFileOptions
) -> dict[str, Any]:
    """Return the tasks of a plan in an environment. Raises SettingsError if it cannot be opened."""
    from contextlib import closing

    from streams.environments.environment_pool import EnvironmentPool
    from streams.scorers import named_sources
    from streams.stages.tasks.episodes import EpisodeSpec, train_and_held_out

    spec = EpisodeSpec(
        name=name,
        settings=in_json,
        count=count * reading.epochs,
        policy=reading.policy or settings.policy.name,
        group_size=reading.group_size or 8,
        max_turns=max_turns,
        max_tokens=reading.max_tokens,
        reward_sources=named_sources(reading.scorers),
    )
    with closing(EnvironmentPool(settings.environments)) as pool:
        train, held_out = train_and_held_out(spec, pool.open)
    return {"train": train, "held_out": held_out}
