"""Jobs as a part of the server, in Streamward's words and in OpenAI's."""

from __future__ import annotations

from typing import Self

from gateway.jobs.fine_tuning import FineTuning
from gateway.jobs.job_costs import JobCosts
from gateway.jobs.peft import PeftJobs
from gateway.jobs.rest import TrainingJobs
from gateway.jobs.rpc import JsonRpc
from gateway.log.server_part import ServerBase, ServerPart
from streams.jobs.job_log import JobLog
from streams.kafka.followed import FollowedOnDemand


class JobPart(ServerPart):
    """The jobs of the log. Another plugin's part finds them as `base.part(JobPart).jobs`."""

    ROOMS = (FineTuning, TrainingJobs, PeftJobs, JobCosts, JsonRpc)

    def __init__(self, base: ServerBase) -> None:
        self._base, self.jobs = base, FollowedOnDemand(JobLog, base.settings)

    def __enter__(self) -> Self:
        self.jobs.open()  # a server without its topics does not start
        return self

    def __exit__(self, *exc: object) -> None:
        self.jobs.__exit__(*exc)

    def rooms(self) -> list[object]:
        settings, jobs = self._base.settings, self.jobs
        return [
            FineTuning(settings, jobs, fleet=self._base.recorder.is_fleet),
            TrainingJobs(settings, jobs),
            PeftJobs(settings, jobs),
            JobCosts(jobs),
            JsonRpc(settings, jobs),
        ]
