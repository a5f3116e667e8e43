"""Recount the queues of samples: what each said it had is what its records come to, at every restore and checkpoint.

    queues of one name ──► opened, each one more than the one before ──► restored, saved: spans of records that count
    samples of that name, up to where the event says they ended ──► put, tagged, cleared ──► number and digest agree?

    samples put + returned = in their queues + cleared + gone back        by checkpoints that were loaded

An acknowledged sample that a restore does not have, and a cleared one that it has, make another digest. A writer that
was superseded is fenced by the offsets of the restore after it: its records are counted, and change nothing.

Not covered: states of which retention has deleted records; and bytes of fields, which no event of the queue repeats.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from schemas.events import Coordinates, QueueEvent, SampleEvent, derive_id
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.tools.audit.facts import Category, RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

Span = tuple[int, Sequence[int], Sequence[int] | None]
"""Epoch, and by partition the first offset that counts and the one after the last; None: it is still written to."""
Places = tuple[tuple[int, int], ...]


class SampleFact(NamedTuple):
    """A record of a sample, without the bytes of its fields. The digest of its queue is over its tags, too."""

    at: Coordinates
    content: int
    has_own_id: bool
    kind: str
    epoch: int
    sample_id: str
    identity: tuple[str, str, int]
    """Sample, writer and sequence."""
    part: int
    parts: int
    partition: str
    key: str | None
    tags: str | None
    names: tuple[str, ...]
    """Of its fields."""


class PlacedQueue(NamedTuple):
    """An event of a queue, and where it is."""

    at: Coordinates
    event: QueueEvent


@dataclass(slots=True)
class QueueEntry:
    """One sample of a queue."""

    partition: str
    key: str | None
    tags: str | None = None
    places: dict[str, Places] = field(default_factory=dict)


@dataclass(slots=True)
class Content:
    """The samples of a queue after some of its records."""

    samples: dict[str, QueueEntry] = field(default_factory=dict)
    parts: dict[tuple[str, str, int], dict[int, SampleFact]] = field(default_factory=dict)
    """Puts of which a part is still to come."""

    def copy(self) -> Content:
        """Return the same, which what comes later does not change."""
        samples = {sample_id: replace(entry, places=dict(entry.places)) for sample_id, entry in self.samples.items()}
        return Content(samples, {identity: dict(parts) for identity, parts in self.parts.items()})

    def digest(self) -> str:
        """Return the sha256 as the events of the queue have it."""
        whole = hashlib.sha256()
        for sample_id, entry in sorted(self.samples.items()):
            whole.update(
                repr(
                    (
                        sample_id,
                        entry.partition,
                        entry.key,
                        entry.tags,
                        sorted(entry.places.items()),
                    )
                ).encode()
            )
        return whole.hexdigest()


class QueueRecount(KeyedRecount[PlacedQueue | SampleFact]):
    """The recount of queues."""

    labels = ("queues", "samples")
    sums = (
        RecountSum(
            "samples put, returned",
            ("samples put", "samples returned"),
            {"in their queues": "samples in queues", "cleared": "samples cleared", "gone back": "samples gone back"},
            shown_with="queue events",
        ),
    )

    def take(self, record: Record, event: QueueEvent | SampleEvent) -> None:
        """Take in an event of a queue, or a record of a sample."""
        if isinstance(event, QueueEvent):
            self.keep(event.queue, PlacedQueue(record.at, event))
        else:
            self.keep(event.queue, _sample_fact(record, event))

    def recount(self, facts: KeyFacts[PlacedQueue | SampleFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one queue."""
        queue = _QueueCheck([fact for fact in facts.events if isinstance(fact, SampleFact)], view)
        for fact in facts.events:
            if isinstance(fact, PlacedQueue):
                queue.take(*fact)
        queue.end()
        return queue.outcome


def _sample_fact(record: Record, event: SampleEvent) -> SampleFact:
    identity = (event.sample_id, event.writer, event.sequence)
    return SampleFact(
        at=record.at,
        content=content_digest(event, "created_at", "traceparent"),
        has_own_id=event.event_id == derive_id(*identity, event.part),
        kind=event.kind,
        epoch=event.epoch,
        sample_id=event.sample_id,
        identity=identity,
        part=event.part,
        parts=event.parts,
        partition=event.partition,
        key=event.key,
        tags=event.tags,
        names=tuple(piece.name for piece in event.fields),
    )


