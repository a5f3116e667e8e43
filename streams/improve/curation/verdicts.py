"""The verdict on a run that counts.

    curation, in the order of its partition ──► by run: the newest of a person, else the newest of gates and judge

A person's verdict stands above a machine's, whenever it came; neither overwrites the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from schemas.events import Coordinates, CurationEvent


class PlacedVerdict(NamedTuple):
    """A verdict and where it is."""

    at: Coordinates
    event: CurationEvent


class VerdictFold:
    """All verdicts, by run. A record that comes twice counts once."""

    def __init__(self) -> None:
        self._persons: dict[str, PlacedVerdict] = {}
        self._machines: dict[str, PlacedVerdict] = {}
        self._event_ids: set[str] = set()

    def take(self, at: Coordinates, event: CurationEvent) -> None:
        """Add a record; those of a partition come in its order."""
        if event.event_id in self._event_ids:
            return
        self._event_ids.add(event.event_id)
        by_run = self._persons if event.labeller == "person" else self._machines
        by_run[event.answer_id] = PlacedVerdict(at, event)

    def effective(self, answer_id: str) -> PlacedVerdict | None:
        """Return the verdict that counts; None: the run was not judged."""
        return self._persons.get(answer_id) or self._machines.get(answer_id)

    def pair(self, answer_id: str) -> tuple[PlacedVerdict | None, PlacedVerdict | None]:
        """Return the newest of a person and the newest of a machine."""
        return self._persons.get(answer_id), self._machines.get(answer_id)

    def __iter__(self) -> Iterator[PlacedVerdict]:
        """Yield the verdict that counts of every run that has one."""
        yield from (self._machines | self._persons).values()
