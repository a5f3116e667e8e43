"""The command that shows the settings: config show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, output_option, pass_call
from streams.errors import NotFoundError

if TYPE_CHECKING:
    from streams.output import Output


LONGEST_VALUE = 50
"""Characters of a default in the table; `config show KEY` prints it whole."""


@click.group()
def config() -> None:
    """Show the settings."""


@config.command("show")
@click.argument("only", metavar="[SECTION|SECTION.KEY]", required=False)
@output_option
@pass_call
def config_show(call: AppContext, only: str | None, output: Output) -> None:
    """Print each setting with the origin of its value.

    Secrets are masked.
    """
    from streams import output as show
    from streams.settings.load import describe

    settings, origins = call.settings_and_origins
    rows = [row for row in describe(settings, origins) if only in (None, row["key"], row["key"].partition(".")[0])]
    if not rows:
        raise NotFoundError(f"no setting or section is called {only!r}; `streamward config show` lists all of them")
    columns = [
        show.Column("key", "key"),
        show.Column("value", lambda row: _cut(row["value"]) if row["from"] == "default" else row["value"]),
        show.Column("from", "from"),
        show.Column("about", "about", optional=True),
    ]
    if len(rows) == 1:
        show.record(rows[0], output)
    else:
        show.rows(rows, columns, output)


def _cut(value: object) -> object:
    text = str(value)
    return value if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
