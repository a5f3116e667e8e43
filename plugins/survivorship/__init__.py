"""Sampled and trained on: whether answers of batches are like all others, how old they are, and where the time went.

tasks, responses, groups, batches, adapters, turns ──► the SQL views and lists survivorship, staleness and stages
"""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="survivorship",
    views="plugins.survivorship.survivorship_views:VIEWS",
    lists="plugins.survivorship.survivorship_views:LISTS",
)
