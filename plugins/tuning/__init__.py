"""Supervised training and preferences: a version from answers of the log, or from a file, without a batch."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="tuning", remakes="plugins.tuning.remake:REMAKES", metrics="streams.jobs.tuning.tuning_metrics:METRICS"
)
