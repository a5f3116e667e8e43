"""Training loops of others (the Tinker API): their calls in the log, the worker that serves them, saved versions.

training-calls ──► worker: the model, any number of processes ──► training-results      └──► adapters: versions
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="tinker",
    topics="plugins.tinker.topics:TOPICS",
    commands={
        "calls": PluginCommand(
            "plugins.tinker.commands:calls",
            "Serve the training calls that `streamward serve` records.",
            section="Connect",
        )
    },
    settings="plugins.tinker.worker.worker_settings:Tinker",
    views="plugins.tinker.calls_view:VIEWS",
    recounts="plugins.tinker.recount_calls:RECOUNTS",
    remakes="plugins.tinker.worker.call_remake:REMAKES",
    metrics="plugins.tinker.worker.call_metrics:METRICS",
)
