"""The recount of the registry of tools."""

from streams.tools.audit.recount_tools import ToolRecount

RECOUNTS = (ToolRecount,)
