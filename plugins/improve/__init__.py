"""Better versions from what was served: verdicts on runs, data sets of the good ones, retraining, self-play."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="improve",
    datasets="streams.improve.datasets.dataset_reading:LogDatasets",
)
