"""The command that prints events as they are written: events tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.cli.topics import complete_topic

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def events() -> None:
    """Read events from the topics."""


@events.command("tail")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", default=None, help="End after N records.")
@click.option(
    "--from",
    "begin",
    metavar="start|end|-N|TIME",
    default=None,
    help="Begin at the first record, after the last one, with the last N of each topic, or at an ISO 8601 time (UTC). "
    "Default: end; with --until-end, start.",
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
    """Print events as they are written, until Ctrl-C.

    TOPIC is a label (tasks) or a full name. A record that cannot be decoded is shown with the reason; the exit code
    is then 1. Nothing is committed.
    """
    from itertools import islice

    from schemas.serde import Poison
    from streams import output as show
    from streams.cli import events_view
    from streams.kafka import times

    start = times.parse_begin(begin or ("start" if until_end else "end"))
    shapes = times.named(call.settings, names)
    table = events_view.EventLines(many_topics=len(shapes) > 1) if output == "table" else None
    poisoned = False
    records = times.tail(call.settings, shapes, start, until_end=until_end, each_poll=show.check_reader)
    for record in islice(records, count):
        if table is not None:
            table.add(record)
        else:
            print(events_view.json_of(record), flush=True)
        poisoned |= isinstance(record.event, Poison)
    ctx.exit(1 if poisoned else 0)
