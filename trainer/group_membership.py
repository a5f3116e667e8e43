"""Be seen as the trainer of a policy: a member of its consumer group, which reads nothing.

    Presence ──► group trainer-POLICY: a member as long as the process lives, and the position for whoever looks at lag

The trainer reads `batches` from where its checkpoint says, so it needs no group to read. It is in one so that others
can see that it lives (`streamward status`), in a step of many minutes too: a thread keeps the membership. No decision
depends on it.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

import confluent_kafka as ck

from streams.kafka.client import client_config
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

POLL_EVERY_S = 0.5
log = logging.getLogger(__name__)


def source_of(settings: Settings) -> TopicPartition:
    """Return the partition that has the batches of policy.name."""
    partition = partition_of(settings.policy.name, settings.topics.policy_partitions)
    return topics(settings.topics)["batches"].name, partition


class Presence:
    """The membership of one trainer. Use as a context manager."""

    def __init__(self, settings: Settings, outage: BrokerOutage) -> None:
        self.source = source_of(settings)
        self._outage, self._over = outage, threading.Event()
        session_ms = int(settings.kafka.session_timeout_s * 1000)
        self._client = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": f"{settings.topics.prefix}trainer-{settings.policy.name}",
                "enable.auto.commit": False,
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": session_ms // 4,
                "max.poll.interval.ms": max(300_000, session_ms),
            }
        )
        self._thread = threading.Thread(target=self._stay, name="trainer presence", daemon=True)

    def __enter__(self) -> Self:
        self._client.subscribe([self.source[0]], on_assign=_reads_nothing)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._outage.close(self._client.close)

    def _stay(self) -> None:
        while not self._over.wait(POLL_EVERY_S):
            self._client.poll(0)

    def commit(self, next_offset: int) -> None:
        """Commit the position of the trainer. It is only shown, so a commit that fails is only logged."""
        here = [ck.TopicPartition(*self.source, next_offset)]
        try:
            self._outage.ask(lambda: self._client.commit(offsets=here, asynchronous=False), "to a commit")
        except ck.KafkaException as exc:
            log.warning("offset %d was not committed, which only affects the lag shown: %s", next_offset, exc)


def _reads_nothing(client: ck.Consumer, _: list[Any]) -> None:
    client.assign([])
