"""Threads of agents, which the Agent Protocol and A2A serve, and the store in which agents keep what they learn."""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="threads",
    requires=("agents",),
    topics="plugins.threads.topics:TOPICS",
    commands={"agents chat": PluginCommand("plugins.threads.chat_command:chat", "Chat with a registered agent.")},
    views="plugins.threads.run_views:VIEWS",
    lists="plugins.threads.run_views:LISTS",
    extends={"page": "plugins.threads.run_tree_page:SECTIONS"},
    settings="plugins.threads.log.thread_settings:Threads",
    serves="plugins.threads.thread_part:ThreadPart",
    recounts="plugins.threads.audit:RECOUNTS",
)
