"""Supervised training and preferences: a version from answers of the log, or from a file, without a batch."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="tuning",
    requires=("jobs",),
    extends={"jobs": "plugins.tuning.job_type:TYPES"},
    commands={
        "tune": PluginCommand(
            "plugins.tuning.commands:tune",
            "Train a version by supervised fine-tuning or DPO.",
            section="Train and compare",
        )
    },
    serves="plugins.tuning.tuning_part:TuningPart",
    remakes="plugins.tuning.remake:REMAKES",
    metrics="plugins.tuning.tuning_metrics:METRICS",
)
