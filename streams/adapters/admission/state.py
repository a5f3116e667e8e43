"""What an agent knows of its policy from the log.

    adapters, batches, groups [of this policy] ──► PolicyState ──► which version serves, how many tasks may start
    responses [of the agent's partitions]      ──► answered    ──► which tasks need no answer any more

The first three topics are keyed by policy, so one partition of each holds everything. Adapters and batches are read
from the start, groups from the first that a batch to come may still hold. Records here that cannot be decoded are
skipped; the stages that own these topics write the dead letters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, Event, Response
from schemas.serde import Poison
from streams.adapters.admission.admission import Admission
from streams.adapters.router import VersionRouter
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.client import POLL_S
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

log = logging.getLogger("streamward.policy")

E = TypeVar("E", bound=Event)

PAUSE_S = 2.0
"""After this long without a poll, fetched records may be out of date."""
CLOCK_SKEW_MS = 60_000
"""How far the clocks of the writers of tasks and responses may differ when the log is searched by time."""


class PolicyState:
    """The fold of one policy's adapters, batches and groups, up to date after each `poll`. Use as a context manager."""

    def __init__(self, settings: Settings, outage: BrokerOutage) -> None:
        """Read the log. Raises NotFoundError if a topic is missing, LogError as `read`."""
        self._settings = settings
        self._policy = settings.policy.name
        self.router = VersionRouter(self._policy)
        self.admission = Admission(settings.batches)
        self.trained_at: dict[int, Coordinates] = {}
        """Coordinates of the `trained` event of each version."""
        partition = partition_of(self._policy, settings.topics.policy_partitions)
        named = topics(settings.topics)
        labels = ("adapters", "batches", "groups")
        adapters_tp, batches_tp, groups_tp = ((named[label].name, partition) for label in labels)
        self._adapters, self._polled = adapters_tp, time.monotonic()
        self._fold: dict[str, Callable[[Record], None]] = {
            adapters_tp[0]: self._on_adapter,
            batches_tp[0]: self._on_batch,
            groups_tp[0]: self._on_group,
        }
        self._last_group: dict[int, int] = {}  # batch sequence -> offset of its last group
        bounds = offsets(settings, labels)
        for tp in (adapters_tp, batches_tp, groups_tp):
            first, end = bounds[tp]
            if tp == groups_tp:
                first = max(first, self._last_group.get(self.oldest_useful - 1, -1) + 1)
            for record in read(settings, {tp: first}, {tp: end}, outage=outage):
                self._fold[tp[0]](record)
        self._reader = PartitionReader(settings, {tp: end for tp, (_, end) in bounds.items() if tp[1] == partition})

    def __enter__(self) -> PolicyState:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    @property
    def oldest_useful(self) -> int:
        """The oldest version whose groups the next batch may hold."""
        return self.admission.sequence - self._settings.batches.max_policy_lag

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in new records."""
        for record in self._reader.poll(timeout_s=timeout_s):
            self._fold[record.at.topic](record)
        self._polled = time.monotonic()

    def follow(self, outage: BrokerOutage) -> None:
        """Take in new records; after a pause, at least every adapter event in the log by now.

        librdkafka keeps fetching while a round is decoded, but not in a frozen process, nor while the broker is
        unreachable. What it has fetched may be out of date then, so the broker is asked where the log ends.
        """
        if time.monotonic() - self._polled > PAUSE_S:
            bounds = outage.ask(lambda: offsets(self._settings, ["adapters"]), "to where a topic ends")
            end = bounds[self._adapters][1]
            while self._reader.position[self._adapters] < end:
                outage.read_on(self._adapters[0])
                before = self._reader.position
                self.poll(POLL_S)
                if self._reader.position == before:
                    outage.silent("with adapter events")
                else:
                    outage.answered()
        self.poll()

    def _on_adapter(self, record: Record) -> None:
        event = _usable(record, AdapterEvent)
        if event is None or event.policy != self._policy:
            return
        before = self.router.serving
        self.router.take(event)
        after = self.router.serving
        if event.kind == "trained" and event.version in self.router.statuses:
            self.trained_at.setdefault(event.version, record.at)
        if after.primary != before.primary:
            log.info("version %d is primary now, version %d was", after.primary, before.primary, extra=record.log_extra)
        if (after.candidate, after.share) != (before.candidate, before.share):
            who = "no version" if after.candidate is None else f"version {after.candidate}"
            log.info("%s is the candidate now, for %g of the tasks", who, after.share, extra=record.log_extra)

    def _on_batch(self, record: Record) -> None:
        batch = _usable(record, Batch)
        if batch is not None and batch.policy == self._policy:
            self.admission.batch(batch)
            self._last_group[batch.sequence] = max(batch.groups_offsets, default=-1)
            self._last_group.pop(self.oldest_useful - 2, None)

    def _on_group(self, record: Record) -> None:
        group = _usable(record, AdvantagedGroup)
        if group is not None and group.policy == self._policy:
            self.admission.group(group, record.at.offset)


def _usable(record: Record, expected: type[E]) -> E | None:
    event = record.decode(expected)
    if isinstance(event, Poison):
        log.warning("skipped: %s", event.error, extra=record.log_extra)
        return None
    return event


# --- which tasks are answered -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AnsweredSampling:
    """A sampling as found on `responses`."""

    first: Response
    timestamp_ms: int
    slots: set[int] = field(default_factory=set)


def answered(
    settings: Settings,
    committed: Mapping[TopicPartition, int],
    state: PolicyState,
    *,
    now_ms: int,
    outage: BrokerOutage,
) -> dict[int, set[str]]:
    """Return, per partition of `tasks` in `committed`, the tasks from there on that have a complete sampling.

    An agent that died between an answer and its commit finds the answer here: a task and its responses have the same
    key, hence the same partition number. `responses` is read from the time of the first uncommitted task. On the way,
    samplings that a batch to come may hold and whose group is not out yet are counted as in flight again; for these,
    no older record is read than a group may take to close (`advantages.deadline_s`).
    """
    responses = topics(settings.topics)["responses"].name
    bounds = outage.ask(lambda: offsets(settings, ["tasks", "responses"]), "to where topics end")
    uncommitted = _first_times(settings, committed, bounds, outage)
    since_ms = min([*uncommitted.values(), _in_flight_since(settings, state, now_ms)]) - CLOCK_SKEW_MS
    found_at = outage.ask(lambda: offsets_at(settings, ["responses"], max(0, since_ms)), "to where a time is")
    ends = {(responses, partition): bounds[responses, partition][1] for _, partition in committed}
    starts = {tp: found_at[tp] if found_at[tp] >= 0 else end for tp, end in ends.items()}
    samplings: dict[tuple[int, str], _AnsweredSampling] = {}
    found: dict[int, set[str]] = {partition: set() for _, partition in committed}
    for record in read(settings, starts, ends, outage=outage):
        response = _usable(record, Response)
        if response is None or response.policy != settings.policy.name:
            continue
        key = (record.at.partition, response.sampling_id)
        sampling = samplings.setdefault(key, _AnsweredSampling(response, record.timestamp_ms))
        sampling.slots.add(response.slot)
        if len(sampling.slots) < response.group_size:
            continue
        found[record.at.partition].add(response.task_id)
        if response.metadata.get("purpose") == "train" and response.adapter_version >= state.oldest_useful:
            state.admission.start(response.task_id, give_up_ms=give_up_ms(settings, record.timestamp_ms))
    return found


def give_up_ms(settings: Settings, since_ms: int, deadline_ms: int | None = None) -> int | None:
    """Return when a group should long be out: deadline, advantages.grace_s and a minute; None if it has no deadline."""
    rule = settings.advantages
    if deadline_ms is None:
        if not rule.deadline_s:
            return None
        deadline_ms = since_ms + int(rule.deadline_s * 1000)
    return deadline_ms + int(rule.grace_s * 1000) + CLOCK_SKEW_MS


def _first_times(
    settings: Settings,
    committed: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    outage: BrokerOutage,
) -> dict[TopicPartition, int]:
    """Return the record timestamp of the first uncommitted record of each partition that has one."""
    starts = {tp: max(offset, bounds[tp][0]) for tp, offset in committed.items()}
    starts = {tp: offset for tp, offset in starts.items() if offset < bounds[tp][1]}
    first = read(settings, starts, {tp: offset + 1 for tp, offset in starts.items()}, outage=outage)
    return {(record.at.topic, record.at.partition): record.timestamp_ms for record in first}


def _in_flight_since(settings: Settings, state: PolicyState, now_ms: int) -> int:
    """Return the earliest time (ms) of a sampling that is still in flight and useful; 0 if unknown."""
    version = state.router.adapters.versions.get(state.oldest_useful)
    trained_at = version.created_at if version is not None else 0
    if not settings.advantages.deadline_s:
        return trained_at
    return max(trained_at, now_ms - int((settings.advantages.deadline_s + settings.advantages.grace_s) * 1000))
