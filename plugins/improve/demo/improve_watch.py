"""A fold of the records that the improvement demo waits for.

responses, groups, curation, datasets, triggers, adapters ──► counts, newest verdicts, builds, crossings, versions
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from plugins.improve.curation.verdicts import VerdictFold
from schemas.events import (
    AdapterEvent,
    AdapterKind,
    AdvantagedGroup,
    CurationEvent,
    DatasetEvent,
    Response,
    TriggerEvent,
)
from schemas.serde import Poison
from streams.errors import StreamwardError
from streams.kafka import admin
from streams.kafka.reader import PartitionReader
from streams.kafka.topics import topics
from streams.settings.model import Settings

LABELS = ("responses", "groups", "curation", "datasets", "triggers", "adapters")
TICK_S = 0.5


class ImproveWatch:
    """The log of the demo, read as it grows. Use as a context manager."""

    def __init__(self, settings: Settings, check: Callable[[], None]) -> None:
        """`check` is called now and then; what it raises ends the wait."""
        self._check = check
        self._kinds = {topic.name: topic.event for topic in topics(settings.topics).values()}
        starts = {tp: first for tp, (first, _) in admin.offsets(settings, LABELS).items()}
        self._reader = PartitionReader(settings, starts)
        self.answers: dict[str, str] = {}
        """Texts, by the id of their response."""
        self.groups = 0
        """Of tasks that were served."""
        self.verdicts = VerdictFold()
        self.builds: list[DatasetEvent] = []
        self.crossings: list[TriggerEvent] = []
        self.adapters: list[AdapterEvent] = []

    def __enter__(self) -> ImproveWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def until(self, met: Callable[[], bool], expected: str, *, deadline: float) -> None:
        """Read on until `met`; `deadline`: of time.monotonic(). Raises StreamwardError when time is over."""
        while not met():
            if time.monotonic() > deadline:
                raise StreamwardError(f"the demo waited for {expected}, and its time is over")
            self._check()
            self.read()

    def read(self) -> None:
        """Read what has come."""
        for record in self._reader.poll(5000, TICK_S):
            event = record.decode(self._kinds[record.at.topic])
            if not isinstance(event, Poison):
                self._take(record.at, event)

    def _take(self, at: Any, event: Any) -> None:
        match event:
            case Response():
                self.answers[event.response_id] = event.text
            case AdvantagedGroup(purpose="serve"):
                self.groups += 1
            case CurationEvent():
                self.verdicts.take(at, event)
            case DatasetEvent():
                self.builds.append(event)
            case TriggerEvent(kind="crossed"):
                self.crossings.append(event)
            case AdapterEvent():
                self.adapters.append(event)

    def promotions(self, scenario: str) -> int:
        """Return how many runs of a scenario are promoted, by the verdict that counts."""
        return sum(
            verdict.event.verdict == "promote" and verdict.event.scenario == scenario for verdict in self.verdicts
        )

    def machine_verdicts(self, scenario: str) -> list[CurationEvent]:
        """Return the verdicts of machines on the runs of a scenario, one a run."""
        return [
            machine.event
            for answer_id in self.answers
            if (machine := self.verdicts.pair(answer_id)[1]) is not None and machine.event.scenario == scenario
        ]

    def runs_judged(self) -> int:
        """Return how many runs have a verdict."""
        return len(self.verdicts.answer_ids)

    def of_kind(self, kind: AdapterKind) -> AdapterEvent | None:
        """Return the newest event of a kind in the life of the policy."""
        return next((event for event in reversed(self.adapters) if event.kind == kind), None)
