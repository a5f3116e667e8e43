"""docs/cli.md, from the commands themselves.

    cli ──► every command that is not hidden, with its help as the terminal shows it ──► docs/cli.md

`python -m streams.cli.docs` writes the page; a test fails when it and the commands differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
WIDTH = 100
"""Of the help texts, in characters."""

INTRODUCTION = """\
# The command line

Written by `python -m streams.cli.docs` from the commands themselves; do not edit. The same texts are in
`streamward COMMAND --help`.
"""


def markdown(root: click.Group) -> str:
    """Return the whole page."""
    return INTRODUCTION + "".join(_section(ctx) for ctx in _contexts(root, None, "streamward"))


def _contexts(command: click.Command, parent: click.Context | None, name: str) -> Iterator[click.Context]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    ctx = click.Context(command, parent, info_name=name, **settings)
    yield ctx
    if isinstance(command, click.Group):
        for child in command.list_commands(ctx):
            found = command.get_command(ctx, child)
            if found is not None and not found.hidden:
                yield from _contexts(found, ctx, child)


def _section(ctx: click.Context) -> str:
    depth = min(ctx.command_path.count(" "), 2) + 2
    return f"\n{'#' * depth} {ctx.command_path}\n\n```text\n{ctx.get_help().rstrip()}\n```\n"


if __name__ == "__main__":
    from streams.cli.root import cli

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(markdown(cli))
