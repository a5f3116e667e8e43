"""Fold of the labels in the log: the labels of each row, agreement of judges with people, and rows that wait.

    annotations, from the first record ──► by tenant and row: each person's newest, each rubric's newest ──► RowLabels
                                                     └──► pairs of person and judge ──► agreement (curation)

A person's label counts before all others. A scorer's counts, since its settings say what it measures. A judge's counts
once the judge is known to agree with people, and never on a row that the judge itself made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from plugins.improve.annotation.labelled_row import model_of
from plugins.improve.curation.agreement import Agreement, JudgedPair, JudgeIdentity, measure
from plugins.improve.settings import Improve
from schemas.events import AnnotationEvent, Coordinates, RowLabeller
from schemas.serde import Poison
from streams.errors import NotFoundError, RefusedError
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings

ID_DIGITS = 8
"""Hexadecimal digits of a row's id that decide whether people are shown it."""


class PlacedLabel(NamedTuple):
    """A label and where it is."""

    at: Coordinates
    event: AnnotationEvent


@dataclass(slots=True)
class RowLabels:
    """The labels of one row."""

    people: dict[str, PlacedLabel] = field(default_factory=dict)
    """The newest of each person, the newest of all last."""
    machines: dict[tuple[RowLabeller, str], PlacedLabel] = field(default_factory=dict)
    """The newest by labeller and digest of the rubric, the newest of all last."""
    newest: PlacedLabel | None = None

    @property
    def person(self) -> PlacedLabel | None:
        """The newest of a person."""
        return next(reversed(self.people.values()), None)

    @property
    def machine(self) -> PlacedLabel | None:
        """The newest of a machine, or the order that people look at it."""
        return next(reversed(self.machines.values()), None)

    def take(self, placed: PlacedLabel) -> None:
        """Add a label."""
        event, self.newest = placed.event, placed
        if event.labeller == "person":
            self.people.pop(event.actor, None)
            self.people[event.actor] = placed
        else:
            key = event.labeller, event.rubric_digest
            self.machines.pop(key, None)
            self.machines[key] = placed


class AnnotationState:
    """The fold of `annotations`."""

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.of_plugin(Improve)
        self._partitions = topics(settings.topics)["annotations"].partitions
        self._rows: dict[tuple[str | None, str], RowLabels] = {}
        self._event_ids: set[str] = set()
        self.counted = [0] * self._partitions
        """By partition: labels before this offset are in it."""

    def take(self, record: Record) -> None:
        """Add a record; one that comes twice counts once."""
        event = record.decode_placed(AnnotationEvent, self._partitions)
        if record.at.partition < self._partitions:
            self.counted[record.at.partition] = record.at.offset + 1
        if not isinstance(event, Poison) and event.event_id not in self._event_ids:
            self._event_ids.add(event.event_id)
            self._rows.setdefault((event.tenant, event.row_id), RowLabels()).take(PlacedLabel(record.at, event))

    def labels(self, tenant: str | None, row_id: str) -> RowLabels:
        """Return the labels of a row of a tenant."""
        return self._rows.get((tenant, row_id)) or RowLabels()

    def find(self, tenant: str | None, row_id: str) -> RowLabels:
        """Return the labels of the row whose id begins so, of this tenant or without one of all.

        Raises NotFoundError if there is none, RefusedError if there are several.
        """
        matches = [
            labels
            for (owner, other), labels in self._rows.items()
            if row_id and other.startswith(row_id) and tenant in (None, owner)
        ]
        if len(matches) > 1:
            raise RefusedError(f"{len(matches)} rows begin with {row_id[:80]!r}; give more of the id")
        if not matches:
            raise NotFoundError(f"no row {row_id[:80]!r} was annotated; `streamward improve data queue` lists some")
        return matches[0]

    def agreements(self) -> dict[JudgeIdentity, Agreement]:
        """Return the agreement of every judge with people about rows."""
        return measure(self._pairs(), self._rule.window)

    def _pairs(self) -> Iterator[JudgedPair]:
        for labels in self._rows.values():
            person = labels.person and labels.person.event
            if person is None or person.verdict == "needs_human":
                continue
            placed = labels.machines.get(("judge", person.rubric_digest))
            if placed is not None and placed.event.judge is not None and not _is_own(placed.event):
                opinions = {other.event.verdict for other in labels.people.values()}
                yield JudgedPair(person, placed.event.judge, len(opinions) > 1)

    def queue(self) -> list[PlacedLabel]:
        """Return the rows that wait for a person, by their ids: the first ones are a sample of all."""
        by_judge = self.agreements()
        waiting = [
            labels.machine
            for labels in self._rows.values()
            if labels.person is None and labels.machine is not None and self._waits(labels.machine.event, by_judge)
        ]
        return sorted(waiting, key=lambda placed: placed.event.row_id)

    def _waits(self, event: AnnotationEvent, by_judge: dict[JudgeIdentity, Agreement]) -> bool:
        if event.labeller == "scorer":
            return event.verdict == "needs_human"
        if self.doubt(event, by_judge) is not None:
            return True
        return int(event.row_id[:ID_DIGITS], 16) < self._rule.review_share * (1 << 4 * ID_DIGITS)

    def doubt(self, event: AnnotationEvent, by_judge: dict[JudgeIdentity, Agreement]) -> str | None:
        """Return why a label does not count; None if it does."""
        if event.verdict == "needs_human":
            return event.rationale
        if event.judge is None:
            return None
        if _is_own(event):
            return f"the judge {event.judge.model} made the row itself"
        agreement = by_judge.get(JudgeIdentity.of(event.judge)) or Agreement.none(event.judge)
        return agreement.doubt(self._rule, "rows")


def _is_own(event: AnnotationEvent) -> bool:
    """Return whether a judge made the row that it labels."""
    model = model_of(event)
    return event.judge is not None and model is not None and model in (event.judge.model, event.judge.policy)
