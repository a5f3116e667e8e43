"""The batches that a process has still to train, and its membership in the consumer group of trainers.

    PolicyBatches   one policy: its partition of batches, from its checkpoint on ────────────┐
                    group trainer-POLICY only shows that its trainer is alive                ├──► BatchQueue
    FleetBatches    many: the partitions that the group assigns, from their first record ────┘    by policy, sequence
                    group trainer-@FLEET shares the policies between processes

A commit only shows lag; no decision depends on it. A trainer of one policy resumes where its checkpoint says, without
waiting for the group to miss a process that died. For a fleet the log says what is done: batch s of a policy is done
once `adapters` has a version that has taken more than s batches. So a partition is always read from its first record
when it is assigned, whatever was committed, and a day of wrong settings loses nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import confluent_kafka as ck

from schemas.events import Batch, Coordinates
from schemas.serde import Poison
from streams.adapters.follower import AdapterFollower
from streams.adapters.versions import Version
from streams.kafka import admin
from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.group_names import GroupScope
from streams.kafka.idle_member import IdleMember
from streams.kafka.lag_meter import LagMeter
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition, dead_letter, partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.observability import trace_context
from streams.observability.trace_context import Context
from streams.settings.model import Settings
from trainer.versions import checkpoint
from trainer.versions.learner import due

STAGE = "trainer"
LONGEST_STEP_S = 86_400
"""How long a member may take between two polls: librdkafka's maximum. /healthz detects a step that hangs."""

log = logging.getLogger(__name__)


class WaitingBatch(NamedTuple):
    """A batch from which no version was made yet."""

    at: Coordinates
    batch: Batch
    trace: Context | None
    timestamp_ms: int


class BatchQueue:
    """The waiting batches, by policy and sequence. If a sequence is in the log twice, the first record counts."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, WaitingBatch]] = {}

    def add(self, record: Record, batch: Batch) -> None:
        """Add a batch."""
        waiting = WaitingBatch(record.at, batch, trace_context.of_headers(record.headers), record.timestamp_ms)
        self._waiting.setdefault(batch.policy, {}).setdefault(batch.sequence, waiting)

    def policies(self) -> list[str]:
        """Return the policies that have a batch waiting."""
        return [policy for policy, batches in self._waiting.items() if batches]

    def next(
        self, policy: str, next_sequence: int, records_before: Callable[[int], Iterable[Record]]
    ) -> WaitingBatch | None:
        """Return batch `next_sequence` of `policy`; None if none waits any more. If our version is older than the
        log's, that batch is not in the queue: it is searched in `records_before` the offset of the oldest waiting one.
        If it is not found, a later batch is returned.
        """
        batches = self._waiting[policy]
        for sequence in [sequence for sequence in batches if sequence < next_sequence]:
            del batches[sequence]
        if not batches:
            return None
        oldest = batches[min(batches)]
        if next_sequence not in batches:
            for record in records_before(oldest.at.offset):
                batch = batch_in(record, None)
                if batch is not None and due(batch, policy, next_sequence):
                    self.add(record, batch)
        return batches[min(batches)]

    def remove(self, policy: str, sequence: int) -> None:
        """Remove a batch that has become a version."""
        self._waiting[policy].pop(sequence, None)

    def keep(self, is_ours: Callable[[str], bool]) -> None:
        """Drop the batches of policies that this process no longer owns."""
        self._waiting = {policy: batches for policy, batches in self._waiting.items() if is_ours(policy)}

    def first_waiting(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first batch that waits in each partition; the partition's position if none does."""
        first = dict(positions)
        for batches in self._waiting.values():
            for waiting in batches.values():
                tp = (waiting.at.topic, waiting.at.partition)
                first[tp] = min(first[tp], waiting.at.offset)
        return first

    def backlog(self) -> dict[str, tuple[int, float]]:
        """Return the number of waiting batches by policy, and the age of the oldest, seconds. Any thread may call
        it."""
        now_s, backlog = time.time(), {}
        for policy, batches in list(self._waiting.items()):
            times_ms = [waiting.timestamp_ms for waiting in list(batches.values())]
            age_s = max(0.0, now_s - min(times_ms) / 1000) if times_ms else 0.0
            backlog[policy] = (len(times_ms), age_s)
        return backlog


