"""Runs promoted since an offset of each partition.

    curation ──► VerdictFold ──► promoted now, and not as of the last crossing ──► new

A run that was promoted before the crossing counts again only if it was rejected in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from plugins.improve.curation.verdicts import VerdictFold
from schemas.conventions import CONVERSATION_TASKS
from schemas.events import Coordinates, CurationEvent
from streams.kafka.record import TopicPartition


class PromotedRuns:
    """The fold of `curation` from its beginning; `crossed`: by partition, the offset that the last crossing read up to.

    The records of a partition come in its order, so one place decides for each run.
    """

    def __init__(self, crossed: Mapping[TopicPartition, int]) -> None:
        self._crossed = crossed
        self._verdicts = VerdictFold()
        self._counted: set[str] = set()
        self._new: dict[str, tuple[Coordinates, list[str]]] = {}

    def take(self, place: Coordinates, event: CurationEvent) -> None:
        """Add a verdict."""
        self._verdicts.take(place, event)
        effective = self._verdicts.effective(event.answer_id)
        is_promoted = effective is not None and effective.event.verdict == "promote"
        if place.offset < self._crossed.get((place.topic, place.partition), 0):
            (self._counted.add if is_promoted else self._counted.discard)(event.answer_id)
        elif not is_promoted:
            self._new.pop(event.answer_id, None)
        elif event.answer_id not in self._counted:
            tasks = event.metadata.get(CONVERSATION_TASKS, event.task_id).split("\n")
            self._new.setdefault(event.answer_id, (place, tasks))

    def __len__(self) -> int:
        """Return how many are new."""
        return len(self._new)

    def task_ids(self) -> list[str]:
        """Return the tasks of new ones, the newest first."""
        newest_first = sorted(self._new.values(), key=lambda run: (run[0].offset, run[0].partition), reverse=True)
        return [task_id for _, task_ids in newest_first for task_id in reversed(task_ids)]