class _QueueCheck:
    """A queue, event by event."""

    def __init__(self, samples: Sequence[SampleFact], view: AuditView) -> None:
        self.outcome = RecountOutcome()
        self._view, self._topic = view, view.names["samples"]
        self._partitions = range(topics(view.settings.topics)["samples"].partitions)
        self._samples: dict[int, list[SampleFact]] = {partition: [] for partition in self._partitions}
        for sample in self._originals(samples):
            self._samples[sample.at.partition].append(sample)
        self._position: Counter[int] = Counter()
        """By partition: how many of its records were taken."""
        self._epoch = 0
        self._spans: list[Span] = []
        self._content = Content()
        self._saved: dict[str, tuple[list[Span], Content]] = {}
        self._counted: set[Coordinates] = set()

    def _originals(self, samples: Sequence[SampleFact]) -> Iterator[SampleFact]:
        """Yield the first record of each part; the same again repeats it, another contradicts it."""
        first: dict[tuple[str, str, int, int], SampleFact] = {}
        for sample in samples:
            before = first.setdefault((*sample.identity, sample.part), sample)
            if before is sample:
                yield sample
                if not sample.has_own_id:
                    self._find("contradictory", sample.at, "its id is not that of its sample, writer and part")
            elif before.content == sample.content:
                self.outcome.find("repeated", sample.at, f"it repeats {before.at}", accounted=True)
            else:
                self._find("contradictory", sample.at, f"{before.at} is the same put, and has other content")

    def _find(self, category: Category, place: Coordinates, problem: str) -> None:
        self.outcome.find(category, place, problem)

    # --- events of the queue ------------------------------------------------------------------------------------------

    def take(self, at: Coordinates, event: QueueEvent) -> None:
        """Take in the next event of the queue."""
        self.outcome.counts["queue events"] += 1
        if event.event_id != derive_id(event.queue, event.kind, event.epoch, event.writer, *event.ends):
            self._find("contradictory", at, "its id is not that of its queue, kind, epoch, writer and ends")
        elif event.kind == "opened":
            self._open(at, event)
        elif event.epoch > self._epoch:
            self._find("phantom", at, f"its queue was not opened as epoch {event.epoch} before")
        elif event.epoch < self._epoch:
            self.outcome.counts["queue events superseded"] += 1
        elif event.checkpoint is not None and event.checkpoint not in self._saved:
            self._find("phantom", at, f"it goes back to {event.checkpoint}, which the queue did not save")
        else:
            self._state(at, event)

    def _open(self, at: Coordinates, event: QueueEvent) -> None:
        if event.epoch > self._epoch + 1:
            self._find("lost", at, f"it is epoch {event.epoch}, and epoch {event.epoch - 1} is not before it")
        elif event.epoch <= self._epoch:
            self.outcome.counts["queue events superseded"] += 1  # another opening was first
            return
        self._epoch = event.epoch

    def _state(self, at: Coordinates, event: QueueEvent) -> None:
        """Compare a state that was restored or saved with the records up to there."""
        if len(event.ends) != len(self._partitions):
            problem = f"it has {len(event.ends)} ends, and {self._topic} has {len(self._partitions)} partitions"
            self._find("contradictory", at, problem)
            return
        for partition, end in enumerate(event.ends):
            log_end = self._view.reach.ends.get((self._topic, partition), end)
            if end > log_end:
                self._find("phantom", at, f"it says that {self._topic}[{partition}] ended at {end}, not {log_end}")
                return
        closed = [_close(span, event.ends) for span in self._spans]
        self._read(closed, event.ends)
        if event.checkpoint is not None:
            closed, content = self._saved[event.checkpoint]
            self._go_back(at, event, content.copy())
        self._compare(at, event)
        if event.kind == "saved":
            self._saved[event.event_id] = (closed, self._content.copy())
        else:
            self._spans = [*closed, (event.epoch, event.ends, None)]
            self._content.parts.clear()  # their writer is superseded

    def _go_back(self, at: Coordinates, event: QueueEvent, content: Content) -> None:
        """Make a saved state the present one."""
        present, saved = self._content.samples.keys(), content.samples.keys()
        counts = {"returned": len(saved - present), "dropped": len(present - saved)}
        self._content = content
        self.outcome.counts["samples returned"] += counts["returned"]
        self.outcome.counts["samples gone back"] += counts["dropped"]
        claimed = {name: event.counts.get(name, 0) for name in counts}
        if claimed != counts and not self._is_cut():
            self._find("contradictory", at, f"it counts {claimed}, and by the log it is {counts}")

    def _compare(self, at: Coordinates, event: QueueEvent) -> None:
        """Find out whether a state is what the records come to."""
        if self._is_cut():
            self.outcome.counts["queue states outside"] += 1
        elif event.samples != len(self._content.samples):
            category: Category = "lost" if event.samples < len(self._content.samples) else "phantom"
            problem = f"it has {event.samples} samples, and by the log it is {len(self._content.samples)}"
            self._find(category, at, problem)
        elif event.digest != self._content.digest():
            problem = f"it has {event.samples} samples, as by the log, but others, or with other fields or tags"
            self._find("contradictory", at, problem)

    def _is_cut(self) -> bool:
        """Return whether retention has deleted records of samples."""
        return self._view.is_cut("samples")

    # --- records of samples -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Take in what came after the last state, and account for what counts nowhere."""
        self._read(self._spans, None)
        counts = self.outcome.counts
        counts["samples in queues"] += len(self._content.samples)
        for sample in (sample for samples in self._samples.values() for sample in samples):
            if sample.epoch > self._epoch:
                if self._view.reach.settled:
                    problem = f"its queue was not opened as epoch {sample.epoch}"
                    self._find("phantom", sample.at, problem)
                else:
                    self.outcome.in_flight["samples"] += 1
            elif sample.at not in self._counted:
                counts["sample records superseded"] += 1

    def _read(self, spans: Sequence[Span], ends: Sequence[int] | None) -> None:
        """Take in the records that count, from the last one that was taken to below `ends`."""
        for partition, samples in self._samples.items():
            for sample in samples[self._position[partition] :]:
                if ends is not None and sample.at.offset >= ends[partition]:
                    break
                self._position[partition] += 1
                if _counts(spans, sample):
                    self._counted.add(sample.at)
                    self._enter(sample)

    def _enter(self, sample: SampleFact) -> None:
        samples, counts = self._content.samples, self.outcome.counts
        if sample.kind == "cleared":
            counts["samples cleared"] += samples.pop(sample.sample_id, None) is not None
            return
        parts = self._content.parts.setdefault(sample.identity, {})
        parts[sample.part] = sample
        if len(parts) < sample.parts:
            return
        del self._content.parts[sample.identity]
        entry = samples.get(sample.sample_id)
        if entry is not None and _is_reused(entry, sample):
            counts["samples cleared"] += 1  # with its controller, and not in the log
            entry = None
        if entry is None:
            counts["samples put"] += 1
            entry = samples[sample.sample_id] = QueueEntry(sample.partition, sample.key)
        entry.key = sample.key if sample.key is not None else entry.key
        places: dict[str, Places] = {}
        for part in (parts[number] for number in sorted(parts)):
            entry.tags = part.tags if part.tags is not None else entry.tags
            for name in part.names:
                places[name] = (*places.get(name, ()), (part.at.partition, part.at.offset))
        entry.places |= places


def _is_reused(entry: QueueEntry, sample: SampleFact) -> bool:
    return entry.partition != sample.partition or (entry.key is not None and sample.key not in (None, entry.key))


def _close(span: Span, ends: Sequence[int]) -> Span:
    return span if span[2] is not None else (span[0], span[1], ends)


def _counts(spans: Sequence[Span], sample: SampleFact) -> bool:
    partition, offset = sample.at.partition, sample.at.offset
    return any(
        epoch == sample.epoch and starts[partition] <= offset and (ends is None or offset < ends[partition])
        for epoch, starts, ends in spans
    )


RECOUNTS = (QueueRecount,)
