"""Agents: what each is registered with, and the programs that are run on the tasks that name them.

    POST /rl/agents, agents run ──► agents ──► model, prompt, tools and scorers of its calls, tasks and jobs
    tasks ──► agents run ──► begin ──► a program, a process a slot, which calls the server ──► end ──► responses

The server's recorder, which joins each call with its turn, task and version, is the core's, and so are the commands
that show runs: they record and show the calls of any client, registered or not.
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="agents",
    topics="plugins.agents.topics:TOPICS",
    agents="plugins.agents.registry.agent_log:AgentLog",
    commands={
        "agents run": PluginCommand("plugins.agents.commands:agents_run", "Run an agent on the tasks that name it.")
    },
    views="plugins.agents.agent_lists:VIEWS",
    lists="plugins.agents.agent_lists:LISTS",
    serves="plugins.agents.agent_part:AgentPart",
    metrics="plugins.agents.runs.run_metrics:METRICS",
    alerts="plugins.agents.runs.run_metrics:ALERTS",
    public=("plugins.agents.agent_manager:AgentManager", "plugins.agents.agent_manager:ConversationTracker"),
)
