"""What an agent knows of its policy from the log.

    adapters, batches, groups ──► PolicyLog ──► PolicyFold of each policy ──► PolicyState: which version serves,
    responses [of the agent's partitions] ──► look_up ──► samplings ─────────────┘  how many tasks may start, and which
                                                                                    need no answer any more

A PolicyLog follows one policy, or for a fleet all of them, with one client. The first three topics are keyed by policy,
so one partition of each holds everything about one. Adapters and batches are read from the start, groups from the first
that a batch to come may still hold. Records here that cannot be decoded are skipped; the stages that own these topics
write the dead letters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

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
from streams.settings.model import Batches, Settings

log = logging.getLogger("streamward.policy")

E = TypeVar("E", bound=Event)

_EVENTS: Mapping[str, type[AdapterEvent] | type[Batch] | type[AdvantagedGroup]] = {
    "adapters": AdapterEvent,
    "batches": Batch,
    "groups": AdvantagedGroup,
}
LABELS = tuple(_EVENTS)
"""The topics that are folded, in this order: what groups matter depends on the batches."""
GROUPS_READ = 20_000
"""Most groups of a partition that are read at the start for all policies."""

PAUSE_S = 2.0
"""After this long without a poll, fetched records may be out of date."""
CLOCK_SKEW_MS = 60_000
"""How far the clocks of the writers of tasks and responses may differ when the log is searched by time."""


class PolicyFold:
    """What the log says of one policy: who serves, and what is sampled and trained. No clock, no I/O."""

    def __init__(self, policy: str, rule: Batches) -> None:
        """Start before anything was sampled or trained."""
        self._policy, self._rule = policy, rule
        self.router = VersionRouter(policy)
        self.admission = Admission(rule)
        self.trained_at: dict[int, Coordinates] = {}
        """Coordinates of the `trained` event of each version."""
        self._last_group: dict[int, int] = {}  # batch sequence -> offset of its last group

    @property
    def oldest_useful(self) -> int:
        """The oldest version whose groups the next batch may hold."""
        return self.admission.sequence - self._rule.max_policy_lag

    @property
    def next_useful(self) -> int:
        """The offset of the first group that a batch to come may hold."""
        return self._last_group.get(self.oldest_useful - 1, -1) + 1

    def take(self, event: Event, record: Record) -> None:
        """Take in an event of this policy, and the record that has it."""
        match event:
            case AdapterEvent():
                self._on_adapter(event, record)
            case Batch():
                self.admission.batch(event)
                self._last_group[event.sequence] = max(event.groups_offsets, default=-1)
                self._last_group.pop(self.oldest_useful - 2, None)
            case AdvantagedGroup():
                self.admission.group(event, record.at.offset)

    def _on_adapter(self, event: AdapterEvent, record: Record) -> None:
        before = self.router.serving
        self.router.take(event)
        after = self.router.serving
        if event.kind == "trained" and event.version in self.router.statuses:
            self.trained_at.setdefault(event.version, record.at)
        if after.primary != before.primary:
            what = "%s: version %d is primary now, version %d was"
            log.info(what, self._policy, after.primary, before.primary, extra=record.log_extra)
        if (after.candidate, after.share) != (before.candidate, before.share):
            who = "no version" if after.candidate is None else f"version {after.candidate}"
            what = "%s: %s is the candidate now, for %g of the tasks"
            log.info(what, self._policy, who, after.share, extra=record.log_extra)


class PolicyLog:
    """Follows adapters, batches and groups of one policy, or of all. `close` it at the end."""

    def __init__(self, settings: Settings, outage: BrokerOutage, policy: str | None = None) -> None:
        """Read the log, of `policy` or of every one. Raises NotFoundError if a topic is missing, LogError as `read`."""
        self._settings, self._outage, self._policy = settings, outage, policy
        self._folds: dict[str, PolicyFold] = {}
        self._samplings: dict[int, list[CompleteSampling]] = {}  # by partition
        named = topics(settings.topics)
        self._labels = {named[label].name: label for label in LABELS}
        self._polled = time.monotonic()
        bounds = offsets(settings, LABELS)
        if policy is not None:
            self.of(policy)
            bounds = {tp: bound for tp, bound in bounds.items() if tp[1] == self._partition(policy)}
        for label in LABELS:
            some = {tp: bound for tp, bound in bounds.items() if tp[0] == named[label].name}
            starts = {
                tp: self._groups_from(tp, *bound) if label == "groups" else bound[0] for tp, bound in some.items()
            }
            for record in read(settings, starts, {tp: end for tp, (_, end) in some.items()}, outage=outage):
                self._take(record)
        self._reader = PartitionReader(settings, {tp: end for tp, (_, end) in bounds.items()})

    def close(self) -> None:
        """Close the client."""
        self._reader.__exit__()

    def of(self, policy: str) -> PolicyFold:
        """Return the fold of a policy."""
        if policy not in self._folds:
            self._folds[policy] = PolicyFold(policy, self._settings.batches)
        return self._folds[policy]

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in new records."""
        for record in self._reader.poll(timeout_s=timeout_s):
            self._take(record)
        self._polled = time.monotonic()

    def follow(self) -> None:
        """Take in new records; after a pause, at least every adapter event in the log by now.

        librdkafka keeps fetching while a round is decoded, but not in a frozen process, nor while the broker is
        unreachable. What it has fetched may be out of date then, so the broker is asked where the log ends.
        """
        if time.monotonic() - self._polled > PAUSE_S:
            bounds = self._outage.ask(lambda: offsets(self._settings, ["adapters"]), "to where a topic ends")
            ends = {tp: bounds[tp][1] for tp in self._reader.position if tp in bounds}
            while any(self._reader.position[tp] < end for tp, end in ends.items()):
                self._outage.read_on(topics(self._settings.topics)["adapters"].name)
                before = self._reader.position
                self.poll(POLL_S)
                if self._reader.position == before:
                    self._outage.silent("with adapter events")
                else:
                    self._outage.answered()
        self.poll()

    def look_up(self, committed: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Read from `responses` which tasks have a complete sampling, for `samplings` of these partitions of `tasks`.

        A task and its responses have the same key, hence the same partition number. `responses` is read from the time
        of the first uncommitted task, and from where samplings may be in flight: not before a group that is open now
        could have begun (`advantages.deadline_s`).
        """
        responses = topics(self._settings.topics)["responses"].name
        bounds = self._outage.ask(lambda: offsets(self._settings, ["tasks", "responses"]), "to where topics end")
        uncommitted = _first_times(self._settings, committed, bounds, self._outage)
        folds = self._folds.values() if self._policy is None else [self.of(self._policy)]
        in_flight_ms = min((_in_flight_since(self._settings, one, now_ms) for one in folds), default=now_ms)
        since_ms = max(0, min([*uncommitted.values(), in_flight_ms]) - CLOCK_SKEW_MS)
        found = self._outage.ask(lambda: offsets_at(self._settings, ["responses"], since_ms), "to where a time is")
        ends = {(responses, partition): bounds[responses, partition][1] for _, partition in committed}
        starts = {tp: found[tp] if found[tp] >= 0 else end for tp, end in ends.items()}
        self._samplings |= {partition: [] for _, partition in committed}
        for one in _complete_samplings(read(self._settings, starts, ends, outage=self._outage), self._policy):
            self._samplings[one.partition].append(one)

    def samplings(self, policy: str, partition: int) -> list[CompleteSampling]:
        """Return what the last `look_up` of this partition has found of a policy."""
        return [one for one in self._samplings.get(partition, ()) if one.policy == policy]

    def _partition(self, policy: str) -> int:
        return partition_of(policy, self._settings.topics.policy_partitions)

    def _groups_from(self, tp: TopicPartition, first: int, end: int) -> int:
        """Return where reading `groups` begins: at the first that a batch to come may hold, of any policy there.

        Among all policies there are some that rest, so no more than GROUPS_READ are read: groups of theirs that are
        older count for nothing, and for a moment a few too many tasks may start.
        """
        here = [fold.next_useful for policy, fold in self._folds.items() if self._partition(policy) == tp[1]]
        start = max(first, min(here, default=first))
        return start if self._policy is not None else max(start, end - GROUPS_READ)

    def _take(self, record: Record) -> None:
        event = _usable(record, _EVENTS[self._labels[record.at.topic]])
        if event is not None and self._policy in (None, event.policy):
            self.of(event.policy).take(event, record)


class PolicyState:
    """The fold of one policy's adapters, batches and groups, up to date after each `poll`. Use as a context manager."""

    def __init__(self, settings: Settings, outage: BrokerOutage, shared: PolicyLog | None = None) -> None:
        """Read the log, unless a `shared` one does. Raises NotFoundError if a topic is missing, LogError as `read`."""
        self._settings, self._policy = settings, settings.policy.name
        self._is_shared = shared is not None
        self._log = PolicyLog(settings, outage, self._policy) if shared is None else shared
        self._fold = self._log.of(self._policy)
        self.router, self.admission, self.trained_at = self._fold.router, self._fold.admission, self._fold.trained_at

    def __enter__(self) -> PolicyState:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_shared:
            self._log.close()

    @property
    def oldest_useful(self) -> int:
        """The oldest version whose groups the next batch may hold."""
        return self._fold.oldest_useful

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in new records."""
        self._log.poll(timeout_s)

    def follow(self) -> None:
        """Take in new records; see `PolicyLog.follow`."""
        self._log.follow()

    def answered(self, committed: Mapping[TopicPartition, int], *, now_ms: int) -> dict[int, set[str]]:
        """Return, per partition of `tasks` in `committed`, the tasks from there on that have a complete sampling.

        An agent that died between an answer and its commit finds the answer here. On the way, samplings that a batch to
        come may hold and whose group is not out yet are counted as in flight again.
        """
        if not self._is_shared:
            self._log.look_up(committed, now_ms)
        found: dict[int, set[str]] = {partition: set() for _, partition in committed}
        for partition, task_ids in found.items():
            for one in self._log.samplings(self._policy, partition):
                task_ids.add(one.task_id)
                if one.purpose == "train" and one.version >= self.oldest_useful:
                    self.admission.start(one.task_id, give_up_ms=give_up_ms(self._settings, one.timestamp_ms))
        return found


def _usable(record: Record, expected: type[E]) -> E | None:
    event = record.decode(expected)
    if isinstance(event, Poison):
        log.warning("skipped: %s", event.error, extra=record.log_extra)
        return None
    return event


# --- which tasks are answered -----------------------------------------------------------------------------------------


class CompleteSampling(NamedTuple):
    """A sampling of which `responses` has every slot."""

    partition: int
    task_id: str
    policy: str
    purpose: str
    version: int
    timestamp_ms: int
    """Of its first response."""


def _complete_samplings(records: Iterable[Record], policy: str | None) -> Iterator[CompleteSampling]:
    """Yield the complete samplings in records of `responses`, of one policy or of all."""
    begun: dict[tuple[int, str], tuple[int, set[int]]] = {}  # partition, sampling_id -> first timestamp, slots
    for record in records:
        response = _usable(record, Response)
        if response is None or policy not in (None, response.policy):
            continue
        key = (record.at.partition, response.sampling_id)
        timestamp_ms, slots = begun.setdefault(key, (record.timestamp_ms, set()))
        slots.add(response.slot)
        if len(slots) >= response.group_size:
            purpose = response.metadata.get("purpose", "")
            about = (response.task_id, response.policy, purpose, response.adapter_version)
            yield CompleteSampling(record.at.partition, *about, timestamp_ms)


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


def _in_flight_since(settings: Settings, state: PolicyFold, now_ms: int) -> int:
    """Return the earliest time (ms) of a sampling that is still in flight and useful; 0 if unknown."""
    version = state.router.adapters.versions.get(state.oldest_useful)
    trained_at = version.created_at if version is not None else 0
    if not settings.advantages.deadline_s:
        return trained_at
    return max(trained_at, now_ms - int((settings.advantages.deadline_s + settings.advantages.grace_s) * 1000))
