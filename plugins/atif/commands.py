"""The command that reads trajectories of Harbor: atif.

FILE of ATIF documents ──► checked ──► JSON lines on stdout: rows to tune on, or tasks
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from plugins.atif.read_document import Kind


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["rows", "tasks"]),
    default="rows",
    show_default=True,
    help="rows: examples to tune on (sft); tasks: for `streamward tasks submit`.",
)
def atif(file: Path, kind: Kind) -> None:
    """Turn ATIF trajectories into tuning rows or tasks.

    FILE has a document, or one a line, as `streamward export --format atif` and Harbor write them. Rows have the token
    ids of the trajectory, and a mask of those that the agent sampled; nothing is tokenized. A document without token
    ids becomes messages. A task is what the first call of a trajectory was asked.
    """
    from plugins.atif.read_document import read_file
    from schemas.json_text import one_line

    for row in read_file(file, kind):
        click.echo(one_line(row))
