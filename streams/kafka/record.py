"""A record of the log: its coordinates, key and partition, and the dead letter for one that cannot be used.

    Event ──► encoded ──► partition_of(key) ──► topic[partition]@offset ──► Record ──► dead_letter

Writing is streams/kafka/producer.py, reading streams/kafka/reader.py and consumer.py.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from schemas import serde
from schemas.conventions import EARLIEST_MS
from schemas.event_sizes import most_bytes
from schemas.events import Coordinates, DeadLetter, Event, derive_id
from streams.errors import EventError
from streams.kafka.headers import Headers
from streams.kafka.topics import AHEAD_MS, Topic, key_field
from streams.observability import trace_context

E = TypeVar("E", bound=Event)
T = TypeVar("T", bound=tuple[Any, ...])
TopicPartition = tuple[str, int]

log = logging.getLogger("streamward.kafka")

ERROR_LETTERS = 2000
"""Longest error in a dead letter: what it quotes comes from records, and may be as long as those."""


def made_of(kind: type[T]) -> Callable[[Iterable[Any]], T]:
    """Return `kind._make` of a named tuple, without its check of the number of values, which takes half the time.

    >>> list(map(made_of(Coordinates), [("tasks", 0, 7)]))
    [Coordinates(topic='tasks', partition=0, offset=7)]
    """
    return partial(tuple.__new__, kind)


def latest_ms() -> int:
    """Return the latest time that a record written by now may have, allowing for a clock that is ahead."""
    return time.time_ns() // 1_000_000 + AHEAD_MS


def warn_of_time(at: Coordinates, timestamp_ms: int) -> None:
    """Describe a record with an impossible time. Kafka deletes it by that time, within minutes or never."""
    if timestamp_ms < EARLIEST_MS:
        problem = (
            "which is no time of a record; it has to be in milliseconds. Retention goes by it, and may delete this "
            "record at any moment: correct its producer"
        )
    elif timestamp_ms > latest_ms():
        problem = (
            "more than an hour ahead of this machine's clock; it has to be in milliseconds. Retention goes by it, and "
            "keeps its segment until then: correct its producer, or this clock"
        )
    else:
        return
    text = "%s: its record time is %d ms since 1970, %s. Others like it are not named"
    log.warning(text, at, timestamp_ms, problem, extra={"at": at, "once": True})


class Record(NamedTuple):
    """One record as the log stores it."""

    at: Coordinates
    timestamp_ms: int
    key: bytes | None
    payload: bytes | None
    headers: Headers = ()
    """LEFT_OUT if a name is not UTF-8 (streams/kafka/headers.py)."""

    @property
    def log_extra(self) -> dict[str, Any]:
        """Fields for a log line about this record: `log.warning("...", extra=record.log_extra)`."""
        return {"at": self.at, "trace": trace_context.of_headers(self.headers)}

    def decode(self, expected: type[E]) -> E | serde.Poison:
        """Return the event in this record, or a Poison. Never raises."""
        return serde.decode(self.payload, expected)

    def decode_closed(self, expected: type[E]) -> E | serde.Poison:
        """Return the same without opening what is sealed in it. Never raises."""
        return serde.decode_closed(self.payload, expected)

    def decode_either(self, expected: type[E]) -> E | serde.Poison:
        """Return the event in this record, and of one that was erased what is in clear. Never raises."""
        event = self.decode(expected)
        is_erased = isinstance(event, serde.Poison) and event.reason == "erased"
        return self.decode_closed(expected) if is_erased else event

    def decode_placed(self, expected: type[E], partitions: int | None, *, closed: bool = False) -> E | serde.Poison:
        """Return the event in this record, or a Poison, also if its key or partition do not match its subject.

        Everything about a task, a user, a policy … is in one partition of a topic, and so in one order; a record
        elsewhere is never used. Without `partitions`, the topic's number of them, only the key is checked. With
        `closed` what is sealed in it stays so. Never raises.
        """
        event = self.decode_closed(expected) if closed else self.decode(expected)
        if isinstance(event, serde.Poison):
            return event
        field = key_field(expected)
        return self.misplaced(getattr(event, field), partitions, field) or event

    def misplaced(self, key: str, partitions: int | None, field: str = "task_id") -> serde.Poison | None:
        """Return why this record's key or partition is wrong, as `decode_placed` checks it; None if both are right."""
        if self.key != key.encode():
            error = f"the record key is {self.key!r}, expected the {field} {key!r}; key records by {field}"
            return serde.Poison("wrong_key", error)
        if partitions is None or (expected := partition_of(key, partitions)) == self.at.partition:
            return None
        way_out = ". `streamward admin dlq retry` puts this record where it belongs" if field == "task_id" else ""
        return serde.Poison(
            "wrong_partition",
            f"key {key!r} is in partition {self.at.partition}, expected {expected} of {partitions}, where the other "
            f"records of this {field} are. Its producer needs the partitioner of Kafka's Java client: for librdkafka "
            f"partitioner=murmur2_random{way_out}",
        )


