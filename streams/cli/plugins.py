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
    """List installed plugins and what they declare.

    The setting plugins.load chooses which of them a process loads.
    """
    from streams import output as show
    from streams.files import program_version
    from streams.observability.grafana import alerts
    from streams.output import Column
    from streams.plugins.installed import installations, load_plugins
    from streams.tools.query.view_list import view_lists

    alerts_of = alerts.by_plugin()
    view_lists()
    loaded = {
        plugin.name: {
            "requires": plugin.requires,
            "topics": [shape.label for shape in plugin.load_all(plugin.topics)],
            "commands": list(plugin.commands),
            "exports": list(plugin.exports),
            "views": [view.name for view in plugin.load_all(plugin.views)],
            "lists": [entry.name for entry in plugin.load_all(plugin.lists)],
            "engines": list(plugin.engines),
            "actions": list(plugin.actions),
            "settings": [] if plugin.settings is None else [*plugin.load(plugin.settings).model_fields],
            "metrics": [metric.name for metric in plugin.load_all(plugin.metrics)],
            "alerts": [alert.name for alert in alerts_of.get(plugin.name, ())],
            "metadata": dict(plugin.metadata),
        }
        for plugin, _, _ in load_plugins()
    }
    rows = [
        {
            "plugin": name,
            "version": version or program_version(),
            "from": distribution,
            "loaded": name in loaded,
            **loaded.get(name, {}),
        }
        for name, _, distribution, version in installations()
    ]
    names = ("plugin", "version", "from", "loaded", "topics", "commands", "exports", "engines", "views")
    show.rows(rows, [Column(name, name) for name in names], output)
