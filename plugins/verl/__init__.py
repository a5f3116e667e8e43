"""The queue of verl (TransferQueue) in the log: its samples, batches to it, and its groups as tasks and responses."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="verl",
    topics="plugins.verl.topics:TOPICS",
    recounts="plugins.verl.recount:RECOUNTS",
    commands={
        "queues": PluginCommand(
            "plugins.verl.commands:queues", "List, fill and import queues of samples (TransferQueue)."
        )
    },
)
