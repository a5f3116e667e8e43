"""Thumbs up and down for any answer: a plugin for Streamward."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="thumbs",
    topics="thumbs.topics:TOPICS",
    rooms="thumbs.rooms:ROOMS",
    commands={"rate": PluginCommand("thumbs.rooms:Thumbs", "Rate an answer.", "rate_answer", "task_id answer_id")},
    views="thumbs.shown:VIEWS",
    lists="thumbs.shown:LISTS",
    recounts="thumbs.recount:RECOUNTS",
    metrics="thumbs.shown:METRICS",
    alerts="thumbs.shown:ALERTS",
)
