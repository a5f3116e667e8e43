"""A queue of samples in the log, as one process uses it.

    put ──► samples[queue/epoch.index], acknowledged by all replicas ──► its epoch is still the newest? ──► return
    get ──► the records at these places ──► the bytes of their fields
    open ──► queues: opened ──► where samples end ──► fold ──► queues: restored, with what was found

After `put` returns, the sample survives the kill of any process; before, it may or may not be there. After `clear`
returns, it comes back only with a saved state that was asked for. Two programs that open one queue at a time end with
one of them refused (queue_state.py). Calls wait for an unreachable broker, for kafka.outage_s at most.

Not covered: a put that has failed, and whose record reaches the broker after a later clear of the same sample, is in
the queue when it is restored.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from threading import Event, Lock
from typing import NamedTuple, Self

from plugins.verl.queue_log import QueueLog
from plugins.verl.sample_fold import Place
from schemas.events import Coordinates, FieldEncoding, SampleEvent, SampleField, SampleKind, derive_id
from schemas.serde import Poison
from schemas.tokens import Octets
from streams.errors import LogError
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, fetch
from streams.kafka.retry import BrokerOutage
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.model import Settings

OVERHEAD_BYTES = 2048
"""A record has at most so much in addition to the bytes and names of its fields, its key and its tags."""


class FieldValue(NamedTuple):
    """A field of a sample, as bytes."""

    encoding: FieldEncoding
    data: bytes
    dtype: str | None = None
    shape: tuple[int, ...] = ()


class SamplePut(NamedTuple):
    """Fields to put into a sample, new ones or in the place of others."""

    sample_id: str
    partition: str
    fields: dict[str, FieldValue]
    key: str | None = None
    tags: str | None = None
    """JSON; None: as they were."""


def writer_name() -> str:
    """Return a name for this process that no other has or had."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class SampleQueue:
    """One process's way into a queue that is open. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, queue: str, epoch: int) -> None:
        """Raises NotFoundError without the topics, LogError if the broker does not answer."""
        self._settings, self.queue, self.epoch = settings, queue, epoch
        self._topic = topics(settings.topics)["samples"]
        self.writer = writer_name()
        self._stop = Event()
        self._outage = BrokerOutage(settings.kafka, self._stop)
        """Of the thread that writes; the one that reads has its own."""
        self._reading_outage = self._outage.of_another_thread()
        self.log = QueueLog(settings, self._outage.of_another_thread())
        self._sequence = 0
        self._writing, self._reading = Lock(), Lock()

    def __enter__(self) -> Self:
        self.log.__enter__()
        self._producer = Producer(self._settings, outage=self._outage)
        self._reader = PartitionReader(self._settings, {}, outage=self._reading_outage, fetch_wait_ms=5)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._reader.close()
        self._producer.__exit__(kind)
        self.log.__exit__(kind)

    def put(self, puts: Sequence[SamplePut]) -> list[dict[str, tuple[Place, ...]]]:
        """Put fields into samples, and return by name where each field is, once all of them are in the log.

        Raises EventError if a part is larger than the topic takes, LogError if the broker refuses, RefusedError if a
        later opening has taken the queue: then nothing of it counts.
        """
        with self._writing:
            events = [event for put in puts for event in self._put_events(put)]
            places = self._write(events)
        fields: dict[int, dict[str, tuple[Place, ...]]] = {}
        for event, place in zip(events, places, strict=True):
            of_put = fields.setdefault(event.sequence, {})
            for piece in event.fields:
                of_put[piece.name] = (*of_put.get(piece.name, ()), place)
        return list(fields.values())

    def tag(self, tags: Iterable[SamplePut]) -> None:
        """Replace the tags of samples. Raises as `put`."""
        with self._writing:
            self._write([self._event(put, "tagged", tags=put.tags, sequence=self._next()) for put in tags])

    def clear(self, samples: Iterable[SamplePut]) -> None:
        """Clear samples. Raises as `put`."""
        with self._writing:
            self._write([self._event(put, "cleared", sequence=self._next()) for put in samples])

    def get(self, fields: Sequence[tuple[str, tuple[Place, ...]]]) -> list[FieldValue]:
        """Return fields by their names and places. Raises LogError, naming the records that retention has deleted."""
        places = {place for _, of_field in fields for place in of_field}
        with self._reading:
            records = fetch(
                self._settings,
                (Coordinates(self._topic.name, *place) for place in places),
                outage=self._reading_outage,
                connected=self._reader,
            )
        pieces: dict[tuple[Place, str], SampleField] = {}
        for place, record in records.items():
            event = record.decode_placed(SampleEvent, self._topic.partitions)
            if isinstance(event, Poison):
                raise LogError(
                    f"{place}: no sample of queue {self.queue} ({event.error}). Is topics.prefix another one?"
                )
            pieces |= {((place.partition, place.offset), piece.name): piece for piece in event.fields}
        return [_join([pieces[place, name] for place in of_field]) for name, of_field in fields]

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _put_events(self, put: SamplePut) -> list[SampleEvent]:
        """Return the parts of a put, each small enough for a record."""
        names = sum(len(name.encode()) for name in put.fields)
        room = self._topic.max_bytes - OVERHEAD_BYTES - names - len((put.tags or "") + (put.key or "")) * 4
        parts = list(_parts(put.fields, max(room, 1)))
        sequence = self._next()
        return [
            self._event(
                put,
                "put",
                sequence=sequence,
                part=number,
                parts=len(parts),
                fields=fields,
                tags=put.tags if number == 0 else None,
            )
            for number, fields in enumerate(parts)
        ]

    def _event(self, put: SamplePut, kind: SampleKind, *, sequence: int, **content: object) -> SampleEvent:
        return SampleEvent(
            event_id=derive_id(put.sample_id, self.writer, sequence, content.get("part", 0)),
            sample_id=put.sample_id,
            created_at=now_ms(),
            kind=kind,
            queue=self.queue,
            epoch=self.epoch,
            writer=self.writer,
            sequence=sequence,
            partition=put.partition,
            key=put.key,
            **content,  # type: ignore[arg-type]  # its own fields
        )

    def _write(self, events: Sequence[SampleEvent]) -> list[Place]:
        """Write events, and return where they are, once they count for the next opening of the queue."""
        places: dict[int, Place] = {}

        def note(number: int, place: Coordinates) -> None:
            places[number] = (place.partition, place.offset)

        for number, event in enumerate(events):
            self._producer.send(event, on_ack=partial(note, number))
        self._producer.flush()
        self.log.check_epoch(self.queue, self.epoch)
        return [places[number] for number in range(len(events))]


def _parts(fields: dict[str, FieldValue], room: int) -> Iterator[tuple[SampleField, ...]]:
    """Yield the fields in parts of at most `room` bytes each; a large field is cut into pieces."""
    part: list[SampleField] = []
    left = room
    for name, value in fields.items():
        start = 0
        while start < len(value.data) or start == 0:
            if left == 0:
                yield tuple(part)
                part, left = [], room
            piece = value.data[start : start + left]
            part.append(SampleField(name=name, encoding=value.encoding, dtype=value.dtype, shape=value.shape,
                                    data=Octets(piece)))  # fmt: skip
            start, left = start + max(len(piece), 1), left - len(piece)
    yield tuple(part)


def _join(pieces: Sequence[SampleField]) -> FieldValue:
    first = pieces[0]
    data = first.data.data if len(pieces) == 1 else b"".join(piece.data.data for piece in pieces)
    return FieldValue(first.encoding, data, first.dtype, first.shape)
