"""An agent's view of its policies, from the log.

    adapters ──► AdapterFollower ──► which version answers ──┐
    batches, groups ──► Admission ──► how many tasks may start ──┴─► PolicyState of each policy ◄── PolicyLog
    dead-letters ──► answers that their scorer gave up on ──┘
    responses [of the agent's partitions] ──► look_up ──► answered_tasks, which need no answer any more

A PolicyLog follows one policy, or for a fleet all of them, with one client. The first three topics are keyed by policy,
so one partition of each holds everything about one. Adapters and batches are read from the start, groups from the first
that a batch to come may still hold, dead letters from the first whose task may be in flight. Records here that cannot
be decoded are skipped; the stages that own these topics write the dead letters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from schemas.conventions import SCORELESS
from schemas.events import AdvantagedGroup, Batch, DeadLetter, Event, Response
from schemas.serde import Poison
from streams.adapters.admission.admission import Admission, RecentTasks
from streams.adapters.follower import AdapterFollower
from streams.adapters.router import VersionRouter
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.record import Record, TopicPartition, partition_of, source_key
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Batches, Settings

log = logging.getLogger("streamward.policy")

E = TypeVar("E", bound=Event)

GROUPS_READ = 20_000
"""Maximum number of groups of a partition that are read at the start for all policies."""

PAUSE_S = 2.0
"""After this long without a poll, fetched records may be out of date."""
CLOCK_SKEW_MS = 60_000
"""Allowed clock difference between writers of tasks and responses when the log is searched by time."""


class PolicyState:
    """One policy's state in the log: the answering version, and the sampled and trained groups. No clock, no I/O."""

    def __init__(self, router: VersionRouter, rule: Batches, unscored: RecentTasks | None = None) -> None:
        """Start before anything was sampled or trained; `router` is kept up to date by an AdapterFollower."""
        self.router, self._rule = router, rule
        self.admission = Admission(rule, unscored)
        self._last_group: dict[int, int] = {}  # batch sequence -> offset of its last group

    @property
    def oldest_useful(self) -> int:
        """Minimum number of batches that a version must have taken for the next batch to hold its groups."""
        return self.admission.sequence - self._rule.max_policy_lag

    @property
    def next_useful(self) -> int:
        """The offset of the first group that a future batch may hold."""
        return self._last_group.get(self.oldest_useful - 1, -1) + 1

    def batches_of(self, version: int) -> int:
        """Return how many batches the policy had taken by a version."""
        return self.router.adapters.versions[version].trained_batches

    def take(self, event: Batch | AdvantagedGroup, offset: int) -> None:
        """Take in an event of this policy, with its offset."""
        if isinstance(event, AdvantagedGroup):
            self.admission.group(event, offset)
            return
        self.admission.batch(event)
        self._last_group[event.sequence] = max(event.groups_offsets, default=-1)
        self._last_group.pop(self.oldest_useful - 2, None)


