"""Environments that agents act in: built-in games, a user's classes, Gymnasium, TextArena, OpenEnv, tools of MCP.

environment, seed ──► tasks ──► agents run --environments ──► turns, rewards ──► replayed: the same episode again
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="environments",
    requires=("agents",),
    settings="plugins.environments.settings:Environments",
    commands={
        "agents environments": PluginCommand(
            "plugins.environments.commands:environments", "List, try and replay the environments that agents act in."
        )
    },
    line_steps={"environment": "plugins.environments.environment_step:EnvironmentStep"},
    episodes="plugins.environments.episode_player:EnvironmentPlayer",
    faults={"environment": "environments.dead_share"},
    generators="plugins.environments.episode_tasks:GENERATORS",
)
