"""The Tinker API as a part of the server: the training calls of its log."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from plugins.jobs.job_part import JobPart
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.futures import TinkerFutures
from plugins.tinker.api.not_offered import TinkerNotOffered
from plugins.tinker.api.sampling_sessions import TinkerSampling
from plugins.tinker.api.training import TinkerTraining
from plugins.tinker.api.training_runs import TinkerRuns
from plugins.tinker.api.training_sessions import TinkerService
from plugins.tinker.api.weights import TinkerWeights
from streams.settings.model import Settings


class CallPart(ServerPart):
    """The training calls and their results, followed once a request needs them."""

    ROOMS = (TinkerService, TinkerTraining, TinkerWeights, TinkerSampling, TinkerFutures, TinkerRuns, TinkerNotOffered)

    def __init__(self, base: ServerBase) -> None:
        self._settings, jobs = base.settings, base.part(JobPart).jobs
        self._calls = OpenCalls(base.settings, lambda tenant, at_ms: jobs.open().month(tenant, at_ms))

    def __exit__(self, *exc: object) -> None:
        self._calls.__exit__(*exc)

    def rooms(self) -> list[object]:
        return tinker_rooms(self._settings, self._calls)


def tinker_rooms(settings: Settings, calls: OpenCalls) -> list[object]:
    """Return the rooms over these calls."""
    return [
        TinkerService(settings, calls),
        TinkerTraining(settings, calls),
        TinkerWeights(settings, calls),
        TinkerSampling(settings, calls),
        TinkerFutures(settings, calls),
        TinkerRuns(settings, calls),
        TinkerNotOffered(),
    ]
