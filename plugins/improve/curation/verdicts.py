"""The valid verdict on each run.

    curation, in the order of its partition ──► by run: the newest of a person, else the newest of gates and judge

A person's verdict takes precedence over a machine's, whenever it came; neither overwrites the other. If two people
disagree, the newest verdict counts, and both are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from schemas.events import Coordinates, CurationEvent, RunVerdict


class PlacedVerdict(NamedTuple):
    """A verdict and where it is."""

    at: Coordinates
    event: CurationEvent


class VerdictFold:
    """All verdicts, by run. A record that comes twice counts once."""

    def __init__(self) -> None:
        self._persons: dict[str, PlacedVerdict] = {}
        self._machines: dict[str, PlacedVerdict] = {}
        self._by_person: dict[str, dict[str, PlacedVerdict]] = {}
        self._newest: dict[str, PlacedVerdict] = {}
        """By person."""
        self._measured: dict[tuple[str, str, str], PlacedVerdict] = {}
        self._event_ids: set[str] = set()

    def take(self, at: Coordinates, event: CurationEvent) -> None:
        """Add a record; those of a partition come in its order."""
        if event.event_id in self._event_ids:
            return
        self._event_ids.add(event.event_id)
        placed = PlacedVerdict(at, event)
        if event.labeller == "person":
            self._persons[event.answer_id] = placed
            self._by_person.setdefault(event.answer_id, {})[event.actor] = placed
            newest = self._newest.get(event.actor)
            if newest is None or newest.event.created_at <= event.created_at:
                self._newest[event.actor] = placed
        else:
            self._machines[event.answer_id] = placed
            self._measured[event.answer_id, event.rubric_digest, event.transcript_digest] = placed

    def effective(self, answer_id: str) -> PlacedVerdict | None:
        """Return the verdict that counts; None: the run was not judged."""
        return self._persons.get(answer_id) or self._machines.get(answer_id)

    def pair(self, answer_id: str) -> tuple[PlacedVerdict | None, PlacedVerdict | None]:
        """Return the newest of a person and the newest of a machine."""
        return self._persons.get(answer_id), self._machines.get(answer_id)

    def machine_verdict(self, answer_id: str, rubric_digest: str, transcript_digest: str) -> PlacedVerdict | None:
        """Return the newest verdict of a machine on this transcript by this rubric; None: there is none."""
        return self._measured.get((answer_id, rubric_digest, transcript_digest))

    def by_person(self, answer_id: str) -> Mapping[str, PlacedVerdict]:
        """Return the newest verdict of each person on a run."""
        return self._by_person.get(answer_id, {})

    def newest_of(self, actor: str) -> PlacedVerdict | None:
        """Return the newest verdict of a person; None: there is none."""
        return self._newest.get(actor)

    def opinions(self, answer_id: str) -> set[RunVerdict]:
        """Return the verdicts that people have of a run: several if they disagree."""
        return {placed.event.verdict for placed in self.by_person(answer_id).values()}

    @property
    def person_run_ids(self) -> Collection[str]:
        """Every run that a person has judged."""
        return self._persons.keys()

    @property
    def answer_ids(self) -> Collection[str]:
        """Every run with a verdict, in the order in which each got its first of its kind."""
        return (self._machines | self._persons).keys()

    def __iter__(self) -> Iterator[PlacedVerdict]:
        """Yield the verdict that counts of every run that has one."""
        yield from (self._machines | self._persons).values()
