"""Tasks from a file: the options, and reading the file with them.

    FILE, --map --scorer --group-size … ──► rows ──► checked tasks, or one message for each kind of mistake

Shared by `tasks submit` and `up`; `scoring try` reads one task with the first of them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.errors import EventError

if TYPE_CHECKING:
    from schemas.events import Task
    from streams.settings.model import Settings
    from streams.stages.tasks.line_task import AgentLookup
    from streams.stages.tasks.lines import Checked

map_option = click.option(
    "--map",
    "names",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Read a task's field from this column, or from a path into it, e.g. prompt=question, "
    "answer=reward_model.ground_truth, metadata.topic=subject. May be repeated. Other columns that are not fields of a "
    "task are then ignored.",
)
split_option = click.option("--split", default=None, metavar="NAME", help="Split to read from a data set's folder.")
OPTIONS = (
    map_option,
    click.option("--skip-bad", is_flag=True, help="Skip lines that cannot be used."),
    split_option,
    click.option(
        "--epochs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of times to submit each task.",
    ),
    click.option("--policy", default=None, metavar="NAME", help="Policy that answers.  [default: policy.name]"),
    click.option(
        "--purpose", type=click.Choice(["train", "serve", "eval"]), help="Purpose of the tasks.  [default: train]"
    ),
    click.option("--group-size", type=click.IntRange(min=1), help="Responses per task.  [default: 8]"),
    click.option("--system", default=None, metavar="TEXT", help="System message before each prompt."),
    click.option(
        "--prompt",
        "prompt_version",
        default=None,
        metavar="NAME[@ALIAS]",
        help="Prompt of the log before each task's messages; NAME alone is NAME@production.",
    ),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of a response.  [default: 256]"),
    click.option(
        "--scorer",
        "scorers",
        multiple=True,
        metavar="NAME[=JSON]",
        help="Scorer of the responses, e.g. exact, or module:function. May be repeated; the rewards are added.  "
        "[default: exact, for tasks with an answer]",
    ),
)


@dataclass(frozen=True, slots=True)
class TaskFileOptions:
    """How to read tasks from a file. None: as each line says, else the default of a task."""

    names: tuple[str, ...] = ()
    skip_bad: bool = False
    split: str | None = None
    epochs: int = 1
    policy: str | None = None
    purpose: str | None = None
    group_size: int | None = None
    system: str | None = None
    prompt_version: str | None = None
    max_tokens: int | None = None
    scorers: tuple[str, ...] = ()

    def defaults(self, settings: Settings) -> dict[str, Any]:
        """Return the fields for lines that do not have them. Raises SettingsError for an unknown scorer."""
        from streams.scorers import named_sources

        sources = [{"name": source.name, "settings": source.settings} for source in named_sources(self.scorers)]
        values = {
            "policy": self.policy or settings.policy.name,
            "purpose": self.purpose,
            "group_size": self.group_size,
            "system": self.system,
            "prompt_version": self.prompt_version,
            "sampling.max_tokens": self.max_tokens,
            "reward_sources": sources or None,
        }
        return {path: value for path, value in values.items() if value is not None}

    def fields_of_columns(self) -> dict[str, str]:
        """Return the file's column for each field that --map names. Raises SettingsError."""
        from streams.stages.tasks.mapped_row import columns_by_field

        return columns_by_field(self.names)


def task_file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as one argument, `reading`."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        reading = {field.name: options.pop(field.name) for field in fields(TaskFileOptions)}
        return command(*args, reading=TaskFileOptions(**reading), **options)

    for option in reversed(OPTIONS):
        run = option(run)
    return run


