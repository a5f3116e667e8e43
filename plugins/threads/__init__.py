"""Threads of agents, which the Agent Protocol and A2A serve, and the store in which agents keep what they learn."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="threads",
    topics="plugins.threads.topics:TOPICS",
    settings="plugins.threads.settings:Threads",
    serves="plugins.threads.thread_part:ThreadPart",
    recounts="plugins.threads.audit:RECOUNTS",
)
