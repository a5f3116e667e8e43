"""Jobs as a part of the server."""

from __future__ import annotations

from typing import Self

from gateway.log.server_part import ServerBase, ServerPart
from plugins.jobs.api.job_costs import JobCosts
from plugins.jobs.api.rest import TrainingJobs
from plugins.jobs.api.rpc import JsonRpc
from plugins.jobs.log.job_log import JobLog
from streams.kafka.followed import FollowedOnDemand


class JobPart(ServerPart):
    """The jobs of the log. Another plugin's part finds them as `base.part(JobPart).jobs`."""

    ROOMS = (TrainingJobs, JobCosts, JsonRpc)

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
            TrainingJobs(settings, jobs),
            JobCosts(jobs),
            JsonRpc(settings, jobs),
        ]
