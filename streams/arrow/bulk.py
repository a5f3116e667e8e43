"""Read ranges of the log at the speed of librdkafka: as columns, never record by record.

    starts, ends ──► read ──► DecodedRows of one topic, as many as are decoded at once ──► streams/arrow/decode.py

A Record for each message costs more than decoding it, and so does Python's garbage collector if it finds thousands of
messages to traverse: a few hundred are taken apart at a time. The rest is as in streams/kafka/reader.py: no group, no
commit, no offset is ever reset, and trouble is a LogError once the records before it were returned.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import confluent_kafka as ck

from streams.arrow.decode import CHUNK_BYTES, CHUNK_RECORDS, DecodedRows
from streams.kafka.client import POLL_S, unreachable
from streams.kafka.headers import headers_of
from streams.kafka.reader import PartitionReader
from streams.kafka.record import TopicPartition
from streams.settings.model import Settings

_SECOND = itemgetter(1)
AT_A_TIME = 500
"""Messages held at once: fewer than the 700 new objects that start Python's garbage collector."""
SILENCE_S = 60.0
"""How long a broker may send nothing before an incomplete range is given up."""


def read(
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    headers: bool = False,
) -> Iterator[DecodedRows]:
    """Yield every record from `starts` to below `ends`, in pieces of one topic, each partition in order.

    Headers are left out by default. Raises LogError if a range is gone, or nothing comes for a minute.
    """
    with Bulk(settings, starts, ends=ends) as reader:
        yield from reader.pieces(headers=headers)


def _append(rows: DecodedRows, messages: list[Any]) -> None:
    rows.partitions.extend(map(ck.Message.partition, messages))
    rows.offsets.extend(map(ck.Message.offset, messages))
    rows.timestamps.extend(map(_SECOND, map(ck.Message.timestamp, messages)))
    rows.keys.extend(map(ck.Message.key, messages))
    rows.payloads.extend(map(ck.Message.value, messages))


class Bulk(PartitionReader):
    """A PartitionReader that returns librdkafka's own messages."""

    def pieces(self, *, headers: bool = False) -> Iterator[DecodedRows]:
        """Yield every record up to the bounds. As `read`; what was assigned stays until the last is yielded."""
        waiting: dict[str, DecodedRows] = {}
        weights: Counter[str] = Counter()
        heard_at = time.monotonic()
        while not self.at_end():
            for topic, messages in self.poll_messages():
                heard_at = time.monotonic()
                rows = waiting.setdefault(topic, DecodedRows(topic, [], [], [], [], [], []))
                _append(rows, messages)
                if headers:
                    rows.headers.extend(map(headers_of, messages))
                weights[topic] += sum(map(len, messages))
                if len(rows.payloads) >= CHUNK_RECORDS or weights[topic] >= CHUNK_BYTES:
                    yield waiting.pop(topic)
                    weights[topic] = 0
            if time.monotonic() - heard_at > SILENCE_S:
                error = f"nothing came for {SILENCE_S:g} s at {self.position}, expected up to {self._ends}"
                raise unreachable(self._settings.kafka, error)
        yield from waiting.values()

    def poll_messages(self, count: int = AT_A_TIME, timeout_s: float = POLL_S) -> Iterator[tuple[str, list[Any]]]:
        """Yield up to `count` messages below the bounds, in pieces of one topic. Raises as `poll`."""
        messages = self._messages(count, timeout_s)
        if not messages:
            self._checked([])
        elif len({topic for topic, _ in self._position}) == 1:
            yield messages[0].topic(), messages
        else:
            yield from ((topic, list(of_topic)) for topic, of_topic in groupby(messages, ck.Message.topic))
