"""The commands that submit tasks: submit, resubmit, generate."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, json_object, output_option, pass_call
from streams.cli.task_file import TaskFileOptions, check_tasks, read_tasks, task_file_options
from streams.errors import SettingsError, StreamwardError

if TYPE_CHECKING:
    from schemas.events import Purpose
    from streams.observability.trace_context import Context
    from streams.output import Output
    from streams.stages.tasks.submit import Submitted


OF_A_PERSON = ("subject", "sealed")
"""Fields of a task that no line has: a line names its `user`."""


@click.group()
def tasks() -> None:
    """Submit tasks from a file or a generator."""


@tasks.command("submit")
@click.argument("file", metavar="FILE|FOLDER|-", type=click.Path(path_type=Path, allow_dash=True))
@task_file_options
@output_option
@pass_call
def tasks_submit(call: AppContext, file: Path, reading: TaskFileOptions, output: Output) -> None:
    """Submit the tasks of a file or a data set's folder.

    A file is JSON lines, CSV or Parquet; - is stdin. A line is {"prompt": "...", "answer": "..."}, or a whole task as
    schemas/README.md describes it. The columns of a table are a task's fields; --map translates other column names.
    Options such as --group-size are defaults for lines that do not set them.

    Every line is checked first, and nothing is sent if one is bad. Submitting the same lines again adds nothing. Tasks
    join the trace in the environment variable TRACEPARENT, except where a line has its own.
    """
    from streams.stages.agents.registered_agents import agent_lookup
    from streams.stages.tasks.submit import submit

    checked = read_tasks(call.settings, file, reading, agents=agent_lookup(call.settings))
    check_tasks(call.settings, checked.tasks)
    _show_submitted(
        call,
        submit(call.settings_to_write, checked.tasks, under=_trace()),
        {"repeated": checked.repeated, "bad": len(checked.problems)},
        output,
    )


@tasks.command("resubmit")
@click.option("--unscored", is_flag=True, help="Tasks whose group was dropped for missing scores.")
@click.option("--unanswered", is_flag=True, help="Tasks whose group was dropped for missing answers.")
@click.option("--since", default=None, metavar="TIME|AGE", help="Only tasks lost since then: 2026-01-31T12:00, 2h.")
@click.option("--policy", default=None, metavar="NAME", help="Policy of the tasks.  [default: policy.name]")
@output_option
@pass_call
def tasks_resubmit(
    call: AppContext, unscored: bool, unanswered: bool, since: str | None, policy: str | None, output: Output
) -> None:
    """Submit lost train tasks again.

    Tasks are lost if their group was dropped untrained. The new tasks have new ids, and the lost task's id in their
    metadata as resubmitted_from. A deadline is moved by the same distance. Repeating the command adds only tasks that
    were lost again.
    """
    from streams.kafka.times import now_ms, parse_time
    from streams.stages.tasks.resubmit import Loss, Wanted, resubmit

    losses: set[Loss] = set()
    if unscored:
        losses.add("unscored")
    if unanswered:
        losses.add("unanswered")
    if not losses:
        raise SettingsError("name the loss: --unscored, --unanswered, or both")
    since_ms = None if since is None else parse_time(since, "--since")
    request = Wanted(policy or call.settings.policy.name, losses, since_ms)
    _show_submitted(call, resubmit(call.settings_to_write, request, now_ms=now_ms(), under=_trace()), {}, output)


@tasks.command("generate")
@click.argument("family", metavar="[sums|reasoning-gym:NAME|ENVIRONMENT]", required=False)
@click.option("--list", "list_families", is_flag=True, help="Print every family with its options and their defaults.")
@click.option("--count", type=click.IntRange(min=1), default=100, show_default=True, help="Number of tasks.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same tasks.")
@click.option(
    "--purpose",
    type=click.Choice(["train", "serve", "eval"]),
    default="train",
    show_default=True,
    help="Purpose of the tasks; eval samples held-out questions greedily, once each.",
)
@click.option("--policy", default=None, metavar="NAME", help="Policy that answers.  [default: policy.name]")
@click.option(
    "--group-size", type=click.IntRange(min=1), default=8, show_default=True, help="Responses per task; 1 for eval."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Maximum tokens of an answer.  [default: the family's]",
)
@click.option("--options", default="{}", metavar="JSON", help='Settings of the family, e.g. {"terms": 3}.')
@click.option("--submit", is_flag=True, help="Submit the tasks instead of printing them.")
@output_option
@pass_call
def tasks_generate(
    call: AppContext,
    family: str | None,
    list_families: bool,
    count: int,
    seed: int,
    purpose: Purpose,
    policy: str | None,
    group_size: int,
    max_tokens: int | None,
    options: str,
    submit: bool,
    output: Output,
) -> None:
    """Generate tasks of a family, and print or submit them.

    They are printed as `tasks submit` reads them. The same arguments give the same tasks with the same ids, so
    submitting them again adds nothing.
    """
    from streams import output as show
    from streams.kafka.times import now_ms
    from streams.stages.tasks import generators, submit as stage

    if list_families:
        _list_families(output)
        return
    if family is None:
        raise click.UsageError("name a family; `streamward tasks generate --list` shows them")
    spec = generators.TaskSpec(
        family=family,
        count=count,
        seed=seed,
        purpose=purpose,
        policy=policy or call.settings.policy.name,
        group_size=group_size,
        options=json_object(options, "--options"),
        max_tokens=max_tokens,
    )
    generated = generators.generate(spec, now_ms=now_ms())
    if submit:
        _show_submitted(call, stage.submit(call.settings_to_write, generated, under=_trace()), {}, output)
    elif output == "jsonl":
        for task in generated:
            line = {field.name: getattr(task, field.name) for field in fields(task) if field.name not in OF_A_PERSON}
            print(show.json_line(line), flush=True)
    else:
        columns = [
            show.Column("task", lambda task: task.task_id[:8]),
            show.Column("purpose", lambda task: task.purpose),
            show.Column("sources", lambda task: [source.name for source in task.reward_sources]),
            show.Column("asks", lambda task: task.messages[-1].content),
        ]
        show.rows(generated, columns, output)


def _list_families(output: Output) -> None:
    from streams import output as show
    from streams.stages.tasks import generators

    columns = [
        show.Column("family", "family"),
        show.Column("options", lambda row: ", ".join(f"{key}={value}" for key, value in row["options"].items())),
    ]
    families = generators.families()
    show.rows([{"family": name, "options": options} for name, options in families.items()], columns, output)
    if not any(name.startswith(generators.GYM) for name in families):
        click.echo("reasoning-gym is not installed; `make setup-gym` adds its families.", err=True)


def _show_submitted(call: AppContext, submitted: Submitted, counts: dict[str, int], output: Output) -> None:
    """Print the counts of tasks; as JSON lines each task with its id, and the counts on stderr.

    Warns on stderr of tasks that no running agent will answer.
    """
    from streams import output as show
    from streams.tools.unreachable_tasks import unreached

    counts = {"sent": len(submitted.sent), "known": len(submitted.known), **counts}
    if output == "table":
        show.record(counts, output)
    else:
        for state, tasks in (("sent", submitted.sent), ("known", submitted.known)):
            for task in tasks:
                print(show.json_line({"task_id": task.task_id, "state": state, "source": task.metadata.get("source")}))
        click.echo(", ".join(f"{count} {name}" for name, count in counts.items()), err=True)
    try:
        warnings = unreached(call.settings, [*submitted.sent, *submitted.known])
    except StreamwardError as exc:  # the tasks are sent; the principal may be allowed to write tasks alone
        warnings = [f"Could not check whether agents will answer them: {exc}"]
    for warning in warnings:
        click.echo(warning, err=True)


def _trace() -> Context | None:
    """Return the trace context in TRACEPARENT."""
    from streams.observability import trace_context

    return trace_context.parse(os.environ.get("TRACEPARENT"))
