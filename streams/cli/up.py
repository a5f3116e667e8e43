"""`streamward up`: the loop of streams/demo on a user's tasks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams import output as show
from streams.cli.runtime import AppContext, pass_call
from streams.cli.task_file import TaskFileOptions, read_tasks, task_file_options, unanswerable
from streams.errors import EventError, SettingsError, StreamwardError

if TYPE_CHECKING:
    from schemas.events import Task
    from streams.demo.up_plan import UpPlan
    from streams.settings.model import Settings


@click.command()
@click.option("--tasks", "file", type=click.Path(path_type=Path), metavar="FILE|FOLDER", help="Tasks to train on.")
@click.option(
    "--held-out",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Held-out questions; every second version answers each once. Read as --tasks is.",
)
@click.option(
    "--environment",
    metavar="NAME|REFERENCE",
    help="Train on episodes in this environment, named as for `agents environments try`, instead of tasks from a file.",
)
@click.option("--settings", "in_json", default="{}", metavar="JSON", help="Settings of the environment.")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of seeds to train on."
)
@click.option(
    "--max-turns",
    type=click.IntRange(1, 1024),
    help="Maximum of actions in an episode.  [default: the environment's, else 8]",
)
@task_file_options
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Stop after this many adapter versions.",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this many minutes.  [default: no limit]"
)
@click.option("--model", metavar="NAME", help="A known model, a hub id or a folder.  [default: model.base]")
@click.option("--fresh", is_flag=True, help="Start over: delete the log, the adapters and the checkpoints.")
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
    fresh: bool,
    output: str,
    **of_plan: Any,
) -> None:
    """Run the whole loop on your own tasks.

    Starts the stream worker, a scoring agent, a policy agent and the trainer, on the embedded Kafka node or on the
    Kafka in kafka.bootstrap; submits the tasks, read as `tasks submit` does; shows the state of every group; and ends
    when all tasks are done. Without --tasks it serves tasks from other producers until interrupted. A scorer that
    cannot be loaded is an error before anything starts. Tasks that are episodes in an environment are answered by the
    server for agents and the built-in agent.

    Ctrl-C stops everything cleanly; run the same command again to resume. Settings that you do not set get values for
    one machine, and are written to ./streamward.toml, unless that is your own file.
    """
    from streams.demo import loop_run as loop
    from streams.demo.up_plan import UpPlan

    policy = () if reading.policy is None else (f"policy.name={reading.policy}",)
    scorers = (text.partition("=")[0].partition(":") for text in reading.scorers)
    plan = UpPlan(
        **of_plan,
        config=call.config,
        overrides=(*call.overrides, *policy),
        modules=tuple(dict.fromkeys(module for module, colon, _ in scorers if colon)),
        environments=() if environment is None or ":" not in environment else (environment,),
    )
    settings = plan.settings()
    if environment is not None:
        if file is not None or held_out is not None:
            raise SettingsError("--environment makes the tasks: leave out --tasks and --held-out")
        tasks = _episodes(settings, environment, in_json, count=episodes, max_turns=max_turns, reading=reading)
        plan = replace(plan, **tasks)
    if file is not None:
        plan = replace(plan, train=_read(settings, file, reading))
    if held_out is not None:
        plan = replace(
            plan, held_out=_read(settings, held_out, replace(reading, epochs=1, purpose="eval", group_size=1))
        )
    _check_scorers(settings, plan, reading)
    _check_prompts(settings, plan, reading)
    _check_held_out(settings, plan)
    if fresh:
        plan.delete_all()
    result = loop.run(plan, show.console(sys.stderr if output == "json" else None))
    if output == "json":
        sys.stdout.write(json.dumps(result) + "\n")
    if result["failure"] is not None:
        raise StreamwardError(result["failure"])


def _read(settings: Settings, file: Path, reading: TaskFileOptions) -> tuple[Task, ...]:
    """Return the tasks of a file, and say what became of its rows. Raises as `read_tasks`."""
    from streams.kafka.subject_keys import use_keys

    use_keys(settings)  # a line may name a person
    checked = read_tasks(settings, file, reading)
    click.echo(f"{file}: {checked.rows}", err=True)
    return tuple(checked.tasks)


def _check_scorers(settings: Settings, plan: UpPlan, reading: TaskFileOptions) -> None:
    """Load the scorers of all tasks. Raises SettingsError if one cannot be loaded."""
    from streams.scorers import named_sources
    from streams.stages.scoring.trial import load_scorers

    sources = list(named_sources(reading.scorers))
    for task in (*(plan.train or ()), *plan.held_out):
        sources += task.reward_sources
    try:
        load_scorers(settings.scoring, sources)
    except SettingsError as exc:
        raise SettingsError(f"nothing was started: {exc}") from exc


def _check_prompts(settings: Settings, plan: UpPlan, reading: TaskFileOptions) -> None:
    """Raise SettingsError for prompts that the model cannot answer."""
    if problem := unanswerable(settings, (*(plan.train or ()), *plan.held_out)):
        left_out = "them" if reading.system is None else "them or --system"
        raise SettingsError(f"{problem}. Correct them, leave {left_out} out, or take another --model")


def _check_held_out(settings: Settings, plan: UpPlan) -> None:
    """Raise RefusedError if a task must not be trained on: the trainer would refuse its batch."""
    from streams.rows.row_texts import row_of_task
    from streams.rows.training_gate import AllHeldOut, TrainingUse

    suite = plan.suite()
    if suite is None or plan.train is None:
        return
    train = (
        row_of_task(task, f"task {number}") for number, task in enumerate(plan.train, 1) if task.purpose == "train"
    )
    use = TrainingUse("nothing was started", "Leave these tasks out, or the questions that they give away")
    AllHeldOut.of_suites(settings, [suite]).check(train, use)


def _episodes(
    settings: Settings, name: str, in_json: str, *, count: int, max_turns: int | None, reading: TaskFileOptions
) -> dict[str, Any]:
    """Return the episodes of an environment as the tasks of a plan. Raises SettingsError if it cannot be opened, or two
    episodes of its first seed differ."""
    from streams.scorers import named_sources
    from streams.stages.tasks.episodes import EpisodeSpec, episode_player
    from streams.stages.tasks.task_problems import group_problem

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
    if problem := group_problem(spec.group_size):
        raise SettingsError(f"--environment {name}: {problem}")
    try:
        made = episode_player().tasks(settings, spec)
    except EventError as exc:
        raise SettingsError(f"--environment {name}: {exc}; try it with {episode_player().trial}") from exc
    return {"train": made.train, "held_out": made.held_out}
