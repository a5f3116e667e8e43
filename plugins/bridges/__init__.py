"""To the trainers of verl and prime-rl and back: batches as they read them, and adapters of others as versions."""

from streams.plugins.plugin import Plugin, PluginCommand, PluginExport

PLUGIN = Plugin(
    name="bridges",
    commands={
        "adapters import": PluginCommand(
            "plugins.bridges.commands:adapters_import", "Import an adapter that another trainer made."
        )
    },
    exports={
        "verl": PluginExport(
            "plugins.bridges.verl:files",
            "training batches as verl's DataProto",
            refused={"ranks": "verl deals a batch to its ranks itself"},
        ),
        "prime-rl": PluginExport(
            "plugins.bridges.prime_rl:files",
            "training batches as prime-rl's trainer reads them (--ranks)",
            options=("ranks",),
        ),
    },
)
