"""The part of the server for verdicts, labels, data sets and self-play, with their rules and catalogues."""

from __future__ import annotations

from typing import Self

from gateway.log.server_part import ServerBase, ServerPart
from plugins.improve.rooms.dataset_list import BuiltDatasets
from plugins.improve.rooms.row_labels import RowLabelRoutes
from plugins.improve.rooms.run_verdicts import VerdictRoutes
from plugins.improve.rooms.selfplay_runs import SelfPlayRuns
from plugins.improve.triggers.trigger_log import TriggerLog
from streams.kafka.followed import FollowedOnDemand


class ImprovePart(ServerPart):
    """The rooms of improvement."""

    ROOMS = (SelfPlayRuns, VerdictRoutes, RowLabelRoutes, BuiltDatasets)

    def __init__(self, base: ServerBase) -> None:
        self._base, self._triggers = base, FollowedOnDemand(TriggerLog, base.settings)

    def __enter__(self) -> Self:
        self._triggers.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._triggers.__exit__(*exc)

    def rooms(self) -> list[object]:
        """Return them, on the log of the server."""
        settings, log = self._base.settings, self._base.log
        runs = SelfPlayRuns(settings, self._triggers), VerdictRoutes(settings, log)
        return [*runs, RowLabelRoutes(settings), BuiltDatasets(settings)]
