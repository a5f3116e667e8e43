"""Read the log: as a member of a consumer group, or from given offsets.

    topics ──────────► Consumer (subscribes)  follows from the commit, and commits what it is told ──► Record
    starts, ends ────► Tail, read (assigned)  no group and no commit, to a bound or for ever ────────► Record
    coordinates ─────► fetch                  these records, or an error that names those gone ──────► Record

Records of one partition come in the order of their offsets. What librdkafka mends by itself (a lost connection) shows
only as silence; what it cannot (a missing topic, an offset that retention has cut, a refusal) is a LogError, raised
once the records that came before it were returned.

Not covered: records that a transaction left behind. Nothing here writes in transactions (`streams/log.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import confluent_kafka as ck

from schemas.events import Coordinates
from streams.errors import LogError
from streams.log import POLL_S, Record, TopicPartition, client_config, unreachable
from streams.settings import Settings
from streams.topics import topics

# --- subscribed -------------------------------------------------------------------------------------------------------


class Consumer:
    """Follows topics as a member of a consumer group, and commits only what `commit` is told.

    `on_assigned` and `on_revoked` are called from `poll` with the partitions gained and lost; a consumer that keeps
    state per partition drops it there. A first start begins at offset 0.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        labels: Iterable[str],
        *,
        on_assigned: Callable[[list[TopicPartition]], None] | None = None,
        on_revoked: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        self._settings = settings
        self._names = [topics(settings.topics)[label].name for label in labels]
        self._trouble: LogError | None = None
        self._consumer = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
                "session.timeout.ms": int(settings.kafka.session_timeout_s * 1000),
                "heartbeat.interval.ms": int(settings.kafka.session_timeout_s * 250),
                "max.poll.interval.ms": 600_000,
                "fetch.max.bytes": 32 * 1024 * 1024,
                "partition.assignment.strategy": "range",  # the same numbers of co-partitioned topics go together
            }
        )
        self._consumer.subscribe(
            self._names,
            on_assign=_rebalance(on_assigned),
            on_revoke=_rebalance(on_revoked),
            on_lost=_rebalance(on_revoked),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, count: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records, in partition order, as soon as there is one; none when none came in time.

        Raises LogError if the broker refuses (a topic that is missing, an authorisation).
        """
        _raise_first(self)
        records = []
        for message in _consume(self._consumer, count, timeout_s):
            if (error := _trouble(message)) is None:
                records += [] if message.error() else [_record(message)]
            else:
                self._trouble = error
        if not records:
            _raise_first(self)
        return records

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below `next_offsets` is done. A lost partition is not committed, and says nothing."""
        if not next_offsets:
            return
        offsets = [ck.TopicPartition(topic, partition, offset) for (topic, partition), offset in next_offsets.items()]
        try:
            errors = [done.error for done in self._consumer.commit(offsets=offsets, asynchronous=False)]
        except ck.KafkaException as exc:
            errors = [exc.args[0]]
        for error in errors:
            # of a lost partition somebody else is the owner now, and reads from the last commit: at least once
            if error is not None and error.code() not in _LOST_MEMBERSHIP:
                raise LogError(
                    f"committing {dict(next_offsets)} failed: {error.str()}. Nothing is lost: it comes again"
                )

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member owns now."""
        return [(tp.topic, tp.partition) for tp in self._consumer.assignment()]

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition; 0 where nothing was committed.

        Raises LogError if the broker does not answer.
        """
        wanted = [ck.TopicPartition(topic, partition) for topic, partition in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=self._settings.kafka.request_timeout_s)
        except ck.KafkaException as exc:
            raise unreachable(self._settings.kafka, exc.args[0].str()) from exc
        return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions for now."""
        self._consumer.pause([ck.TopicPartition(*tp) for tp in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions again."""
        self._consumer.resume([ck.TopicPartition(*tp) for tp in partitions])

    def close(self) -> None:
        """Leave the group, without a commit."""
        self._consumer.close()


_LOST_MEMBERSHIP = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError._ASSIGNMENT_LOST,
}


