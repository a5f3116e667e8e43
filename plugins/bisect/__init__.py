"""Since which version a policy behaves in some way, which groups taught it, and whether it stays without them.

good, bad, an expression ──► bisect ──► the first version ──► groups before it ──► the same batches without the worst
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="bisect",
    commands={
        "bisect": PluginCommand(
            "plugins.bisect.commands:bisect",
            "Find the version since which a policy behaves in some way.",
            section="Train and compare",
        )
    },
    generators="plugins.bisect.bisect_demo:GENERATORS",
)