def batch_in(record: Record, producer: Producer | None) -> Batch | None:
    """Return the batch in a record, or None if it is malformed; then `producer`, if any, writes its dead letter."""
    batch = record.decode(Batch)
    if not isinstance(batch, Poison):
        return batch
    if producer is not None:
        log.error("skipped, not a batch: %s", batch.error, extra=record.log_extra)
        producer.send(dead_letter(record, stage=STAGE, reason=batch.reason, error=batch.error))
        producer.flush()
    return None


def partition_for(settings: Settings, policy: str) -> TopicPartition:
    """Return the partition that has the batches of a policy."""
    return topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions)


# --- one policy -------------------------------------------------------------------------------------------------------


class PolicyBatches:
    """The batches of only policy.name."""

    def __init__(self, settings: Settings, producer: Producer, outage: BrokerOutage, stack: ExitStack) -> None:
        """Hold the folder of the policy and be a member of its group until `stack` is closed.

        Raises RefusedError if another process holds the folder.
        """
        self._settings, self._producer, self._outage, self._stack = settings, producer, outage, stack
        self._policy = settings.policy.name
        self._tp = partition_for(settings, self._policy)
        self.queue = BatchQueue()
        self._folder = stack.enter_context(checkpoint.hold(settings.trainer.checkpoints, self._policy))
        self._presence = stack.enter_context(Presence(settings, outage))
        self._adapters = AdapterFollower(settings, outage, self._policy.__eq__)
        stack.callback(self._adapters.close)
        self._adapters.assign([self._tp[1]])
        self._reader: PartitionReader | None = None
        self._position = self._done = 0
        self._lag = LagMeter(outage.meter, STAGE, settings.topics, self._positions)

    def start(self, resume: Callable[[str], int], lost: Callable[[set[int]], None]) -> None:
        """Begin to read, at the offset that `resume` returns when it has opened the policy."""
        next_offset = resume(self._policy)
        first, _ = admin.offsets(self._settings, ["batches"])[self._tp]
        if 0 < next_offset < first:
            log.warning(
                "%s[%d]: the next batch is expected from %d on, but the first record is %d: retention has deleted %d, "
                "which is harmless if they were of other policies", *self._tp, next_offset, first, first - next_offset,
            )  # fmt: skip
        self._position = self._done = max(first, next_offset)
        reader = PartitionReader(self._settings, {self._tp: self._position}, outage=self._outage)
        self._reader = self._stack.enter_context(reader)
        self._outage.meter.ready("kafka")

    def open(self, policy: str, stack: ExitStack) -> Path:
        """Return the locked folder of the policy."""
        return self._folder

    def versions(self, policy: str) -> Mapping[int, Version]:
        """Return the versions of the policy that the log has by now."""
        self._adapters.catch_up()
        return self._adapters.of(policy).versions

    def poll(self, timeout_s: float) -> None:
        """Take in one record, so that a long backlog is not held in memory. Raises LogError."""
        assert self._reader is not None, "start it"  # noqa: S101
        self._lag.look()
        for record in self._reader.poll(count=1, timeout_s=timeout_s):
            self._lag.took(self._tp, record.at.offset, record.timestamp_ms)
            batch = batch_in(record, self._producer)
            if batch is not None and batch.policy == self._policy:
                self.queue.add(record, batch)
            self._position = record.at.offset + 1

    def commit(self, *, is_trained: bool) -> None:
        """Commit the next offset once a batch was trained; records of other policies show only in the metrics."""
        self._done = self.queue.first_waiting({self._tp: self._position})[self._tp]
        self._lag.done(self._tp, self._done)
        if is_trained:
            self._presence.commit(self._done)

    def _positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset that is not done and the end of the partition, if known. Asks no broker."""
        end = None if self._reader is None else self._reader.end(self._tp)
        return {} if end is None else {self._tp: (min(self._done, end), end)}


class Presence(IdleMember):
    """A member of the group of one policy, so that `streamward status` shows a live trainer."""

    def __init__(self, settings: Settings, outage: BrokerOutage) -> None:
        policy = settings.policy.name
        group = GroupScope(stage=STAGE, fleet=settings.fleet, policy=policy).group
        super().__init__(settings, group, partition_for(settings, policy), outage)

    def commit(self, next_offset: int, metadata: str = "") -> None:
        """Commit the position of the trainer. It is only shown, so a commit that fails is only logged."""
        try:
            super().commit(next_offset, metadata)
        except ck.KafkaException as exc:
            log.warning("offset %d was not committed, which only affects the lag shown: %s", next_offset, exc)


# --- a fleet ----------------------------------------------------------------------------------------------------------


class FleetConsumer(GroupConsumer):
    """A member of the fleet's group that reads its partitions from the first record."""

    CONFIG: Mapping[str, object] = {"max.poll.interval.ms": LONGEST_STEP_S * 1000}

    @cached_property
    def committed_before(self) -> dict[TopicPartition, int]:
        """The group's commits when the partitions were assigned."""
        return {}

    def _starts(self, tps: list[TopicPartition]) -> list[ck.TopicPartition]:
        self.committed_before |= {
            (committed.topic, committed.partition): committed.offset for committed in self._commits(tps)
        }
        return [ck.TopicPartition(*tp, ck.OFFSET_BEGINNING) for tp in tps]


