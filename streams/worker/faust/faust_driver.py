"""Run stages in the Faust worker.

stage.register(FaustDriver) ──► Faust tables, awaited sends, an agent of `faust_agent.py` for each topic
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streams.kafka.topics import Topic
from streams.worker.driver import HandleRecord
from streams.worker.faust.faust_agent import agent
from streams.worker.faust.faust_app import App, Outlet, record_of, table


class FaustDriver:
    """The driver of one Faust app."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings, self.meter, self.traces = app.settings, app.meter, app.traces

    def table(self, name: str, partitions: int) -> Any:
        """Return a Faust table."""
        return table(self.app, name, partitions)

    def outlet(self, stage: str) -> Outlet:
        """Return the outlet of a stage, which returns once its events are acknowledged."""
        return Outlet(self.app, stage)

    def agent(
        self, topic: Topic, handle: HandleRecord, stage: str, *, name: str = "", after: Iterable[Topic] = ()
    ) -> None:
        """Register an agent that handles one record at a time."""

        async def handle_event(event: Any) -> None:
            await handle(record_of(event))

        agent(self.app, topic, handle_event, self.outlet(stage).dead_letters(), name=name or stage, after=after)
