"""Better versions from what was served: verdicts on runs, data sets of the good ones, retraining, self-play."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="improve",
    requires=("agents", "data", "jobs", "tuning"),
    topics="plugins.improve.topics:TOPICS",
    settings="plugins.improve.settings:Improve",
    commands={
        "improve run": PluginCommand(
            "plugins.improve.commands.improve_commands:improve_run",
            "Turn served runs into better versions until interrupted.",
        ),
        "improve demo": PluginCommand(
            "plugins.improve.commands.improve_commands:improve_demo", "Watch a version learn from served runs."
        ),
        "improve curate": PluginCommand(
            "plugins.improve.commands.curate:curate", "Judge runs: which are good enough to learn from."
        ),
        "improve datasets": PluginCommand(
            "plugins.improve.commands.datasets:datasets", "Build data sets of promoted runs, and rebuild them."
        ),
        "improve retrain": PluginCommand(
            "plugins.improve.commands.retraining:retrain", "Start a retraining when there is a reason to."
        ),
        "improve selfplay": PluginCommand(
            "plugins.improve.commands.selfplay:selfplay", "Ask a policy a catalogue of questions, again and again."
        ),
        "replay sweep": PluginCommand(
            "plugins.improve.commands.sweep:replay_sweep", "Find the best recipe for recorded groups."
        ),
        "adapters adopt": PluginCommand(
            "plugins.improve.commands.adopt:adapters_adopt", "Make a model of another server the next version."
        ),
    },
    serves="plugins.improve.rooms.improve_part:ImprovePart",
    actions={"runs.judge": ("trainer",)},
    recounts="plugins.improve.audit:RECOUNTS",
    datasets="plugins.improve.datasets.dataset_reading:LogDatasets",
    metrics="plugins.improve.improve_metrics:METRICS",
    groups=("curate-", "datasets-"),
    extends={"page": "plugins.improve.rooms.review_page:SECTIONS"},
    public=(
        "plugins.improve.datasets.curation_service:DatasetCurationHostedService",
        "plugins.improve.curation.promotion_guard:PromotionGuardAgent",
        "plugins.improve.selfplay.selfplay_runner:SelfPlayRunner",
        "plugins.improve.curation.verifier:VerifierAgent",
    ),
)
