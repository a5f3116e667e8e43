"""Find the task that a response answers.

    (partition, task ids) ──► kept? ──► read on in `tasks` ──► round the partition once ──► Task, or not in the log

Responses and tasks are keyed alike and lie in partitions of the same number, and responses come roughly in the order of
their tasks. So the reader stands where the last task was found, keeps the newest `cache_bytes` of records, and reads on
only when a task is missing. One that is not found by the end was let go, or is behind: then the partition is read from
its beginning to where the reader stood. Memory is bounded; nothing that is in the log is missed.

Not covered: one id with two contents. The first in the partition should win; once let go, the other may be found.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import confluent_kafka as ck

from schemas import serde
from schemas.events import Task
from streams.errors import LogError
from streams.kafka.client import POLL_S, client_config, unreachable
from streams.kafka.retry import TRANSIENT, BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

CACHE_BYTES = 64 * 1024 * 1024
SILENCE_S = 60.0
"""A broker that says nothing for so long while there is something to read counts as gone."""


class TaskLookup:
    """Reads `tasks` on demand; one thread calls it. Use as a context manager."""

    def __init__(
        self, settings: Settings, *, cache_bytes: int = CACHE_BYTES, patience: BrokerOutage | None = None
    ) -> None:
        self._settings = settings
        self._patience = patience
        self._topic = topics(settings.topics)["tasks"].name
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[tuple[int, bytes], bytes | None] = OrderedDict()  # (partition, key) to payload
        self._bytes = 0
        self._position: dict[int, int] = {}
        self._consumer = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + "known-tasks",  # required by librdkafka; never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",  # retention may cut behind the reader
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 1,  # it reads at the end for moments only, and a waiting fetch blocks the next
                "queued.max.messages.kbytes": 16 * 1024,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._consumer.close()

    def find(self, partition: int, task_ids: Iterable[str]) -> dict[str, Task | serde.Poison]:
        """Return those of `task_ids` that are in this partition of `tasks` now; a Poison for one that is no Task.

        Raises LogError if the broker does not answer: for SILENCE_S, or with patience as long as that lasts.
        """
        found: dict[bytes, bytes | None] = {}
        missing = set()
        for key in {task_id.encode() for task_id in task_ids}:
            if (partition, key) in self._cached:
                self._cached.move_to_end((partition, key))
                found[key] = self._cached[partition, key]
            else:
                missing.add(key)
        if missing:
            stood = self._position.get(partition, 0)
            self._scan(partition, stood, None, missing, found)
            if missing and stood > 0:
                self._scan(partition, 0, stood, missing, found)
            self._consumer.unassign()  # or it would go on asking the broker for what nobody wants yet
        return {key.decode(): serde.decode(payload, Task) for key, payload in found.items()}

    def _scan(
        self, partition: int, start: int, end: int | None, missing: set[bytes], found: dict[bytes, bytes | None]
    ) -> None:
        """Read from `start` to below `end` (None: the end of the log), or until nothing is missing any more."""
        self._consumer.assign([ck.TopicPartition(self._topic, partition, start)])
        self._position[partition] = start
        silent_since = time.monotonic()
        while missing:
            messages = self._consumer.consume(500, 0.0) or [self._consumer.poll(POLL_S)]
            came = [m for m in messages if m is not None and m.partition() == partition and not _passes(m.error())]
            if came:
                silent_since = time.monotonic()
            self._heard(partition, bool(came), silent_since)
            for message in came:
                if self._is_end(message) or (end is not None and message.offset() >= end):
                    return
                self._position[partition] = message.offset() + 1
                key = message.key()
                if key is not None:
                    self._keep(partition, key, message.value())
                    if key in missing:
                        missing.discard(key)
                        found[key] = message.value()

    def _heard(self, partition: int, anything: bool, silent_since: float) -> None:
        if self._patience is not None:
            if anything:
                self._patience.answered()
            else:
                self._patience.silent("for tasks")
        elif time.monotonic() - silent_since > SILENCE_S:
            raise unreachable(
                self._settings.kafka, f"{self._topic}[{partition}] was silent at {self._position[partition]}"
            )

    def _is_end(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == ck.KafkaError._PARTITION_EOF:
            return True
        raise LogError(f"{self._topic}[{message.partition()}]: {error.str()}. Check it with `streamward doctor`")

    def _keep(self, partition: int, key: bytes, payload: bytes | None) -> None:
        if (partition, key) in self._cached:
            return
        self._cached[partition, key] = payload
        self._bytes += len(key) + len(payload or b"")
        while self._bytes > self._cache_bytes and len(self._cached) > 1:
            (_, old), gone = self._cached.popitem(last=False)
            self._bytes -= len(old) + len(gone or b"")


def _passes(error: ck.KafkaError | None) -> bool:
    return error is not None and error.code() in TRANSIENT
