"""`streamward fork`: recorded moments become tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from streams.cli.runtime import AppContext, json_object, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output
    from streams.settings.model import Settings
    from streams.tools.forks.forked_task import ForkOrder

Mode = Literal["continue", "recheck", "prompt", "tool-result"]
VALUES = {"prompt": "NAME@VERSION", "tool-result": "FILE"}
"""What a mode needs, as its last word."""
SHOWN = 5
"""Maximum number of reasons that are printed."""


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] [NAME@VERSION|FILE]")
@click.option(
    "--turn", type=click.IntRange(min=0), default=None, metavar="N", help="Number of the call to repeat, from 0."
)
@click.option("--where", default=None, metavar="SQL", help="Every moment for which this SQL condition holds.")
@click.option(
    "--mode",
    type=click.Choice(["continue", "recheck", *VALUES]),
    default="continue",
    show_default=True,
    help="How the call is repeated.",
)
@click.option("--values", default="{}", metavar="JSON", help="The value of each variable of --mode prompt.")
@click.option("--version", type=click.IntRange(min=0), default=None, help="Version that answers.  [default: primary]")
@click.option("--group-size", type=click.IntRange(min=1), default=None, help="Answers to each.  [default: its task's]")
@click.option(
    "--scorer",
    "scorers",
    multiple=True,
    metavar="NAME[=JSON]",
    help="Score the answers with this instead of the task's scorers; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Print the tasks, and send none.")
@output_option
@pass_call
def fork(
    call: AppContext,
    /,
    words: tuple[str, ...],
    turn: int | None,
    where: str | None,
    mode: Mode,
    dry_run: bool,
    output: Output,
    **options: Any,
) -> None:
    """Fork recorded runs at a turn.

    RUN is the id of a run, an answer, a conversation or a task, or its beginning. The moment becomes a task: its prompt
    has the recorded tokens, and what is sampled after them is new. The view `moments` has the columns of --where.

    continue: sample on. recheck: ask the version that answered then, and learn nothing from it. prompt NAME@VERSION:
    the conversation after another prompt. tool-result FILE: with another result of the last tool. An environment is
    replayed to that turn first, and refused if it shows something else than the log.
    """
    from plugins.fork import forking
    from plugins.fork.find_moments import find_keys
    from streams import output as show
    from streams.errors import EventError, NotFoundError

    run, value = _words(words, mode)
    if (run is None or turn is None) and where is None:
        raise click.UsageError("name a run and --turn N, or give --where SQL")
    settings = call.settings_to_write
    order = _order(settings, mode, value, options)
    keys = find_keys(settings, run, turn, where)
    if not keys:
        raise NotFoundError("no recorded moment fits; `streamward query moments` lists them")
    forks = forking.make_forks(settings, keys, order)
    known = set[str]() if dry_run else {task.task_id for task in forking.send(settings, forks).known}
    state = "not sent" if dry_run else "sent"
    rows = [
        {
            "task_id": task.task_id,
            "of_run": point.trajectory_id,
            "turn": point.turn,
            "mode": point.mode,
            "tokens": len(point.token_ids),
            "recorded": point.recorded_tokens,
            "purpose": task.purpose,
            "state": "known" if task.task_id in known else state,
        }
        for task in forks.tasks
        if (point := task.fork) is not None
    ]
    show.rows(rows, show.columns("task_id, of_run, >turn, mode, >tokens, >recorded, purpose, state"), output)
    if forks.held_out:
        click.echo(f"{forks.held_out} ask what is held out, so nothing is learned from them.", err=True)
    for reason in forks.refused[:SHOWN]:
        click.echo(f"refused: {reason}", err=True)
    if len(forks.refused) > SHOWN:
        click.echo(f"and {len(forks.refused) - SHOWN} more", err=True)
    if forks.refused and not forks.tasks:
        raise EventError(f"none of {len(keys)} moments could be forked; nothing was sent")


def _words(words: tuple[str, ...], mode: str) -> tuple[str | None, str | None]:
    """Return the run, and what the mode needs. Raises UsageError."""
    value = words[-1] if words and mode in VALUES else None
    rest = words[:-1] if value is not None else words
    if mode in VALUES and value is None:
        raise click.UsageError(f"--mode {mode} needs {VALUES[mode]} after it")
    if len(rest) > 1:
        raise click.UsageError(f"expected one run, got {' '.join(rest)}; --where chooses several")
    return (rest[0] if rest else None), value


def _order(settings: Settings, mode: str, value: str | None, options: dict[str, Any]) -> ForkOrder:
    """Return how to fork. Raises NotFoundError, SettingsError, EventError."""
    from functools import partial

    from plugins.fork.forking import model_tokens
    from streams.scorers import named_sources
    from streams.stages.tasks.line_steps import LineSteps, log_now
    from streams.stages.tasks.prompted import named_prompt
    from streams.tools.forks.forked_task import ForkOrder

    prompt = result = None
    if mode == "prompt":
        values = json_object(options["values"], "--values")
        prompt = named_prompt(LineSteps(log_now(settings)), value or "", values, "")
    elif mode == "tool-result":
        result = _text(value or "")
    return ForkOrder(
        mode="tool_result" if mode == "tool-result" else mode,  # type: ignore[arg-type]
        version=options["version"],
        group_size=options["group_size"],
        scorers=named_sources(options["scorers"]),
        prompt=prompt,
        result=result,
        model=partial(model_tokens, settings),
    )


def _text(file: str) -> str:
    from streams.errors import NotFoundError

    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise NotFoundError(f"--mode tool-result {file}: it cannot be read: {exc}; name a text file") from exc