def _rebalance(callback: Callable[[list[TopicPartition]], None] | None) -> Callable[[Any, Any], None]:
    def on_rebalance(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        if callback is not None:
            callback([(tp.topic, tp.partition) for tp in partitions])

    return on_rebalance


class Contiguous:
    """Which records of one partition are done. Only what is contiguous may be committed."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # read, in order; done ones leave from the left
        self._done: set[int] = set()
        self._next: int | None = None

    def read(self, offset: int) -> None:
        """Take in an offset that was read; they come in order, holes in the log included."""
        self._open.append(offset)

    def done(self, offset: int) -> None:
        """Say that nothing needs to happen any more for the record at `offset`."""
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._next = self._open.popleft() + 1
            self._done.discard(self._next - 1)

    @property
    def next_offset(self) -> int | None:
        """The first offset that is not done, as far as known; None if none is done."""
        return self._next

    @property
    def left(self) -> int:
        """Records that were read and are not done."""
        return len(self._open) - len(self._done)


# --- assigned ---------------------------------------------------------------------------------------------------------


class Tail:
    """Reads partitions from given offsets with `assign`: no group, no commit, bounded or following.

    `poll` returns what came; `position` is the next offset per partition; `at_end` says whether all bounds are reached.
    """

    def __init__(
        self,
        settings: Settings,
        starts: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._ends = None if ends is None else dict(ends)
        self._position = dict(starts)
        self._trouble: LogError | None = None
        self._consumer = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + "tail",  # required by librdkafka; never joined, never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        reading = [tp for tp in starts if self._ends is None or starts[tp] < self._ends[tp]]
        self._consumer.assign([ck.TopicPartition(*tp, starts[tp]) for tp in reading])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def position(self) -> dict[TopicPartition, int]:
        """The next offset to be read, per partition."""
        return dict(self._position)

    def at_end(self) -> bool:
        """Whether every bound is reached; False when there are none."""
        return self._ends is not None and all(self._position[tp] >= end for tp, end in self._ends.items())

    def poll(self, count: int = 1000, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records below the bounds. Raises LogError if an offset is gone or the broker refuses."""
        _raise_first(self)
        records = []
        for message in _consume(self._consumer, count, timeout_s):
            if (error := message.error()) is not None:
                if (trouble := _trouble(message)) is not None:
                    self._trouble = trouble
                elif error.code() == ck.KafkaError._PARTITION_EOF:
                    # the log ends here: what lies between the last record and the end are markers of transactions
                    tp = (message.topic(), message.partition())
                    self._position[tp] = max(self._position[tp], message.offset())
                continue
            record = _record(message)
            tp = (record.at.topic, record.at.partition)
            if self._ends is not None and record.at.offset >= self._ends[tp]:
                self._position[tp] = max(self._position[tp], self._ends[tp])
                self._consumer.pause([ck.TopicPartition(*tp)])  # what comes behind the bound is not asked for
                continue
            self._position[tp] = record.at.offset + 1
            records.append(record)
        if not records:
            _raise_first(self)
        return records


def read(
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[Record]:
    """Yield every record from `starts` to below `ends`, in partition order, and never commit.

    Raises LogError if a range is no longer there, or nothing comes for a minute.
    """
    with Tail(settings, starts, ends=ends) as tail:
        silent_since = time.monotonic()
        while not tail.at_end():
            records = tail.poll()
            yield from records
            if records:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > 60:
                raise unreachable(
                    settings.kafka, f"nothing came for 60 s at {tail.position}, expected up to {dict(ends)}"
                )


def fetch(settings: Settings, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
    """Return the records at these coordinates. Raises LogError, naming those that are gone."""
    by_partition: dict[TopicPartition, set[int]] = {}
    for at in wanted:
        by_partition.setdefault((at.topic, at.partition), set()).add(at.offset)
    if not by_partition:
        return {}
    starts = {tp: min(found) for tp, found in by_partition.items()}
    ends = {tp: max(found) + 1 for tp, found in by_partition.items()}
    found = {
        record.at: record
        for record in read(settings, starts, ends)
        if record.at.offset in by_partition[(record.at.topic, record.at.partition)]
    }
    every = {Coordinates(*tp, offset) for tp, offsets in by_partition.items() for offset in offsets}
    if gone := sorted(every - found.keys()):
        raise LogError(
            f"{', '.join(map(str, gone[:5]))}{' and more' if gone[5:] else ''}: nothing there. The topic is compacted "
            "or written in transactions; Streamward's are neither, so compare them with `streamward doctor`"
        )
    return found


# --- messages of librdkafka -------------------------------------------------------------------------------------------


def _consume(consumer: ck.Consumer, count: int, timeout_s: float) -> list[Any]:
    """Return up to `count` messages as soon as there is one; `consume` alone would wait for all of them."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *(consumer.consume(count - 1, 0) if count > 1 else ())]


def _trouble(message: Any) -> LogError | None:
    """Return the error a message stands for, if it is one that does not pass by itself."""
    error = message.error()
    if error is None:
        return None
    if error.code() in (ck.KafkaError._PARTITION_EOF, ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN):
        return None  # librdkafka reconnects by itself
    where = message.topic() or "the log"
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        return LogError(
            f"{where}[{message.partition()}]: the offset asked for is gone: {error.str()}. Retention has cut it; read "
            "from a later offset (`streamward topics describe` shows the first), or restore it"
        )
    return LogError(f"{where}: {error.str()}. Check topics and access rights with `streamward doctor`")


def _raise_first(reader: Consumer | Tail) -> None:
    """Raise what an earlier message stood for; the records that came with it were returned before."""
    trouble, reader._trouble = reader._trouble, None
    if trouble is not None:
        raise trouble


def _record(message: Any) -> Record:
    return Record(
        Coordinates(message.topic(), message.partition(), message.offset()),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
