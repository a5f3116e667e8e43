"""The commands that put tasks into the log: submit and generate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.errors import EventError, NotFoundError, SettingsError

if TYPE_CHECKING:
    from schemas.events import Purpose
    from streams.observability.tracing.context import Context
    from streams.output import Output


@click.group()
def tasks() -> None:
    """Put tasks into the log."""


@tasks.command("submit")
@click.argument("file", metavar="FILE.jsonl|-", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--skip-bad", is_flag=True, help="Submit the good lines even if others are bad.")
@click.option("--policy", default=None, metavar="NAME", help="For lines without a policy.  [default: policy.name]")
@output_option
@pass_call
def tasks_submit(call: AppContext, file: Path, skip_bad: bool, policy: str | None, output: Output) -> None:
    """Submit the tasks in a file of JSON lines; - is stdin.

    A line is {"prompt": "...", "answer": "..."}, or a whole task as schemas/README.md describes it. Every line is
    checked first, and nothing is sent if one is bad. Submitting a file again adds nothing. Tasks join the trace in the
    environment variable TRACEPARENT, except where a line has its own.
    """
    from streams import output as show
    from streams.kafka.times import now_ms
    from streams.stages.tasks.lines import check_file
    from streams.stages.tasks.submit import submit

    checked = check_file(
        _lines(file),
        "stdin" if str(file) == "-" else file.name,
        policy=policy or call.settings.policy.name,
        now_ms=now_ms(),
        topic_settings=call.settings.topics,
    )
    for problem in checked.problems:
        click.echo(str(problem), err=True)
    if checked.problems and not skip_bad:
        bad, good = len(checked.problems), len(checked.tasks)
        all_lines = bad + good + checked.repeated
        way_out = f", or submit the {good} good ones with --skip-bad" if good else ""
        raise EventError(f"nothing was submitted: {bad} of {all_lines} lines cannot be used. Correct them{way_out}")
    sent, known = submit(call.settings, checked.tasks, under=_trace())
    show.record({"sent": sent, "known": known, "repeated": checked.repeated, "bad": len(checked.problems)}, output)


@tasks.command("generate")
@click.argument("family", metavar="sums|reasoning-gym:NAME")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="How many tasks.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same tasks.")
@click.option(
    "--purpose",
    type=click.Choice(["train", "serve", "eval"]),
    default="train",
    show_default=True,
    help="The tasks' purpose; eval asks held-out questions, greedily and once each.",
)
@click.option("--policy", default=None, metavar="NAME", help="The policy that answers.  [default: policy.name]")
@click.option(
    "--group-size", type=click.IntRange(min=1), default=8, show_default=True, help="Responses per task; 1 for eval."
)
@click.option("--options", default="{}", metavar="JSON", help='Settings of the family, e.g. {"terms": 3}.')
@click.option("--submit", is_flag=True, help="Send the tasks to the log instead of printing them.")
@output_option
@pass_call
def tasks_generate(
    call: AppContext,
    family: str,
    count: int,
    seed: int,
    purpose: Purpose,
    policy: str | None,
    group_size: int,
    options: str,
    submit: bool,
    output: Output,
) -> None:
    """Generate tasks of a family, and print or submit them.

    They are printed as `tasks submit` takes them. The same arguments give the same tasks with the same ids, so
    submitting them again adds nothing.
    """
    from streams import output as show
    from streams.kafka.times import now_ms
    from streams.stages.tasks import generators, submit as stage

    spec = generators.TaskSpec(
        family=family,
        count=count,
        seed=seed,
        purpose=purpose,
        policy=policy or call.settings.policy.name,
        group_size=group_size,
        options=_json_object(options, "--options"),
    )
    made = generators.generate(spec, now_ms=now_ms())
    if submit:
        sent, known = stage.submit(call.settings, made, under=_trace())
        show.record({"sent": sent, "known": known}, output)
    elif output == "jsonl":
        for task in made:
            print(show.json_line(task), flush=True)
    else:
        columns = [
            show.Column("task", lambda task: task.task_id[:8]),
            show.Column("purpose", lambda task: task.purpose),
            show.Column("sources", lambda task: [source.name for source in task.reward_sources]),
            show.Column("asks", lambda task: task.messages[-1].content),
        ]
        show.rows(made, columns, output)


def _lines(file: Path) -> Iterator[bytes]:
    if str(file) == "-":
        yield from click.get_binary_stream("stdin")
        return
    try:
        with file.open("rb") as lines:
            yield from lines
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}; give a file of JSON lines, or - for stdin") from exc


def _trace() -> Context | None:
    """Return the trace that this command is part of, from TRACEPARENT."""
    from streams.observability.tracing import context

    return context.parse(os.environ.get("TRACEPARENT"))


def _json_object(text: str, option: str) -> dict[str, Any]:
    import json

    try:
        found = json.loads(text)
    except ValueError as exc:
        raise SettingsError(f"{option} {text}: not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise SettingsError(f'{option} {text}: expected a JSON object, e.g. {{"terms": 3}}')
    return found
