"""Rows before they are trained on: checked, cleaned and made, and none that gives a held-out question away."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="data",
    commands={
        "improve data": PluginCommand(
            "plugins.data.commands:data", "Check, clean and make the rows that a policy is trained on."
        )
    },
    rooms="plugins.data.training_rows:ROOMS",
    gates="plugins.data.contamination.contamination_gate:GATES",
)
