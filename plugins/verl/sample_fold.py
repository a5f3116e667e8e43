"""The samples that a queue holds, as the fold of their records.

    samples[queue/epoch.index]: put, tagged, cleared ──► those that count (queue_state.py) ──► Sample, by its id

A sample is where its fields are: the bytes stay in the log, and are read from there by offset. A put of several parts
counts when its last part is read; a field that is put again replaces the one before, and a cleared sample is gone. So
is one whose id is put under another key: ids are used again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.events import FieldEncoding, SampleEvent

Place = tuple[int, int]
"""A record of `samples`: its partition and offset."""


class FieldPlace(NamedTuple):
    """Where a field's bytes are, and what they are."""

    encoding: FieldEncoding
    dtype: str | None
    shape: tuple[int, ...]
    places: tuple[Place, ...]
    """Of the records that hold its pieces, in order."""


@dataclass(slots=True)
class Sample:
    """One sample, without the bytes of its fields."""

    sample_id: str
    partition: str
    key: str | None
    tags: str | None = None
    tagged_at: Place | None = None
    """The record that its tags are of."""
    fields: dict[str, FieldPlace] = field(default_factory=dict)


class SampleFold:
    """The samples of one queue after the records that were taken, each partition's in the order of their offsets."""

    def __init__(self) -> None:
        self.samples: dict[str, Sample] = {}
        self.counts: Counter[str] = Counter()
        """`cleared`: samples that were; `superseded`: records that count nowhere; `incomplete`: puts of which a part is
        missing, since their writer was killed before it acknowledged them."""
        self._parts: dict[tuple[str, str, int], dict[int, tuple[Place, SampleEvent]]] = {}

    def take(self, event: SampleEvent, place: Place) -> None:
        """Take in a record that counts."""
        if event.kind == "cleared":
            self.counts["cleared"] += self.samples.pop(event.sample_id, None) is not None
            return
        identity = (event.sample_id, event.writer, event.sequence)
        parts = self._parts.setdefault(identity, {})
        parts.setdefault(event.part, (place, event))
        if len(parts) == event.parts:
            del self._parts[identity]
            self._put(parts[number] for number in sorted(parts))
        self.counts["incomplete"] = len(self._parts)

    def _put(self, parts: Iterable[tuple[Place, SampleEvent]]) -> None:
        fresh: dict[str, FieldPlace] = {}
        tags: tuple[str, Place] | None = None
        for place, event in parts:
            if event.tags is not None:
                tags = event.tags, place
            for piece in event.fields:
                pieces = fresh[piece.name].places if piece.name in fresh else ()
                fresh[piece.name] = FieldPlace(piece.encoding, piece.dtype, piece.shape, (*pieces, place))
        sample = self.samples.get(event.sample_id)
        if sample is None or _is_another(sample, event):
            sample = self.samples[event.sample_id] = Sample(event.sample_id, event.partition, event.key)
        sample.partition, sample.key = event.partition, event.key if event.key is not None else sample.key
        if tags is not None:
            sample.tags, sample.tagged_at = tags
        sample.fields |= fresh

    def starts(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Return by partition the first record that is still needed; where it ends, if there is none."""
        starts = list(ends)
        for partition, offset in self._needed_places():
            starts[partition] = min(starts[partition], offset)
        return tuple(starts)

    def _needed_places(self) -> Iterator[Place]:
        """Yield the records that fields, tags, and puts of which parts may still come are in."""
        for sample in self.samples.values():
            yield from (place for stored in sample.fields.values() for place in stored.places)
            if sample.tagged_at is not None:
                yield sample.tagged_at
        yield from (place for parts in self._parts.values() for place, _ in parts.values())

    def digest(self) -> str:
        """Return the sha256 over the samples, their tags and the places of their fields."""
        whole = hashlib.sha256()
        for sample_id in sorted(self.samples):
            sample = self.samples[sample_id]
            places = sorted((name, stored.places) for name, stored in sample.fields.items())
            whole.update(repr((sample_id, sample.partition, sample.key, sample.tags, places)).encode())
        return whole.hexdigest()


def _is_another(sample: Sample, event: SampleEvent) -> bool:
    """Return whether an id was used again, for another sample: the one before was never cleared here."""
    return event.partition != sample.partition or (sample.key is not None and event.key not in (None, sample.key))
