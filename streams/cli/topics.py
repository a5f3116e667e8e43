"""The commands of topics: admin topics apply, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


def complete_topic(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the labels with this beginning, for shell completion."""
    from streams.kafka.topics import LABELS

    return [label for label in LABELS if label.startswith(incomplete)]


@click.group()
def topics() -> None:
    """Create and inspect the topics."""


@topics.command("apply")
@output_option
@pass_call
def topics_apply(call: AppContext, output: Output) -> None:
    """Create missing topics.

    An existing topic with a different number of partitions is an error, and is never changed.
    """
    from streams import output as show
    from streams.kafka import admin

    done = admin.apply_topics(call.settings_to_write)
    columns = [show.Column("topic", "topic"), show.Column("result", "result")]
    show.rows([{"topic": name, "result": result} for name, result in done.items()], columns, output)


@topics.command("list")
@output_option
@pass_call
def topics_list(call: AppContext, output: Output) -> None:
    """Print each topic with its event, key and number of records."""
    from streams import output as show
    from streams.kafka import admin
    from streams.kafka.topics import topics as shapes

    settings = call.settings
    expected = shapes(settings.topics)
    existing = admin.describe(settings)
    bounds = admin.offsets(settings, [label for label, topic in expected.items() if topic.name in existing])
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
        for label, topic in expected.items()
    ]
    columns = [
        *show.columns("label, name"),
        show.Column(
            "partitions", lambda row: "missing" if row["partitions"] is None else row["partitions"], right=True
        ),
        *show.columns(">records, event, key"),
    ]
    show.rows(data, columns, output)
    if any(row["partitions"] is None for row in data):
        click.echo("Some topics do not exist; create them with `streamward admin topics apply`.", err=True)


@topics.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@output_option
@pass_call
def topics_describe(call: AppContext, names: tuple[str, ...], output: Output) -> None:
    """Print partitions, offsets and configuration.

    TOPIC is a label (tasks) or a full name; default: all.
    """
    from streams import output as show
    from streams.kafka import admin, times
    from streams.kafka.topics import LABELS

    settings = call.settings
    shapes = times.named(settings, names or LABELS)
    bounds = admin.offsets(settings, [topic.label for topic in shapes])
    configs = admin.configs(settings, [topic.name for topic in shapes])
    columns = show.columns("topic, >partition, >first, >next, >records")
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
