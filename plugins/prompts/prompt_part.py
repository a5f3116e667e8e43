"""The part of the server for prompts: their versions, and the jobs that search for better ones."""

from __future__ import annotations

from gateway.jobs.prompt_order import PromptSearches
from gateway.log.prompt_templates import PromptTemplates
from gateway.log.server_part import ServerBase, ServerPart
from plugins.jobs.job_part import JobPart


class PromptPart(ServerPart):
    """The rooms of prompts."""

    ROOMS = (PromptTemplates, PromptSearches)

    def __init__(self, base: ServerBase) -> None:
        self._base = base

    def rooms(self) -> list[object]:
        base = self._base
        return [PromptTemplates(base.settings, base.log), PromptSearches(base.settings, base.part(JobPart).jobs)]
