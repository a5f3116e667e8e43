"""Fork a recorded run at a turn: the moment becomes a task, answered again after the recorded tokens.

turns, responses, tasks ──► fork ──► tasks, with the moment ──► runs that begin with the recorded tokens ──► audit
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="fork",
    requires=("environments",),
    commands={"fork": PluginCommand("plugins.fork.commands:fork", "Fork recorded runs at a turn.")},
    views="plugins.fork.fork_views:VIEWS",
    recounts="plugins.fork.recount_forks:RECOUNTS",
)
