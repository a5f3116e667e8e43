"""Sampled and trained on: whether answers of batches are like all others, and how old they are.

tasks, responses, groups, batches, turns ──► the SQL views and lists survivorship and staleness
"""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="survivorship",
    views="plugins.survivorship.survivorship_views:VIEWS",
    lists="plugins.survivorship.survivorship_views:LISTS",
)
