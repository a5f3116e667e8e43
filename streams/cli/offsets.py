"""The commands of committed offsets.

    admin offsets list ──► each group's lag, and records that retention deleted before they were read
    admin offsets skip ──► accept such a loss, once, by name

No command moves a group back: `streamward replay` reads a range again without any group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.kafka.offsets import Position
    from streams.output import Output


@click.group()
def offsets() -> None:
    """Inspect committed offsets and accept losses."""


@offsets.command("list")
@output_option
@pass_call
def offsets_list(call: AppContext, output: Output) -> None:
    """Print the lag of each group.

    For every partition with a commit: the commit, the first and the next offset, the lag in records, and whether
    retention has deleted unread records. A trainer's commit is a hint: its checkpoint counts.
    """
    from streams import output as show
    from streams.kafka import offsets as positions

    columns = [
        show.Column("group", "group"),
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">committed, >first, >next, >lag, state"),
    ]
    committed = positions.positions(call.settings)
    show.rows([_row(position) for position in committed], columns, output)
    cut_off = {position.group for position in committed if position.gone}
    for group in sorted(group for group in cut_off if not group.startswith("trainer-")):
        click.echo(
            f"Group {group} will not start: restore the deleted records, or accept the loss with "
            f"`streamward admin offsets skip --group {group}`.",
            err=True,
        )


@offsets.command("skip")
@click.option("--group", required=True, metavar="GROUP", help="As `admin offsets list` names it, e.g. policy-default.")
@click.option("--dry-run", is_flag=True, help="Only print the loss.")
@output_option
@pass_call
def offsets_skip(call: AppContext, group: str, dry_run: bool, output: Output) -> None:
    """Accept the loss of records that GROUP had not read.

    If retention has deleted them, commits the first offset that exists, in those partitions only, and prints the loss.
    The group must have no members: stop its processes first.
    """
    from streams import output as show
    from streams.kafka import offsets as positions

    cut = positions.skip(call.settings, group, dry_run=dry_run)
    columns = [
        show.Column("partition", lambda row: f"{row['topic']}[{row['partition']}]"),
        *show.columns(">committed, >first, >given up=gone"),
    ]
    show.rows([_row(position) for position in cut], columns, output)
    lost = sum(position.gone for position in cut)
    if not cut:
        click.echo("Nothing was deleted before it was read; nothing is changed.", err=True)
    elif dry_run:
        click.echo(f"{lost} records would be given up; nothing is changed.", err=True)
    else:
        click.echo(f"{lost} records are given up. The group continues with the first record that exists.", err=True)


def _row(position: Position) -> dict[str, Any]:
    return {
        "group": position.group,
        "topic": position.topic,
        "partition": position.partition,
        "committed": position.committed,
        "first": position.first,
        "next": position.next,
        "lag": position.lag,
        "gone": position.gone,
        "state": position.state,
    }
