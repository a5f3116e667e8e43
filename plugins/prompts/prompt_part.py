"""The part of the server for prompts: their versions, and the jobs that search for better ones."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from plugins.jobs.job_part import JobPart
from plugins.prompts.prompt_templates import PromptTemplates
from plugins.prompts.search.search_orders import PromptSearches


class PromptPart(ServerPart):
    """The rooms of prompts."""

    ROOMS = (PromptTemplates, PromptSearches)

    def __init__(self, base: ServerBase) -> None:
        self._base = base

    def rooms(self) -> list[object]:
        base = self._base
        return [PromptTemplates(base.settings, base.log), PromptSearches(base.settings, base.part(JobPart).jobs)]