class PolicyLog:
    """Follows adapters, batches and groups of one policy, or of all, and dead letters. `close` it at the end."""

    def __init__(self, settings: Settings, outage: BrokerOutage, policy: str | None = None) -> None:
        """Read the log, of `policy` or of every one. Raises NotFoundError if a topic is missing, LogError as `read`."""
        self._settings, self.outage, self._is_fleet = settings, outage, policy is None
        self._serves: Callable[[str], bool] = settings.fleet.serves if policy is None else policy.__eq__
        self._adapters = AdapterFollower(settings, outage, self._serves)
        self._states: dict[str, PolicyState] = {}
        self._unscored = RecentTasks()
        self._samplings: dict[int, list[CompleteSampling]] = {}  # by partition
        named = topics(settings.topics)
        self._events = {named["batches"].name: Batch, named["groups"].name: AdvantagedGroup}
        self._letters, self._responses = named["dead-letters"].name, named["responses"].name
        everywhere = range(settings.topics.policy_partitions)
        partitions = everywhere if policy is None else [self._partition(policy)]
        bounds = self.outage.ask(lambda: offsets(settings, ("batches", "groups")), "to where topics end")
        bounds = {tp: bound for tp, bound in bounds.items() if tp[1] in partitions}
        others = {tp: end for tp, (_, end) in bounds.items()} | self._letter_starts()
        newer = self._adapters.assign(partitions, others)
        if policy is not None:
            self.state(policy)
        for topic in self._events:  # batches first: what groups matter depends on them
            ends = {tp: end for tp, (_, end) in bounds.items() if tp[0] == topic}
            starts = {tp: self._first_offset(tp, *bounds[tp]) for tp in ends}
            for record in read(settings, starts, ends, outage=outage):
                self._take(record)
        for record in newer:
            self._take(record)
        self._polled = time.monotonic()

    def close(self) -> None:
        """Close the client."""
        self._adapters.close()

    def state(self, policy: str) -> PolicyState:
        """Return the state of a policy."""
        if policy not in self._states:
            self._states[policy] = PolicyState(self._adapters.router(policy), self._settings.batches, self._unscored)
        return self._states[policy]

    def follow(self) -> None:
        """Take in new records; after a pause, at least every adapter event in the log by now.

        librdkafka keeps fetching while a round is decoded, but not in a frozen process, nor while the broker is
        unreachable. Its fetched records may then be out of date, so the broker is asked for the ends of the log.
        """
        paused = time.monotonic() - self._polled > PAUSE_S
        records = self._adapters.catch_up() if paused else []
        for record in (*records, *self._adapters.poll()):
            self._take(record)
        self._polled = time.monotonic()

    def look_up(self, committed: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Read from `responses` the tasks that have a complete sampling, for `answered_tasks` of these partitions.

        A task and its responses have the same key, hence the same partition number. `responses` is read from the time
        of the first uncommitted task, and from where samplings may be in flight: not before a group that is open now
        could have begun (`advantages.deadline_s`).
        """
        responses = topics(self._settings.topics)["responses"].name
        bounds = self.outage.ask(lambda: offsets(self._settings, ["tasks", "responses"]), "to where topics end")
        uncommitted = _first_times(self._settings, committed, bounds, self.outage)
        in_flight = (_in_flight_since(self._settings, state, now_ms) for state in self._all_states().values())
        in_flight_ms = min(in_flight, default=now_ms)
        since_ms = max(0, min([*uncommitted.values(), in_flight_ms]) - CLOCK_SKEW_MS)
        starts = self.outage.ask(lambda: offsets_at(self._settings, ["responses"], since_ms), "to where a time is")
        ends = {(responses, partition): bounds[responses, partition][1] for _, partition in committed}
        starts = {tp: starts[tp] if starts[tp] >= 0 else end for tp, end in ends.items()}
        self._samplings |= {partition: [] for _, partition in committed}
        for sampling in _complete_samplings(read(self._settings, starts, ends, outage=self.outage), self._serves):
            self._samplings[sampling.partition].append(sampling)

    def answered_tasks(self, policy: str, partitions: Iterable[int]) -> dict[int, set[str]]:
        """Return, by partition, the tasks of a policy that had a complete sampling when it was last looked up.

        An agent that died between an answer and its commit finds the answer here. It also counts samplings as in flight
        again if a future batch may hold them and their group is not out yet.
        """
        state, answered = self.state(policy), dict[int, set[str]]()
        for partition in partitions:
            samplings = [sampling for sampling in self._samplings.get(partition, ()) if sampling.policy == policy]
            answered[partition] = {sampling.task_id for sampling in samplings}
            for sampling in samplings:
                if sampling.purpose == "train" and sampling.batches >= state.oldest_useful:
                    limit_ms = give_up_ms(self._settings, sampling.timestamp_ms)
                    state.admission.start(sampling.task_id, give_up_ms=limit_ms)
        return answered

    def _all_states(self) -> Mapping[str, PolicyState]:
        """Return the state of each policy in the log."""
        for policy in self._adapters.policies:
            self.state(policy)
        return self._states

    def _partition(self, policy: str) -> int:
        return partition_of(policy, self._settings.topics.policy_partitions)

    def _first_offset(self, tp: TopicPartition, first: int, end: int) -> int:
        """Return where reading begins: for `groups` at the first that a future batch of any policy may hold. Some
        policies are idle, so at most GROUPS_READ are read: their older groups are not counted, and briefly a few too
        many tasks may start.
        """
        if self._events[tp[0]] is Batch:
            return first
        states = [state for policy, state in self._all_states().items() if self._partition(policy) == tp[1]]
        start = max(first, min((state.next_useful for state in states), default=first))
        return max(start, end - GROUPS_READ) if self._is_fleet else start

    def _letter_starts(self) -> dict[TopicPartition, int]:
        """Return where reading dead letters begins: earlier ones are about tasks that are no longer in flight."""
        rule, day_s = self._settings.advantages, 86_400
        since_ms = times.now_ms() - CLOCK_SKEW_MS - int((rule.deadline_s or day_s) + rule.grace_s) * 1000
        starts = self.outage.ask(lambda: offsets_at(self._settings, ["dead-letters"], since_ms), "to where a time is")
        ends = self.outage.ask(lambda: offsets(self._settings, ["dead-letters"]), "to where topics end")
        return {tp: start if start >= 0 else ends[tp][1] for tp, start in starts.items()}

    def _take_letter(self, letter: DeadLetter | None) -> None:
        if letter is None or letter.reason not in SCORELESS or letter.source_topic != self._responses:
            return
        task_id = source_key(letter)
        self._unscored.add(task_id)
        for state in self._states.values():
            state.admission.give_up(task_id)

    def _take(self, record: Record) -> None:
        if record.at.topic == self._letters:
            self._take_letter(_usable(record, DeadLetter))
            return
        event = _usable(record, self._events[record.at.topic])
        if event is not None and self._serves(event.policy):
            self.state(event.policy).take(event, record.at.offset)


def _usable(record: Record, expected: type[E]) -> E | None:
    event = record.decode(expected)
    if isinstance(event, Poison):
        log.warning("skipped: %s", event.error, extra=record.log_extra)
        return None
    return event


# --- which tasks are answered -----------------------------------------------------------------------------------------


class CompleteSampling(NamedTuple):
    """A sampling with every slot in `responses`."""

    partition: int
    task_id: str
    policy: str
    purpose: str
    batches: int
    """Number of batches that its version had taken."""
    timestamp_ms: int
    """Timestamp of its first response."""


def _complete_samplings(records: Iterable[Record], serves: Callable[[str], bool]) -> Iterator[CompleteSampling]:
    """Yield the complete samplings in records of `responses`, of the policies that an agent serves."""
    begun: dict[tuple[int, str], tuple[int, set[int]]] = {}  # partition, sampling_id -> first timestamp, slots
    for record in records:
        response = _usable(record, Response)
        if response is None or not serves(response.policy):
            continue
        key = (record.at.partition, response.sampling_id)
        timestamp_ms, slots = begun.setdefault(key, (record.timestamp_ms, set()))
        slots.add(response.slot)
        if len(slots) >= response.group_size:
            purpose = response.metadata.get("purpose", "")
            about = (response.task_id, response.policy, purpose, response.batches)
            yield CompleteSampling(record.at.partition, *about, timestamp_ms)


def give_up_ms(settings: Settings, since_ms: int, deadline_ms: int | None = None) -> int | None:
    """Return when a group is overdue: deadline, advantages.grace_s and a minute; None if it has no deadline."""
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
    versions = state.router.adapters.versions.values()
    useful = (version for version in versions if version.trained_batches >= state.oldest_useful)
    oldest = min(useful, key=lambda version: version.version, default=None)
    trained_at = 0 if oldest is None else oldest.created_at
    if not settings.advantages.deadline_s:
        return trained_at
    return max(trained_at, now_ms - int((settings.advantages.deadline_s + settings.advantages.grace_s) * 1000))
