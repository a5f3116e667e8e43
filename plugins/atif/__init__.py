"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor: out of the log, and back as rows or tasks.

finished answers and runs ──► export --format atif ──► documents ──► atif ──► rows with the sampled tokens, or tasks
"""

from streams.plugins.plugin import Plugin, PluginCommand, PluginExport

PLUGIN = Plugin(
    name="atif",
    commands={"atif": PluginCommand("plugins.atif.commands:atif", "Turn ATIF trajectories into tuning rows or tasks.")},
    exports={
        "atif": PluginExport(
            "plugins.atif.trajectory_document:documents",
            "the same as trajectories of Harbor (ATIF-v1.7), with token ids",
            of="runs",
        )
    },
)
