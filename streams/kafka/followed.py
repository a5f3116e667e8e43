"""Topics that are followed in a thread, and written to: a writer sees the effect of its event when it returns.

    topics ──► a thread ──► `_take` of each record, in the order of its partition
    _write(event) ──► topic ──► that record was taken ──► answer

A process that outlives its broker passes a BrokerOutage: reading and writing then wait as long as it allows. Without
one a write fails after a minute.

Not covered: a group. Each follower reads every partition from its first record.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Generic, Protocol, Self, TypeVar

from schemas import key_source
from schemas.events import Coordinates, Event
from schemas.serde import Poison
from streams.errors import LogError, StreamwardError
from streams.kafka.client import POLL_S
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition, cut
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

E = TypeVar("E", bound=Event)

CATCH_UP_S = 60.0
"""Time limit for reading the log, and for reading a written event back."""


class FollowedTopic:
    """A base class. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, *labels: str, outage: BrokerOutage | None = None) -> None:
        """`outage` is the outage of the one thread that writes. Raises NotFoundError if the topics do not exist,
        LogError if the broker does not answer.
        """
        self._settings, self._labels, self._outage = settings, labels, outage
        self._partitions = topics(settings.topics)[labels[0]].partitions
        self._log = logging.getLogger(f"streamward.{labels[0]}")
        bounds = LogHistory(settings, outage).bounds(labels)
        starts = self._starts(bounds)
        self._ends = {tp: end for tp, (_, end) in bounds.items()}
        self._reader = PartitionReader(settings, starts, outage=None if outage is None else outage.of_another_thread())
        self._positions = dict(starts)
        self._changed = threading.Condition()
        """Held while records are taken; notified afterwards."""
        self._writing = threading.Lock()
        self._error: StreamwardError | None = None
        self._over = threading.Event()
        self._producer: Producer | None = None
        self._thread = threading.Thread(target=self._follow, name=f"follows-{'-'.join(labels)}", daemon=True)

    def _starts(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return from which offset on each partition is read, of its first offset and its end."""
        return {tp: low for tp, (low, _) in bounds.items()}

    def __enter__(self) -> Self:
        key_source.when_erased(self.forget_subject)
        self._thread.start()
        for tp, end in self._ends.items():
            self._wait_for(Coordinates(*tp, end - 1))
        if self._outage is not None:
            self._outage.meter.ready("kafka")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._producer is not None:
            self._producer.__exit__(None)

    @property
    def is_broken(self) -> bool:
        """Whether the topic became unreadable; then it has to be followed again."""
        return self._error is not None

    def catch_up(self) -> None:
        """Return once all present records of the topics have been taken in. Raises LogError."""
        for tp, (_, end) in LogHistory(self._settings, self._outage).bounds(self._labels).items():
            self._wait_for(Coordinates(*tp, end - 1))

    def is_read(self, within_s: float) -> bool:
        """Return whether all that the topics had at the beginning has been read, or will be within so many seconds.

        For a follower that is entered without waiting. Raises LogError if the log cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_begun(), within_s)
            self._raise_error()
            return self._has_begun()

    def _has_begun(self) -> bool:
        return all(self._positions[tp] >= end for tp, end in self._ends.items())

    def _take(self, record: Record) -> None:
        """Take in a record."""
        raise NotImplementedError

    def forget_subject(self, subject: str) -> None:
        """Forget what was taken in of a subject who was erased since."""
        with self._changed:
            self._forget(subject)

    def _forget(self, subject: str) -> None:
        """Forget a subject; a follower without words has nothing to forget."""

    def _decoded(self, record: Record, expected: type[E]) -> E | None:
        """Return the event in a record of the first topic; None if it was skipped and logged."""
        event = record.decode_placed(expected, self._partitions)
        if isinstance(event, Poison):
            self._log.warning("skipped: %s", cut(event.error), extra=record.log_extra)
            return None
        return event

    def _take_all(self, records: Sequence[Record]) -> None:
        """Take in records that came together."""
        for record in records:
            self._take(record)

    def _write(self, event: Event, headers: Mapping[str, bytes] | None = None) -> Coordinates:
        """Write an event, and return where it is once it was taken in. Raises LogError."""
        return self._write_all([event], headers)[0]

    def _write_all(self, events: Sequence[Event], headers: Mapping[str, bytes] | None = None) -> list[Coordinates]:
        """Write events in this order, and return where they are once they were taken in. Raises LogError."""
        written: list[Coordinates] = []
        with self._writing:
            if self._producer is None:
                self._producer = Producer(self._settings, linger_ms=0, outage=self._outage)
            for event in events:
                self._producer.send(event, on_ack=written.append, headers=headers)
            self._producer.flush()
        for coordinates in written:
            self._wait_for(coordinates)
        return written

    def _wait_for(self, coordinates: Coordinates) -> None:
        """Return once the record at `coordinates` has been taken in. Raises LogError if it does not come. With an
        outage the reading thread waits for the broker, and gives up when the outage does.
        """
        deadline = time.monotonic() + CATCH_UP_S
        with self._changed:
            while self._positions[coordinates.topic, coordinates.partition] <= coordinates.offset:
                self._raise_error()
                if self._outage is None and time.monotonic() > deadline:
                    raise LogError(
                        f"{coordinates} was not read within {CATCH_UP_S:g} s; check Kafka with `streamward doctor`"
                    )
                self._changed.wait(POLL_S)

    def _raise_error(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        with self._reader:
            while not self._over.is_set():
                try:
                    records = self._reader.poll()
                    with self._changed:
                        self._take_all(records)
                        self._positions = self._reader.position
                        self._changed.notify_all()
                except StreamwardError as exc:
                    with self._changed:
                        self._error = exc
                        self._changed.notify_all()
                    return


class Followable(Protocol):
    """A reader with a thread of its own, which begins when it is entered."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    @property
    def is_broken(self) -> bool:
        """Whether it has to be followed again."""


F = TypeVar("F", bound=Followable)


class FollowedOnDemand(Generic[F]):
    """A follower that starts when it is first needed, and restarts after a failure. Use as a context manager.

    Its methods may be called from any thread.
    """

    def __init__(self, begin: Callable[[Settings], F], settings: Settings) -> None:
        self._begin, self._settings = begin, settings
        self._stack, self._lock = ExitStack(), threading.Lock()
        self._follower: F | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def current(self) -> F | None:
        """The current follower; None if it has to be opened."""
        follower = self._follower
        return None if follower is None or follower.is_broken else follower

    def open(self) -> F:
        """Return the current follower once it has begun. Raises its errors."""
        with self._lock:
            if (current := self.current) is None:
                current = self._begin(self._settings)
                self._stack.enter_context(current)
                self._follower = current
            return current
