"""The Tinker API as a part of the server: the training calls of its log."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from gateway.tinker.call_log import OpenCalls
from gateway.tinker.futures import TinkerFutures
from gateway.tinker.not_offered import TinkerNotOffered
from gateway.tinker.sampling_sessions import TinkerSampling
from gateway.tinker.training import TinkerTraining
from gateway.tinker.training_runs import TinkerRuns
from gateway.tinker.training_sessions import TinkerService
from gateway.tinker.weights import TinkerWeights
from streams.settings.model import Settings


class CallPart(ServerPart):
    """The training calls and their results, followed once a request needs them."""

    ROOMS = (TinkerService, TinkerTraining, TinkerWeights, TinkerSampling, TinkerFutures, TinkerRuns, TinkerNotOffered)

    def __init__(self, base: ServerBase) -> None:
        self._settings = base.settings
        self._calls = OpenCalls(base.settings, base.jobs.month)

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
