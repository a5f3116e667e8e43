"""The orders of tuning jobs as a part of the server: OpenAI's fine-tuning API, and adapters in Streamward's words."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from plugins.jobs.job_part import JobPart
from plugins.tuning.api.fine_tuning import FineTuning
from plugins.tuning.api.peft import PeftJobs


class TuningPart(ServerPart):
    """The rooms over the jobs of the log."""

    ROOMS = (FineTuning, PeftJobs)

    def __init__(self, base: ServerBase) -> None:
        self._base, self._jobs = base, base.part(JobPart).jobs

    def rooms(self) -> list[object]:
        settings = self._base.settings
        return [
            FineTuning(settings, self._jobs, fleet=self._base.recorder.is_fleet),
            PeftJobs(settings, self._jobs),
        ]
