"""The batches that a fleet has still to train: those of the policies whose partitions this process owns.

    batches, from the first record ──► of this fleet? no version yet? ──► waiting, by policy and sequence
    group trainer-@FLEET: which partitions are ours; its commit is only shown, as the first batch that waits

The log says what is done: batch s of a policy is, once its version s + 1 is in `adapters`. So a partition is read from
its first record whenever it is assigned, whatever was committed, and settings that were wrong for a day lose nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import confluent_kafka as ck

from schemas.events import Batch, Coordinates
from streams.adapters.follower import AdapterFollower
from streams.kafka.consumer import GroupConsumer
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.retry import BrokerOutage
from streams.observability.tracing import context
from streams.observability.tracing.context import Context
from streams.settings.model import Settings
from trainer.consumer import STAGE, batch_in
from trainer.versions.learner import due

LONGEST_STEP_S = 86_400
"""How long a member may take between two polls: most that librdkafka allows. A step that hangs is /healthz's."""

log = logging.getLogger(__name__)


class WaitingBatch(NamedTuple):
    """A batch that no version was made of yet."""

    at: Coordinates
    batch: Batch
    trace: Context | None
    timestamp_ms: int


class BatchesConsumer(GroupConsumer):
    """A member of the fleet's group that reads its partitions from the first record."""

    CONFIG: Mapping[str, object] = {"max.poll.interval.ms": LONGEST_STEP_S * 1000}

    committed_before: Mapping[TopicPartition, int] = {}
    """What the group had committed when the partitions were assigned."""

    def _starts(self, tps: list[TopicPartition]) -> list[ck.TopicPartition]:
        self.committed_before = {(at.topic, at.partition): at.offset for at in self._commits(tps)}
        return [ck.TopicPartition(*tp, ck.OFFSET_BEGINNING) for tp in tps]


class WaitingBatches:
    """What waits, by policy. `on_lost` is called with the numbers of partitions that are ours no longer."""

    def __init__(
        self, settings: Settings, producer: Producer, outage: BrokerOutage, on_lost: Callable[[set[int]], None]
    ) -> None:
        self._settings, self._producer, self._on_lost = settings, producer, on_lost
        self.adapters = AdapterFollower(settings, outage, settings.fleet.serves)
        self._of: dict[str, dict[int, WaitingBatch]] = {}
        self._read: dict[TopicPartition, int] = {}
        """The next offset of each partition that is ours."""
        self._is_new = False
        self._consumer = BatchesConsumer(
            settings,
            f"{STAGE}-@{settings.fleet.name}",
            ["batches"],
            outage,
            on_assigned=self._assigned,
            on_revoked=self._lost,
            on_lost=self._lost,
        )

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()
        self.adapters.close()

    def partition(self, policy: str) -> int:
        """Return the partition that has the batches of a policy."""
        return partition_of(policy, self._settings.topics.policy_partitions)

    def policies(self) -> list[str]:
        """Return the policies that have a batch waiting."""
        return [policy for policy, batches in self._of.items() if batches]

    def poll(self, timeout_s: float) -> None:
        """Take in new batches. Raises as `GroupConsumer.poll`."""
        records = self._consumer.poll(timeout_s=timeout_s)
        if self._is_new:
            self._is_new = False
            self.adapters.assign(partition for _, partition in self._read)
        for record in records:
            tp = (record.at.topic, record.at.partition)
            if tp in self._read:
                self._take(record, is_new=record.at.offset >= self._consumer.committed_before.get(tp, 0))
                self._read[tp] = record.at.offset + 1

    def commit(self) -> None:
        """Commit, for whoever looks at lag, the first batch that waits in each partition."""
        first = dict(self._read)
        for batches in self._of.values():
            for at, *_ in batches.values():
                tp = (at.topic, at.partition)
                first[tp] = min(first[tp], at.offset)
        self._consumer.commit(first)

    def next(self, policy: str, version: int, missed: Callable[[int], Iterable[Record]]) -> WaitingBatch | None:
        """Return the batch that turns `version` of `policy` into the next; None if none waits any more.

        If our version is older than the log's, `missed` returns the records before an offset to look for it there. If
        it is not there either, the batch returned is a later one.
        """
        batches = self._of[policy]
        for sequence in [sequence for sequence in batches if sequence < version]:
            del batches[sequence]
        if not batches:
            return None
        oldest = batches[min(batches)]
        if version not in batches:
            for record in missed(oldest.at.offset):
                batch = batch_in(record, None)
                if batch is not None and due(batch, policy, version):
                    batches.setdefault(batch.sequence, _waiting(record, batch))
        return batches[min(batches)]

    def done(self, policy: str, sequence: int) -> None:
        """Note that a batch has become a version."""
        self._of[policy].pop(sequence, None)

    def oldest_s(self) -> dict[str, tuple[int, float]]:
        """Return by policy how many batches wait, and the age of the oldest, seconds. Any thread may call it."""
        now_s, found = time.time(), {}
        for policy, batches in list(self._of.items()):
            times_ms = [one.timestamp_ms for one in list(batches.values())]
            age_s = max(0.0, now_s - min(times_ms) / 1000) if times_ms else 0.0
            found[policy] = (len(times_ms), age_s)
        return found

    def _take(self, record: Record, *, is_new: bool) -> None:
        batch = batch_in(record, self._producer if is_new else None)
        if batch is None or not self._settings.fleet.serves(batch.policy):
            return
        if self.partition(batch.policy) != record.at.partition:
            return  # where no trainer of this policy looks
        if due(batch, batch.policy, self.adapters.of(batch.policy).newest):
            self._of.setdefault(batch.policy, {}).setdefault(batch.sequence, _waiting(record, batch))

    def _assigned(self, tps: list[TopicPartition]) -> None:
        self._read |= dict.fromkeys(tps, 0)
        self._is_new = True

    def _lost(self, tps: list[TopicPartition]) -> None:
        numbers = {partition for _, partition in tps}
        for tp in tps:
            self._read.pop(tp, None)
        self._of = {policy: batches for policy, batches in self._of.items() if self.partition(policy) not in numbers}
        self._on_lost(numbers)


def _waiting(record: Record, batch: Batch) -> WaitingBatch:
    return WaitingBatch(record.at, batch, context.of_headers(record.headers), record.timestamp_ms)
