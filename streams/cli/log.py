"""The commands that look at the log itself: topics, schemas, events.

    topics apply, list, describe     schemas list, check, register, serve     events tail

As thin as those in root.py, and as careful not to import anything before a command runs.

Not covered: what the events mean (streams/cli/tasks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call, until_stopped

if TYPE_CHECKING:
    from streams.output import Output


def _complete_topic(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from streams.kafka.topics import LABELS

    return [label for label in LABELS if label.startswith(incomplete)]


# --- topics -----------------------------------------------------------------------------------------------------------


@click.group()
def topics() -> None:
    """Create the topics, and look at them."""


@topics.command("apply")
@output_option
@pass_call
def topics_apply(call: AppContext, output: Output) -> None:
    """Create the topics that are missing.

    One that exists in another shape is an error, and never changed.
    """
    from streams import output as show
    from streams.kafka import admin

    done = admin.apply_topics(call.settings)
    columns = [show.Column("topic", "topic"), show.Column("result", "result")]
    show.rows([{"topic": name, "result": result} for name, result in done.items()], columns, output)


@topics.command("list")
@output_option
@pass_call
def topics_list(call: AppContext, output: Output) -> None:
    """Print each topic: its event, its key, how many records."""
    from streams import output as show
    from streams.kafka import admin
    from streams.kafka.topics import topics as shapes

    settings = call.settings
    wanted = shapes(settings.topics)
    existing = admin.describe(settings)
    bounds = admin.offsets(settings, [label for label, topic in wanted.items() if topic.name in existing])
    data = [
        {
            "label": label,
            "name": topic.name,
            "partitions": existing.get(topic.name),
            "records": sum(high - low for (name, _), (low, high) in bounds.items() if name == topic.name)
            if topic.name in existing
            else None,
            "event": topic.event.__name__,
            "key": topic.key or "as in the source",
        }
        for label, topic in wanted.items()
    ]
    columns = [
        show.Column("label", "label"),
        show.Column("name", "name"),
        show.Column(
            "partitions", lambda row: "missing" if row["partitions"] is None else row["partitions"], right=True
        ),
        show.Column("records", "records", right=True),
        show.Column("event", "event"),
        show.Column("key", "key"),
    ]
    show.rows(data, columns, output)
    if any(row["partitions"] is None for row in data):
        click.echo("Some topics do not exist; create them with `streamward topics apply`.", err=True)


@topics.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=_complete_topic)
@output_option
@pass_call
def topics_describe(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Print partitions, offsets and configuration.

    Of each TOPIC, by label (tasks) or full name; of all, if none is named.
    """
    from streams import output as show
    from streams.kafka import admin, times as tails
    from streams.kafka.topics import LABELS

    settings = call.settings
    shapes = tails.named(settings, names or LABELS)
    bounds = admin.offsets(settings, [topic.label for topic in shapes])
    configs = admin.configs(settings, [topic.name for topic in shapes])
    columns = [
        show.Column("topic", "topic"),
        show.Column("partition", "partition", right=True),
        show.Column("first", "first", right=True),
        show.Column("next", "next", right=True),
        show.Column("records", "records", right=True),
    ]
    for number, topic in enumerate(shapes):
        partitions = [
            {"partition": partition, "first": low, "next": high, "records": high - low}
            for (name, partition), (low, high) in bounds.items()
            if name == topic.name
        ]
        if output == "jsonl":
            print(show.json_line({"topic": topic.name, "config": configs[topic.name], "partitions": partitions}))
            continue
        if number:
            print()
        show.rows([{"topic": topic.name, **row} for row in partitions], columns, output)
        show.record(dict(sorted(configs[topic.name].items())), output)


# --- schemas ----------------------------------------------------------------------------------------------------------


@click.group()
def schemas() -> None:
    """Look at the Avro schemas, register and serve them."""


@schemas.command("list")
@output_option
def schemas_list(output: Output) -> None:
    """Print every schema that ever had an id."""
    from schemas.versions import files
    from streams import output as show

    data = [
        {"id": schema.id, "event": schema.event, "version": schema.version, "sha256": schema.sha256}
        for schema in files().schemas.values()
    ]
    columns = [
        show.Column("id", "id", right=True),
        show.Column("event", "event"),
        show.Column("version", "version", right=True),
        show.Column("sha256", lambda row: row["sha256"][:16]),
    ]
    show.rows(data, columns, output)


