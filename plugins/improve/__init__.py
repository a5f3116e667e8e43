"""Better versions from what was served: verdicts on runs and rows, data sets of good runs, retraining, self-play."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="improve",
    requires=("agents", "data", "jobs", "tuning"),
    topics="plugins.improve.topics:TOPICS",
    settings="plugins.improve.settings:Improve",
    views="plugins.improve.improve_lists:VIEWS",
    lists="plugins.improve.improve_lists:LISTS",
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
        "improve data annotate": PluginCommand(
            "plugins.improve.commands.annotation:data_annotate",
            "Label the rows of a file: promote, reject or needs_human.",
        ),
        "improve data queue": PluginCommand(
            "plugins.improve.rooms.row_labels:RowLabelRoutes",
            "Print the rows that wait for a person.",
            "list_row_queue",
            columns="row_id place question created_at",
        ),
        "improve data label": PluginCommand(
            "plugins.improve.rooms.row_labels:RowLabelRoutes",
            "Say whether a row is good enough to learn from.",
            "label_row",
            "verdict",
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
