"""Better versions from what was served: verdicts on runs, data sets of the good ones, retraining, self-play."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="improve",
    topics="plugins.improve.topics:TOPICS",
    settings="plugins.improve.settings:Improve",
    commands={
        "improve run": PluginCommand(
            "plugins.improve.commands.run:improve_run", "Turn served runs into better versions until interrupted."
        ),
        "improve demo": PluginCommand(
            "plugins.improve.commands.run:improve_demo", "Watch a version learn from served runs."
        ),
        "improve curate": PluginCommand(
            "streams.cli.curate:curate", "Judge runs: which are good enough to learn from."
        ),
        "improve datasets": PluginCommand(
            "streams.cli.datasets:datasets", "Build data sets of promoted runs, and rebuild them."
        ),
        "improve retrain": PluginCommand(
            "streams.cli.retraining:retrain", "Start a retraining when there is a reason to."
        ),
        "improve selfplay": PluginCommand(
            "streams.cli.selfplay:selfplay", "Ask a policy a catalogue of questions, again and again."
        ),
        "replay sweep": PluginCommand("streams.cli.sweep:replay_sweep", "Find the best recipe for recorded groups."),
        "adapters adopt": PluginCommand(
            "plugins.improve.commands.adopt:adapters_adopt", "Make a model of another server the next version."
        ),
    },
    serves="plugins.improve.rooms.improve_part:ImprovePart",
    recounts="plugins.improve.audit:RECOUNTS",
    datasets="streams.improve.datasets.dataset_reading:LogDatasets",
    metrics="plugins.improve.improve_metrics:METRICS",
    public=(
        "streams.improve.datasets.curation_service:DatasetCurationHostedService",
        "streams.improve.curation.promotion_guard:PromotionGuardAgent",
        "streams.improve.selfplay.selfplay_runner:SelfPlayRunner",
        "streams.improve.curation.verifier:VerifierAgent",
    ),
)