class FleetBatches:
    """The batches of the fleet's policies in the partitions that this process owns."""

    def __init__(self, settings: Settings, producer: Producer, outage: BrokerOutage, stack: ExitStack) -> None:
        """`stack` closes its clients."""
        self._settings, self._producer, self._outage, self._stack = settings, producer, outage, stack
        self.queue = BatchQueue()
        self._adapters = AdapterFollower(settings, outage, settings.fleet.serves)
        stack.callback(self._adapters.close)
        self._consumer: FleetConsumer | None = None
        self._positions: dict[TopicPartition, int] = {}
        """The next offset of each owned partition."""
        self._has_gained = False

    def start(self, resume: Callable[[str], int], lost: Callable[[set[int]], None]) -> None:
        """Join the group; `lost` is called with the numbers of partitions that another process owns from now on.

        A policy is opened only when it has a batch, so `resume` is not called.
        """

        def lose(tps: list[TopicPartition]) -> None:
            partitions = {partition for _, partition in tps}
            for tp in tps:
                self._positions.pop(tp, None)
            self.queue.keep(lambda policy: self._partition(policy) not in partitions)
            lost(partitions)

        group = GroupScope(stage=STAGE, fleet=self._settings.fleet).group
        on_assignment = OnAssignment(self._gain, lose, lose)
        self._consumer = FleetConsumer(self._settings, group, ["batches"], self._outage, on_assignment)
        self._stack.callback(self._consumer.close)

    def open(self, policy: str, stack: ExitStack) -> Path:
        """Return the folder of a policy, held until `stack` is closed.

        The process that held the folder before announces nothing more. Raises RefusedError if one holds it.
        """
        return stack.enter_context(checkpoint.hold(self._settings.trainer.checkpoints, policy))

    def versions(self, policy: str) -> Mapping[int, Version]:
        """Return the versions of a policy that the log has by now."""
        self._adapters.catch_up(self._partition(policy))
        return self._adapters.of(policy).versions

    def poll(self, timeout_s: float) -> None:
        """Take in new batches. Raises as `GroupConsumer.poll`."""
        assert self._consumer is not None, "start it"  # noqa: S101
        records = self._consumer.poll(timeout_s=timeout_s)
        if self._has_gained:
            self._has_gained = False
            self._adapters.assign(partition for _, partition in self._positions)
        for record in records:
            tp = (record.at.topic, record.at.partition)
            if tp in self._positions:
                self._take(record, is_new=record.at.offset >= self._consumer.committed_before.get(tp, 0))
                self._positions[tp] = record.at.offset + 1
        for tp, end in self._consumer.take_reached_ends().items():
            if tp in self._positions:
                self._positions[tp] = max(self._positions[tp], end)

    def commit(self, *, is_trained: bool) -> None:
        """Commit the first batch that waits in each partition."""
        assert self._consumer is not None, "start it"  # noqa: S101
        self._consumer.commit(self.queue.first_waiting(self._positions))

    def _take(self, record: Record, *, is_new: bool) -> None:
        batch = batch_in(record, self._producer if is_new else None)
        if batch is None or not self._settings.fleet.serves(batch.policy):
            return
        if self._partition(batch.policy) != record.at.partition:
            return  # in a partition that no trainer of this policy reads
        if due(batch, batch.policy, self._adapters.of(batch.policy).trained_batches):
            self.queue.add(record, batch)

    def _partition(self, policy: str) -> int:
        return partition_for(self._settings, policy)[1]

    def _gain(self, tps: list[TopicPartition]) -> None:
        self._positions |= dict.fromkeys(tps, 0)
        self._has_gained = True


BatchSource = PolicyBatches | FleetBatches