@schemas.command("check")
@click.pass_context
def schemas_check(ctx: click.Context) -> None:
    """Check the schema files against their lock.

    And every version of an event against every other: each must read what the other wrote. The exit code is 1 if
    something is wrong.
    """
    from schemas.versions import SchemaError, check, files

    try:
        registry = files()
        problems = list(check(registry))
    except SchemaError as exc:
        problems = [str(exc)]
    for problem in problems:
        click.echo(problem)
    if problems:
        ctx.exit(1)
    click.echo(f"{len(registry.schemas)} schemas are as locked, and every version reads every other.", err=True)


@schemas.command("register")
@click.option("--dry-run", is_flag=True, help="Check everything, and change nothing.")
@output_option
@pass_call
def schemas_register(call: AppContext, dry_run: bool, output: Output) -> None:
    """Put every schema version into the Schema Registry.

    Into that of schemas.registry_url, under <topic>-value, each subject FULL_TRANSITIVE. All versions of all subjects
    are checked first: if one cannot read another, nothing is changed and the exit code is 4. What is there already
    stays, so it may be run again.
    """
    from streams import output as show
    from streams.kafka.registry import register as schema_register

    done, other_level = schema_register.register(call.settings, dry_run=dry_run)
    columns = [
        show.Column("subject", "subject"),
        show.Column("version", "version", right=True),
        show.Column("id", lambda row: "" if row["id"] is None else row["id"], right=True),
        show.Column("result", "result"),
    ]
    show.rows([one._asdict() for one in done], columns, output)
    for subject, before in other_level.items():
        change = "would be set to" if dry_run else "is now"
        was = f" (was {before})" if before else ""
        click.echo(f"compatibility of {subject} {change} {schema_register.LEVEL}{was}", err=True)


@schemas.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8081, show_default=True, help="0 takes any free one.")
@output_option
@pass_call
def schemas_serve(call: AppContext, host: str, port: int, output: Output) -> None:
    """Serve the schemas as a Schema Registry, read only.

    Speaks Confluent's API until SIGTERM or Ctrl-C. Any Confluent-compatible consumer can then read the topics; the
    ids are those of schemas/lock.json.
    """
    from streams import output as show
    from streams.kafka.registry import server as schema_server

    with until_stopped() as stop, schema_server.serve(call.settings, host=host, port=port) as url:
        show.record({"url": url}, output)
        stop.wait()


# --- events -----------------------------------------------------------------------------------------------------------


@click.group()
def events() -> None:
    """Look at what lies in the topics."""


@events.command("tail")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=_complete_topic)
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", default=None, help="End after N records.")
@click.option(
    "--from",
    "begin",
    metavar="start|end|-N|TIME",
    default=None,
    help="Begin at the first record, behind the last one, with the last N of each topic, or at an ISO 8601 time (UTC). "
    "Otherwise at the end, or at the start with --until-end.",
)
@click.option("--until-end", is_flag=True, help="End where the topics end now, instead of waiting for more.")
@output_option
@click.pass_context
@pass_call
def events_tail(
    call: AppContext,
    ctx: click.Context,
    names: tuple[str, ...],
    count: int | None,
    begin: str | None,
    until_end: bool,
    output: Output,
) -> None:
    """Print events as they come, until Ctrl-C.

    Of each TOPIC, by label (tasks) or full name. A record that cannot be decoded is shown with its reason, and
    makes the exit code 1. Nothing is committed: looking changes nothing.
    """
    from itertools import islice

    from schemas.serde import Poison
    from streams.cli import events_view
    from streams.kafka import times as tails

    start = tails.parse_begin(begin or ("start" if until_end else "end"))
    shapes = tails.named(call.settings, names)
    table = events_view.EventLines(several=len(shapes) > 1) if output == "table" else None
    poisoned = False
    for seen in islice(tails.tail(call.settings, shapes, start, until_end=until_end), count):
        if table is not None:
            table.add(seen)
        else:
            print(events_view.json_of(seen), flush=True)
        poisoned |= isinstance(seen.event, Poison)
    ctx.exit(1 if poisoned else 0)
