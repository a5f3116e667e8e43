"""Prompts of the log: versions that tasks, calls, agents and jobs name."""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="prompts",
    line_steps={"prompt_version": "plugins.prompts.prompt_step:PromptStep"},
)
