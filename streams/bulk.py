"""Read ranges of the log at the speed of librdkafka: records side by side, never one by one.

    starts, ends ──► read ──► Rows of one topic, as many as are decoded at once ──► streams/columns.py

A Record for each message costs more than to decode it. The rest is as in streams/reading.py: no group, no commit, no
offset ever reset, and trouble is a LogError once the records before it were returned.

Not covered: following. A caller that wants more asks for the next range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import confluent_kafka as ck

from streams.columns import CHUNK_BYTES, CHUNK_RECORDS, Rows
from streams.log import POLL_S, TopicPartition, unreachable
from streams.reading import Tail, consume
from streams.settings import Settings

SILENCE_S = 60.0
"""A broker that sends nothing for so long, while a range is not at its end, is given up."""


def read(
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    headers: bool = False,
) -> Iterator[Rows]:
    """Yield every record from `starts` to below `ends`, in pieces of one topic, each partition in order.

    Headers are left out unless asked for. Raises LogError if a range is no longer there, or nothing comes for a minute.
    """
    waiting: dict[str, list[Any]] = {}
    weights = {topic: 0 for topic, _ in starts}
    with Bulk(settings, starts, ends=ends) as tail:
        heard_at = time.monotonic()
        while not tail.at_end():
            for topic, messages in tail.poll_messages().items():
                heard_at = time.monotonic()
                waiting.setdefault(topic, []).extend(messages)
                weights[topic] += sum(map(len, messages))
                if len(waiting[topic]) >= CHUNK_RECORDS or weights[topic] >= CHUNK_BYTES:
                    yield _rows(topic, waiting.pop(topic), headers)
                    weights[topic] = 0
            if time.monotonic() - heard_at > SILENCE_S:
                where = f"nothing came for {SILENCE_S:g} s at {tail.position}, expected up to {dict(ends)}"
                raise unreachable(settings.kafka, where)
        for topic, messages in waiting.items():
            yield _rows(topic, messages, headers)


def _rows(topic: str, messages: list[Any], headers: bool) -> Rows:
    return Rows(
        topic,
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [tuple(message.headers() or ()) for message in messages] if headers else [],
    )


class Bulk(Tail):
    """A Tail that returns librdkafka's own messages."""

    @cached_property
    def _topics(self) -> set[str]:
        return {topic for topic, _ in self._position}

    def poll_messages(self, count: int = 4096, timeout_s: float = POLL_S) -> dict[str, list[Any]]:
        """Return up to `count` messages below the bounds, by topic. Raises as `poll`."""
        self._raise_trouble()
        messages = consume(self._consumer, count, timeout_s)
        if any([message.error() for message in messages]):
            for message in messages:
                if message.error() is not None:
                    self._note(message)
            messages = [message for message in messages if message.error() is None]
        if not messages:
            self._told([])
        found: dict[str, list[Any]] = {}
        if len(self._topics) == 1:
            found = {topic: messages for topic in self._topics if messages}
        else:
            for message in messages:
                found.setdefault(message.topic(), []).append(message)
        return {topic: kept for topic, each in found.items() if (kept := self._below_the_bounds(topic, each))}

    def _below_the_bounds(self, topic: str, messages: list[Any]) -> list[Any]:
        partitions = [message.partition() for message in messages]
        # the last message of a partition says how far it was read, and whether any is beyond its bound
        last = dict(zip(partitions, messages, strict=True))
        beyond = {p for p, message in last.items() if self._is_beyond((topic, p), message.offset() + 1)}
        if not beyond or self._ends is None:
            return messages
        ends = {partition: self._ends[topic, partition] for partition in beyond}
        return [m for p, m in zip(partitions, messages, strict=True) if p not in beyond or m.offset() < ends[p]]

    def _is_beyond(self, tp: TopicPartition, position: int) -> bool:
        """Take note of a position, and return whether it is beyond the bound; then no more of it is asked for."""
        self._position[tp] = position
        if self._ends is None or position <= self._ends[tp]:
            return False
        self._position[tp] = self._ends[tp]
        self._consumer.pause([ck.TopicPartition(*tp)])
        return True
