"""How a file becomes tasks: the options for it, and reading it with them.

    FILE, --map --scorer --group-size … ──► rows ──► checked tasks, or one message for each kind of mistake

Shared by `tasks submit` and `up`; `scoring try` reads one task with the first of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.errors import EventError, SettingsError

if TYPE_CHECKING:
    from streams.settings.model import Settings
    from streams.stages.tasks.lines import Checked

map_option = click.option(
    "--map",
    "names",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Take a task's field from this column, e.g. prompt=question, metadata.topic=subject. May be repeated. "
    "Columns that are neither named nor a task's field are then left out.",
)
split_option = click.option("--split", default=None, metavar="NAME", help="The split of a data set's folder.")
OPTIONS = (
    map_option,
    click.option("--skip-bad", is_flag=True, help="Take the good lines even if others are bad."),
    split_option,
    click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Ask everything N times."),
    click.option("--policy", default=None, metavar="NAME", help="The policy that answers.  [default: policy.name]"),
    click.option(
        "--purpose", type=click.Choice(["train", "serve", "eval"]), help="The tasks' purpose.  [default: train]"
    ),
    click.option("--group-size", type=click.IntRange(min=1), help="Responses per task.  [default: 8]"),
    click.option("--system", default=None, metavar="TEXT", help="The system message before each prompt."),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens in one response.  [default: 256]"),
    click.option(
        "--scorer",
        "scorers",
        multiple=True,
        metavar="NAME[=JSON]",
        help="Who scores the responses, e.g. exact, or module:function. May be repeated; the rewards are added.  "
        "[default: exact, where there is an answer]",
    ),
)


@dataclass(frozen=True, slots=True)
class TaskFileOptions:
    """How a file becomes tasks. What is None is as each line says, or as a task's default."""

    names: tuple[str, ...] = ()
    skip_bad: bool = False
    split: str | None = None
    epochs: int = 1
    policy: str | None = None
    purpose: str | None = None
    group_size: int | None = None
    system: str | None = None
    max_tokens: int | None = None
    scorers: tuple[str, ...] = ()

    def defaults(self, settings: Settings) -> dict[str, Any]:
        """Return the fields for lines that do not have them. Raises SettingsError for an unknown scorer."""
        from streams.scorers import named_sources

        sources = [{"name": source.name, "settings": source.settings} for source in named_sources(self.scorers)]
        given = {
            "policy": self.policy or settings.policy.name,
            "purpose": self.purpose,
            "group_size": self.group_size,
            "system": self.system,
            "sampling.max_tokens": self.max_tokens,
            "reward_sources": sources or None,
        }
        return {path: value for path, value in given.items() if value is not None}

    def fields_of_columns(self) -> dict[str, str]:
        """Return what a file calls each field that --map names. Raises SettingsError."""
        from streams.scorers.verdict import nearest
        from streams.stages.tasks.lines import TaskLine

        named: dict[str, str] = {}
        for text in self.names:
            path, equals, column = text.partition("=")
            field = path.partition(".")[0]
            if not (path and equals and column):
                raise SettingsError(f"--map {text}: expected FIELD=COLUMN, e.g. --map prompt=question")
            if field not in TaskLine.model_fields:
                raise SettingsError(
                    f"--map {text}: a task has no field {field}; {nearest(field, TaskLine.model_fields)}"
                )
            if path in named:
                raise SettingsError(f"--map {text}: {path} is already taken from {named[path]}")
            named[path] = column
        return named


def task_file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as one argument, `reading`."""

    @functools.wraps(command)
    def collected(*args: Any, **given: Any) -> Any:
        own = {field.name: given.pop(field.name) for field in fields(TaskFileOptions)}
        return command(*args, reading=TaskFileOptions(**own), **given)

    for option in reversed(OPTIONS):
        collected = option(collected)
    return collected


def read_tasks(settings: Settings, file: Path, options: TaskFileOptions, *, agent: str | None = None) -> Checked:
    """Return the tasks of a file, `-` for stdin, in every epoch; print what is wrong with it.

    `agent` works on the tasks of lines that name none.
    Raises EventError if a line is bad, unless those are to be skipped, NotFoundError without such a file.
    """
    from streams.kafka.times import now_ms
    from streams.stages.tasks import lines, rows

    reading = lines.Reading(
        now_ms=now_ms(),
        topic_settings=settings.topics,
        defaults=options.defaults(settings) | ({} if agent is None else {"agent": agent}),
        names=options.fields_of_columns(),
    )
    stdin = str(file) == "-"
    found = rows.json_lines(click.get_binary_stream("stdin")) if stdin else rows.rows(file, options.split)
    checked = lines.check_rows(found, "stdin" if stdin else file.name, reading)
    for message in lines.by_kind(checked.problems):
        click.echo(message, err=True)
    if checked.unused:
        click.echo(f"not used: {', '.join(checked.unused)} (--map metadata.NAME=COLUMN keeps one)", err=True)
    if checked.problems and not options.skip_bad:
        bad, good = len(checked.problems), len(checked.tasks)
        all_lines = bad + good + checked.repeated
        way_out = f", or take the {good} good ones with --skip-bad" if good else ""
        raise EventError(f"nothing was submitted: {bad} of {all_lines} lines cannot be used. Correct them{way_out}")
    return replace(checked, tasks=list(lines.epochs(checked.tasks, options.epochs)))
