"""Thumbs up and down for any answer: a plugin for Streamward."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="thumbs",
    topics="thumbs.topics:TOPICS",
    commands={"thumbs": PluginCommand("thumbs.commands:thumbs", "Rate answers with a thumb up or down.")},
    views="thumbs.views:VIEWS",
    recounts="thumbs.recount:RECOUNTS",
)
