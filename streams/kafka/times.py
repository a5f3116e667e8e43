"""Read topics the way people ask for them: from now on, the last twenty, since eleven o'clock, up to the end.

    topics, --from, --until-end, -n ──► starts and ends by partition ──► records merged by time ──► decoded, or poison

Nothing is committed and no group is joined, so reading changes nothing. Records of one partition keep their order;
several partitions are merged by timestamp among the records that have arrived: a live tail cannot wait for later ones,
and a bounded one looks MERGED records ahead.
"""

from __future__ import annotations

import difflib
import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from schemas.events import Event
from schemas.serde import Poison
from streams.errors import NotFoundError, SettingsError
from streams.kafka import admin
from streams.kafka.client import POLL_S
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import LABELS, Topic, topics
from streams.settings.model import Settings

MERGED = 10_000
"""Records of a bounded tail that are sorted together, in memory."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Begin:
    """Where reading begins: `start`, `end`, `last` n records of a topic, or the first record of a `time`."""

    kind: str
    number: int = 0
    """Number of records, for `last`; milliseconds since the epoch, UTC, for `time`."""


class TailedRecord(NamedTuple):
    """One record and its event."""

    record: Record
    topic: Topic
    event: Event | Poison


def parse_begin(text: str) -> Begin:
    """Parse `--from`. Raises SettingsError with the forms it takes.

    >>> parse_begin("-20"), parse_begin("1970-01-01T00:00:01Z")
    (Begin(kind='last', number=20), Begin(kind='time', number=1000))
    """
    if text in ("start", "end"):
        return Begin(text)
    if text.startswith("-") and text[1:].isdecimal():
        return Begin("last", int(text[1:]))
    try:
        return Begin("time", parse_time(text, "--from"))
    except SettingsError as exc:
        raise SettingsError(f"{exc}; or start, end, or -N for the last N records of each topic") from exc


def parse_time(text: str, option: str, asked_ms: int | None = None) -> int:
    """Parse an ISO 8601 time (UTC without an offset) or an age such as 90s, 30m, 2h, 7d, 1w, as ms since the epoch.

    Times before 1970 are 0: no record is older. Raises SettingsError, naming the option.

    >>> parse_time("1970-01-01T00:00:02Z", "--since"), parse_time("2s", "--since", asked_ms=5000)
    (2000, 3000)
    """
    try:
        if age := _AGE.fullmatch(text):
            asked_ms = now_ms() if asked_ms is None else asked_ms
            return max(asked_ms - int(float(age[1]) * _SECONDS[age[2]] * 1000), 0)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as exc:
        raise SettingsError(
            f"{option} {text}: expected a time as ISO 8601 (UTC without an offset), e.g. 2026-01-31T12:00, or an age, "
            "e.g. 90s, 30m, 2h, 7d or 1w"
        ) from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(int(moment.timestamp() * 1000), 0)


def now_ms() -> int:
    """Return the time of the wall clock, ms since the epoch: what events and records carry."""
    return time.time_ns() // 1_000_000


def named(settings: Settings, names: Iterable[str]) -> list[Topic]:
    """Return the topics with these labels or full names. Raises NotFoundError with the nearest name."""
    by_label = topics(settings.topics)
    by_name = {topic.name: topic for topic in by_label.values()} | by_label
    chosen: dict[str, Topic] = {}
    for name in names:
        if name not in by_name:
            raise NotFoundError(f"Streamward has no topic {name!r}; {_hint(name)}")
        chosen[by_name[name].label] = by_name[name]
    return list(chosen.values())


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, LABELS, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(LABELS)}"


def tail(
    settings: Settings,
    tailed: Iterable[Topic],
    begin: Begin,
    *,
    until_end: bool,
    each_poll: Callable[[], object] = lambda: None,
) -> Iterator[TailedRecord]:
    """Yield records of these topics from `begin` on; up to their present end, or for ever.

    `each_poll` is called a few times a second, also while nothing comes, and may raise to end a tail that waits.
    Raises NotFoundError for a topic that does not exist, LogError if the broker does not answer.
    """
    by_name = {topic.name: topic for topic in tailed}
    labels = [topic.label for topic in by_name.values()]
    bounds = admin.offsets(settings, labels)
    ends = {tp: high for tp, (_, high) in bounds.items()}
    match begin.kind:
        case "start":
            starts = {tp: low for tp, (low, _) in bounds.items()}
        case "end":
            starts = dict(ends)
        case "time":
            offsets = admin.offsets_at(settings, labels, begin.number)
            starts = {tp: ends[tp] if offset < 0 else offset for tp, offset in offsets.items()}
        case _:
            starts = {tp: max(low, high - begin.number) for tp, (low, high) in bounds.items()}
            for record in _last(settings, starts, ends, begin.number):
                yield _decoded(record, by_name)
            starts = dict(ends)
    with PartitionReader(settings, starts, ends=ends if until_end else None) as reader:
        while not reader.at_end():
            records = reader.poll(timeout_s=POLL_S)
            while until_end and len(records) < MERGED and not reader.at_end():
                records += reader.poll(timeout_s=POLL_S)
            for record in merged(records):
                yield _decoded(record, by_name)
            each_poll()


def _last(
    settings: Settings, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], count: int
) -> Iterator[Record]:
    """Yield the last `count` records of each topic, all merged by timestamp."""
    by_topic: dict[str, list[Record]] = {}
    records: list[Record] = []
    with PartitionReader(settings, starts, ends=ends) as reader:
        while not reader.at_end():
            records += reader.poll(timeout_s=POLL_S)
    for record in merged(records):
        by_topic.setdefault(record.at.topic, []).append(record)
    yield from heapq.merge(*(topic_records[-count:] if count else [] for topic_records in by_topic.values()), key=_when)


def merged(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records by timestamp; those of one partition stay in offset order, whatever their times."""
    partitions: dict[TopicPartition, list[Record]] = {}
    for record in records:
        partitions.setdefault((record.at.topic, record.at.partition), []).append(record)
    return heapq.merge(*partitions.values(), key=_when)


def _when(record: Record) -> int:
    return record.timestamp_ms


def _decoded(record: Record, by_name: Mapping[str, Topic]) -> TailedRecord:
    topic = by_name[record.at.topic]
    return TailedRecord(record, topic, record.decode_either(topic.event))
