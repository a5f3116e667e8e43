"""Training loops of others, as the Tinker API has them: their calls, the worker that serves them, and its versions.

    api ──► training-calls ──► worker ──► training-results ──► api: futures
                                 └──► adapters: versions

Routes are in `api`, models in `worker`, draws of samples in `sampling`; names, rules and the fold of calls, which both
sides use, in `calls`.
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="tinker",
    requires=("jobs",),
    topics="plugins.tinker.topics:TOPICS",
    commands={
        "calls": PluginCommand(
            "plugins.tinker.commands:calls",
            "Serve the training calls that `streamward serve` records.",
            section="Connect",
            is_worker=True,
        )
    },
    serves="plugins.tinker.api.call_part:CallPart",
    actions={"training.call": ("trainer",)},
    settings="plugins.tinker.worker.worker_settings:Tinker",
    views="plugins.tinker.calls_view:VIEWS",
    recounts="plugins.tinker.recount_calls:RECOUNTS",
    remakes="plugins.tinker.worker.call_remake:REMAKES",
    metrics="plugins.tinker.worker.call_metrics:METRICS",
)
