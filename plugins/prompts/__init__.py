"""Prompts as versions in the log: what names them, what they earned, and the search for better ones.

prompts ──► an alias means a version ──► a task, a call, an agent or a job names it ──► what it earned ──► compare
a job of type PROMPT_ENGINEERING ──► search: candidates on the same questions, or live ──► the alias moves
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="prompts",
    requires=("jobs",),
    topics="plugins.prompts.topics:TOPICS",
    commands={
        "improve prompts": PluginCommand(
            "plugins.prompts.commands:prompts", "Keep prompts as versions, and compare what they earn."
        )
    },
    serves="plugins.prompts.prompt_part:PromptPart",
    line_steps={"prompt_version": "plugins.prompts.prompt_step:PromptStep"},
    views="plugins.prompts.prompt_lists:ALL_VIEWS",
    lists="plugins.prompts.prompt_lists:LISTS",
    recounts="plugins.prompts.recount:RECOUNTS",
    extends={"jobs": "plugins.prompts.search.search_job:TYPES"},
)