def read_tasks(
    settings: Settings,
    file: Path,
    options: TaskFileOptions,
    *,
    agent: str | None = None,
    agents: AgentLookup = lambda _: None,
) -> Checked:
    """Return the tasks of a file, `-` for stdin, in every epoch; print problems on stderr.

    `agent` is the agent of lines that name none; `agents` finds those of the log.
    Raises EventError if a line is bad, unless `options` skip bad lines, or if no task is left;
    NotFoundError if there is no such file.
    """
    from schemas.faults import names_in_quotes
    from streams.arrow import file_rows
    from streams.kafka.times import now_ms
    from streams.stages.tasks import lines
    from streams.stages.tasks.line_steps import LineSteps, log_now
    from streams.stages.tasks.line_task import Reading

    reading = Reading(
        now_ms=now_ms(),
        topic_settings=settings.topics,
        min_group=settings.advantages.min_group,
        defaults=options.defaults(settings) | ({} if agent is None else {"agent": agent}),
        names=options.fields_of_columns(),
        agents=agents,
        steps=LineSteps(log_now(settings)),
    )
    stdin = str(file) == "-"
    entries = file_rows.json_lines(click.get_binary_stream("stdin")) if stdin else file_rows.rows(file, options.split)
    name = "stdin" if stdin else file.name
    checked = lines.check_rows(entries, name, reading)
    for message in lines.by_kind(checked.problems):
        click.echo(message, err=True)
    if checked.unused:
        click.echo(f"not used: {names_in_quotes(checked.unused)} (--map metadata.NAME=COLUMN keeps one)", err=True)
    for note in checked.notes:
        click.echo(f"{name}: {note}", err=True)
    if checked.problems and not options.skip_bad:
        bad, good = len(checked.problems), len(checked.tasks)
        total = bad + good + checked.repeated
        way_out = f", or submit only the {good} good ones with --skip-bad" if good else ""
        raise EventError(f"nothing was submitted: {bad} of {total} lines cannot be used. Correct them{way_out}")
    if not checked.tasks:
        raise EventError(f"nothing was submitted: there is no task in {name}")
    return replace(checked, tasks=list(lines.epochs(checked.tasks, options.epochs)))


def unanswerable(settings: Settings, tasks: Iterable[Task]) -> str | None:
    """Return how many prompts model.base cannot answer, and the first of them with the reason; None if it can all."""
    from streams.engines.prompt_check import unanswerable_prompts

    refused = list(unanswerable_prompts(settings, tasks))
    if not refused:
        return None
    task, reason = refused[0]
    count = "1 prompt" if len(refused) == 1 else f"{len(refused)} prompts"
    return f"{count} cannot be answered by model.base {settings.model.base}; {task.metadata.get('source')}: {reason}"


def too_few_for_a_step(settings: Settings, tasks: Iterable[Task]) -> list[str]:
    """Return a sentence for each policy whose train tasks fill no training step."""
    counts = Counter(task.policy for task in tasks if task.purpose == "train")
    groups = settings.batches.groups
    return [
        f"{f'{count} train tasks of {policy} fill' if count > 1 else f'1 train task of {policy} fills'} no training "
        f"step of {groups} groups (batches.groups): add tasks or --epochs, or set it to {count}"
        for policy, count in counts.items()
        if count < groups
    ]


def check_tasks(settings: Settings, tasks: Sequence[Task]) -> None:
    """Print what may keep tasks that are submitted from teaching: prompts, scorers, and too few for a step.

    Raises EventError for a scorer that cannot be loaded though it is in reach.
    """
    from streams.scorers.scorer_check import doubtful_scorer, unusable_scorer

    sources = list(dict.fromkeys(source for task in tasks for source in task.reward_sources))
    if problem := unusable_scorer(settings.scoring, sources):
        raise EventError(f"nothing was submitted: {problem}")
    if problem := unanswerable(settings, tasks):
        click.echo(f"{problem} (unless the model of the agents is another)", err=True)
    if problem := doubtful_scorer(settings.scoring, sources):
        click.echo(f"{problem} (unless the scoring agents run elsewhere)", err=True)
    for problem in too_few_for_a_step(settings, tasks):
        click.echo(problem, err=True)
