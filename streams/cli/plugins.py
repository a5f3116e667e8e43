"""The command that lists the optional parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import output_option

if TYPE_CHECKING:
    from streams.output import Output


@click.command()
@output_option
def plugins(output: Output) -> None:
    """List installed plugins and what they declare."""
    from streams import output as show
    from streams.files import program_version
    from streams.output import Column
    from streams.plugins.installed import load_plugins

    rows = [
        {
            "plugin": plugin.name,
            "version": version or program_version(),
            "from": distribution,
            "requires": plugin.requires,
            "topics": [shape.label for shape in plugin.load_all(plugin.topics)],
            "commands": list(plugin.commands),
            "exports": list(plugin.exports),
            "views": [view.name for view in plugin.load_all(plugin.views)],
            "engines": list(plugin.engines),
            "metadata": dict(plugin.metadata),
        }
        for plugin, distribution, version in load_plugins()
    ]
    names = ("plugin", "version", "from", "topics", "commands", "exports", "engines", "views")
    show.rows(rows, [Column(name, name) for name in names], output)
