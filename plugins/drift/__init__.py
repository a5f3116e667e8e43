"""In which ways a model's conversations drift when their text is tokenized again, and what the recorder does there.

a tokenizer, a chat template ──► drift ──► each way, the smallest conversation that shows it, and what happens here
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="drift",
    commands={
        "drift": PluginCommand("plugins.drift.commands:drift", "Show where tokenizing a conversation again drifts.")
    },
)