def dead_letter(record: Record, *, stage: str, reason: str, error: str) -> DeadLetter:
    """Return the dead letter for a record that `stage` cannot use; `error` follows the record's coordinates.

    It depends on the record alone, so that reading it again gives the same dead letter.
    """
    return DeadLetter(
        dead_letter_id=derive_id(stage, *record.at),
        created_at=record.timestamp_ms,
        stage=stage,
        reason=reason,
        error=cut(f"{record.at}: {error}"),
        source_topic=record.at.topic,
        source_partition=record.at.partition,
        source_offset=record.at.offset,
        source_timestamp=record.timestamp_ms,
        key=_base64(record.key),
        payload=_base64(record.payload),
        headers={name: _base64(value) or "" for name, value in record.headers},
    )


def cut(text: str) -> str:
    """Return `text` as valid UTF-8, cut after ERROR_LETTERS with a note of how long it was."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= ERROR_LETTERS else f"{text[:ERROR_LETTERS]}… ({len(text)} letters)"


def encoded(event: Event, topic: Topic) -> tuple[bytes | None, bytes]:
    """Return key and payload of the record of `event`. A dead letter always fits: else it leaves without its original.

    Raises EncodeError if the event is malformed, EventError (`too_large`) if it is larger than its topic takes.
    """
    key, payload = key_of(event, topic), serde.encode(event)
    if isinstance(event, DeadLetter) and len(key or b"") + len(payload) > topic.max_bytes:
        event = _without_original(event, key)
        key, payload = None, serde.encode(event)
    check_size(topic, key, payload)
    return key, payload


def _without_original(letter: DeadLetter, key: bytes | None) -> DeadLetter:
    payload = None if letter.payload is None else base64.b64decode(letter.payload)
    return replace(
        letter,
        key=None,
        payload=None,
        key_sha256=_sha256(key),
        payload_sha256=_sha256(payload),
        payload_bytes=None if payload is None else len(payload),
        headers={},
    )


def _sha256(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def trace_of(letter: DeadLetter) -> dict[str, bytes]:
    """Return the headers of a dead letter's record: the trace of its source record."""
    return trace_context.headers_of(trace_context.parse(read_base64(letter.headers.get(trace_context.HEADER))))


def key_of(event: Event, topic: Topic) -> bytes | None:
    """Return the record key of `event`: a field of it, or for a dead letter the key of its source."""
    if isinstance(event, DeadLetter):
        return None if event.key is None else base64.b64decode(event.key)
    key: str = getattr(event, topic.key)
    return key.encode()


def check_size(topic: Topic, key: bytes | None, payload: bytes | None) -> None:
    """Raise EventError (`too_large`), with the size and the setting, if the record is too large for the topic."""
    size = len(key or b"") + len(payload or b"")
    if size > topic.max_bytes:
        way_out = ", or raise topics.max_record_bytes, here and on the topics that exist (max.message.bytes)"
        if topic.max_bytes == most_bytes(topic.event):
            way_out = ": no setting raises that, since every process reads it for ever"
        raise EventError(
            f"a record of {size} bytes for {topic.name}, key {(key or b'')[:60]!r}, which takes at most "
            f"{topic.max_bytes}. Make the event smaller (fewer or shorter messages, fewer tokens, a smaller group)"
            f"{way_out}",
            reason="too_large",
        )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def source_key(letter: DeadLetter) -> str:
    """Return the key of the record that a dead letter is about; of a response, its task."""
    return (read_base64(letter.key) or b"").decode(errors="replace")


def read_base64(text: str | None) -> bytes | None:
    """Decode base64, or return None if it is malformed: any client may write a dead letter."""
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one
        return None


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of `key` under `murmur2_random`, as Kafka's Java client chooses it."""
    choose = _partition_of if len(key) <= ERROR_LETTERS else _partition_of.__wrapped__  # some keys have megabytes
    return choose(key, partitions)


@lru_cache(maxsize=4096)  # of recent tasks, each of which has many records
def _partition_of(key: str, partitions: int) -> int:
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 that Kafka's default partitioner uses (seed 0x9747b28c), unsigned."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)
