"""The rights that routes of jobs need, also those that order jobs of another plugin's type."""

from streams.access.roles import PluginAction

READ, ORDER, COMMAND = PluginAction("jobs.read"), PluginAction("jobs.order"), PluginAction("jobs.command")
