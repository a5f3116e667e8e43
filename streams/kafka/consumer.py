"""Follow topics as a member of a consumer group, and commit finished records.

    group's commit ──► GroupConsumer ──► Record ──► OffsetTracker: which are done ──► commit
                          └── no commit: the first record; cut by retention, or beyond the end: LogError

No offset is ever reset silently: if retention cut unread records, the error says how many, and a person decides. A
commit for a partition that this member has lost (its session timed out, its process was frozen) is dropped: the new
owner reads from the last commit, so some work is done twice, and ids reveal it.

Delivery is at least once: a process can die between a write and its commit.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import confluent_kafka as ck

from streams.errors import LogError, SettingsError
from streams.kafka.client import POLL_S, unreachable
from streams.kafka.group_protocol import is_by_broker, member_config
from streams.kafka.lag_meter import LagMeter
from streams.kafka.reader import Reader, bounds_of, consume, is_refused, is_unknown_topic, trouble_of
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import ANSWER_S, MISSING_S, NOTICE_S, TICK_S, TRANSIENT, BrokerOutage
from streams.kafka.topic_ids import TopicIds, note
from streams.kafka.topics import topics, wrong_partitions
from streams.observability import catalog
from streams.settings.model import Settings

log = logging.getLogger("streamward.kafka")

RENEW_S = 3.0
"""Until a new client asks a group that refused one."""
T = TypeVar("T")
OnPartitions = Callable[[list[TopicPartition]], None]


def _ignore(_: list[TopicPartition]) -> None:
    """Do nothing, for consumers that keep no state per partition."""


@dataclass(frozen=True, slots=True)
class OnAssignment:
    """Callbacks of `GroupConsumer.poll` for partitions that are gained, about to be revoked, and already lost. Nothing
    can be committed for lost partitions. A consumer that keeps state per partition drops it there.
    """

    gained: OnPartitions = _ignore
    revoked: OnPartitions = _ignore
    lost: OnPartitions = _ignore


IGNORE_ASSIGNMENT = OnAssignment()


class GroupConsumer(Reader):
    """Follows topics as a member of a consumer group; commits only through `commit`.

    Without a commit it begins at the first record. A commit below that, or beyond the end of the log, is a LogError
    from `poll`.

    `poll` waits while the broker is unreachable, for as long as `outage` says. What is read is counted on the
    outage's meter, for the stage that names the group (`policy` of `policy-default`); the meter's condition `kafka`
    holds once partitions are assigned.
    """

    COUNTS_RECORDS = True
    """Whether it meters its reading and lag; false in a subclass of which the stages do so themselves."""
    CONFIG: Mapping[str, object] = {}
    """Additional settings of the client."""
    TAKES_ALL_ANEW = False
    """Whether each change of the assignment revokes all partitions and assigns them again, also those that stay."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        labels: Iterable[str],
        outage: BrokerOutage,
        on_assignment: OnAssignment = IGNORE_ASSIGNMENT,
    ) -> None:
        self._group = group
        self._on_assignment = on_assignment
        self._outage: BrokerOutage = outage
        self._meter = outage.meter
        self._stage = group.partition("-")[0]
        self._next: dict[TopicPartition, int] = {}
        """Committed offset of each owned partition: the first one that is not done."""
        self._lag = LagMeter(self._meter, self._stage, settings.topics, self._positions)
        self._missing: tuple[float, str, LogError] | None = None  # since when, topic, error
        self._unanswered: dict[TopicPartition, int] = {}  # commits
        self._must_rejoin = False
        self._failed_begins = 0
        """Consecutive ones."""
        self._renews_at: float | None = None
        self._stopped: set[TopicPartition] = set()  # librdkafka gave them up: the broker did not know them
        self._reached_ends: dict[TopicPartition, int] = {}
        self._is_incremental = is_by_broker(settings.kafka)
        self._topics = [topics(settings.topics)[label].name for label in labels]
        super().__init__(
            settings,
            {
                "group.id": settings.topics.prefix + group,
                "enable.auto.commit": False,
                "on_commit": self._on_commit,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "max.poll.interval.ms": int(1000 * max(600, settings.kafka.outage_s + 60)),
                "fetch.max.bytes": 32 * 1024 * 1024,
                **member_config(settings.kafka, len(self._topics), by_broker=self._is_incremental),
                **self.CONFIG,
            },
            self._topics[0],
            outage,
        )
        self._topic_ids: TopicIds = TopicIds(settings.kafka, self._topics)
        self._subscribe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, count: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records, in partition order, as soon as there is one; an empty list after `timeout_s`.

        Raises LogError if the broker refuses (the topic stays missing, access is denied), if retention has cut what
        comes next, and after an outage of kafka.outage_s; SettingsError if partitions were added to a topic.
        """
        self._raise_trouble()
        self._meter.heartbeat()
        self._look_for_open_transactions()
        self._topic_ids.look()
        if self._renews_at is not None and time.monotonic() > self._renews_at:
            self._renew()
        elif self._must_rejoin:
            self._must_rejoin = False
            self._rejoin()
        messages = consume(self._consumer, count, timeout_s)
        if any(map(ck.Message.error, messages)):
            for message in (message for message in messages if message.error() is not None):
                self._note(message)
            messages = [message for message in messages if message.error() is None]
        self._look_for_missing()
        records = self._records(messages)
        if self.COUNTS_RECORDS:
            for record in records:
                self._lag.took((record.at.topic, record.at.partition), record.at.offset, record.timestamp_ms)
            self._lag.look()
        return self._checked(records)

    def _note(self, message: ck.Message) -> None:
        """Take note of an error that came in place of a record."""
        failed, error = message.error(), trouble_of(message)
        if failed.code() == ck.KafkaError._PARTITION_EOF:
            self._reached_ends[message.topic(), message.partition()] = message.offset()
        if error is None:
            return
        if is_unknown_topic(failed):
            self._missing = self._missing or (time.monotonic(), message.topic(), error)
            if failed.code() == ck.KafkaError._AUTO_OFFSET_RESET:
                self._stopped.add((message.topic(), message.partition()))
        elif failed.code() == ck.KafkaError._AUTO_OFFSET_RESET:
            topic, partition = message.topic(), message.partition()
            self._trouble = self._topic_ids.recreation(topic) or self._lost(topic, partition) or error
        elif not is_refused(failed) or not self._waits_for_others():
            self._trouble = error
        elif failed.code() == ck.KafkaError._FATAL:  # this client does not ask again
            self._renews_at = time.monotonic() + RENEW_S

    def take_reached_ends(self) -> dict[TopicPartition, int]:
        """Return the ends that were reached in polls since the last call: everything below was returned.

        Between the last record and the end are markers of transactions and aborted records, which are never returned.
        """
        ends, self._reached_ends = self._reached_ends, {}
        return ends

    def _waits_for_others(self) -> bool:
        """Return whether to wait while all members of the group distribute its partitions by another protocol.

        A classic member keeps asking, and joins once they have left; for one of `consumer` a new client asks.
        """
        return False

    def _look_for_missing(self) -> None:
        """Treat a topic that was unknown for long enough as missing, or continue reading if the broker knows it by
        now."""
        if self._missing is None or time.monotonic() < self._missing[0] + MISSING_S:
            return
        (_, topic, error), self._missing = self._missing, None
        try:
            metadata = self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        except ck.KafkaException:
            if self._stopped:
                self._missing = (time.monotonic(), topic, error)
            return  # no answer; a broker that answers reports it again
        if metadata.error is not None:
            self._trouble = error
        elif self._stopped:
            self._stopped.clear()
            self._rejoin()  # librdkafka starts a partition when it is assigned, and seeks in none it gave up

    def due(self, next_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the part of `next_offsets` that is neither committed nor being committed, without lost partitions."""
        return {
            tp: offset
            for tp, offset in next_offsets.items()
            if tp in self._next and offset != self._unanswered.get(tp, self._next[tp])
        }

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Ask for a commit that everything below `next_offsets` is done; a later `poll` takes the answer, or `close`.

        What fails for a while is `due` again, and LogError comes from `poll` if the broker refuses. Nothing waits here:
        a node that was frozen is in no metadata for a moment, upon which librdkafka (2.10 to 2.16) leaves it, but makes
        no new connection before every record from the old one is polled. A caller that waited here would wait for ever.
        """
        if due := self.due(next_offsets):
            self._consumer.commit(offsets=[self._committing(tp, offset) for tp, offset in due.items()])
            self._unanswered |= due

    def _committing(self, tp: TopicPartition, offset: int) -> ck.TopicPartition:
        """Return the content of a commit of this partition."""
        return ck.TopicPartition(*tp, offset, metadata=note(self._topic_ids.of(tp[0])))

    def _on_commit(self, failed: ck.KafkaError | None, partitions: list[ck.TopicPartition]) -> None:
        for commit in partitions:
            tp = (commit.topic, commit.partition)
            if self._unanswered.get(tp) == commit.offset:
                del self._unanswered[tp]
            error = commit.error or failed
            if error is None and tp in self._next:
                self._next[tp] = commit.offset
                self._lag.done(tp, commit.offset)
            # a lost partition has a new owner, which reads from the last commit: at least once
            elif error is not None and error.code() not in _LOST_MEMBERSHIP | TRANSIENT:
                self._trouble = LogError(
                    f"{tp[0]}[{tp[1]}]: committing {commit.offset} failed: {error.str()}. "
                    "Nothing is lost: it comes again"
                )

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member owns now."""
        return [(tp.topic, tp.partition) for tp in self._consumer.assignment()]

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition; 0 where nothing was committed.

        Raises BrokerUnreachable if the broker does not answer within NOTICE_S: then `poll`, and ask again.
        """
        try:
            return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in self._commits(partitions)}
        except ck.KafkaException as exc:
            raise unreachable(self._settings.kafka, exc.args[0].str(), within_s=NOTICE_S) from exc

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the same for partitions that this member owns, from its own knowledge."""
        return {tp: self._next[tp] for tp in partitions}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions until `resume`."""
        self._consumer.pause([ck.TopicPartition(*tp) for tp in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions again."""
        self._consumer.resume([ck.TopicPartition(*tp) for tp in partitions])

    def close(self) -> None:
        """Leave the group, once the commits that were asked for are answered; see `BrokerOutage.close`."""
        self._outage.close(self._consumer.close)

    # --- where to begin -----------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        on_revoke = partial(self._on_revoke, self._on_assignment.revoked)
        on_lost = partial(self._on_revoke, self._on_assignment.lost)
        self._consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def _rejoin(self) -> None:
        """Join again; with a new client if this one twice failed to learn where to begin in its partitions.

        What the callback of an assignment asks may be for the connection that librdkafka ends only when its records are
        polled, as `commit` says, and until the callback returns nothing is polled.
        """
        if self._failed_begins > 1:
            log.warning("group %s: the broker answers all but where to begin: joining with a new client", self._group)
            self._renew()
        else:
            self._consumer.unsubscribe()
            self._subscribe()

    def _renew(self) -> None:
        """Join with a new client."""
        self._renews_at = None
        former = self._consumer
        self._open_client()
        self._outage.close(former.close)
        self._subscribe()

    def _on_assign(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        """Begin with the partitions of an assignment; with `consumer` it names only those that come."""
        tps = [(tp.topic, tp.partition) for tp in partitions]
        if not self._is_incremental:
            self._begin(tps)
        elif tps or not self._next:
            self._begin([*self._give_back(), *tps] if self.TAKES_ALL_ANEW else tps)

    def _on_revoke(self, callback: OnPartitions, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        """End partitions; with `consumer` others may stay."""
        tps = [(tp.topic, tp.partition) for tp in partitions]
        if not (self._is_incremental and self.TAKES_ALL_ANEW) or self._next.keys() <= set(tps):
            self._end(callback, tps)
            return
        stay = [tp for tp in self._give_back() if tp not in tps]
        self._begin(stay)

    def _give_back(self) -> list[TopicPartition]:
        """End all partitions, also for librdkafka, and return them."""
        owned = list(self._next)
        self._end(self._on_assignment.revoked, owned)
        self._consumer.incremental_unassign([ck.TopicPartition(*tp) for tp in owned])
        return owned

    def _begin(self, tps: list[TopicPartition]) -> None:
        """Start at the commit, else at the first record; read nothing if the commit cannot be right."""
        assign = self._consumer.incremental_assign if self._is_incremental else self._consumer.assign
        try:
            self._refuse_added(tps)
            self._ask(self._topic_ids.ask, "which topics there are")
            starts = self._starts(tps) if tps else []
        except ck.KafkaException as exc:
            self._must_rejoin = exc.args[0].code() in TRANSIENT
            self._failed_begins += 1
            if not self._must_rejoin:
                self._trouble = unreachable(self._settings.kafka, exc.args[0].str())
        except (LogError, SettingsError) as exc:
            self._trouble = exc
        else:
            assign(starts)
            self._failed_begins = 0
            self._next |= {(tp.topic, tp.partition): max(tp.offset, 0) for tp in starts}
            self._meter.add(catalog.REBALANCES, self._stage)
            self._meter.ready("kafka")
            self._on_assignment.gained(tps)
            return
        assign([])

    def _refuse_added(self, tps: Iterable[TopicPartition]) -> None:
        """Raise SettingsError for a partition that was added to its topic."""
        shapes = {topic.name: topic for topic in topics(self._settings.topics).values()}
        for name, partition in tps:
            if partition >= shapes[name].partitions:
                raise wrong_partitions(shapes[name], f"a partition {partition}")

    def _end(self, callback: OnPartitions, tps: list[TopicPartition]) -> None:
        callback(tps)
        for tp in tps:
            self._next.pop(tp, None)
            self._unanswered.pop(tp, None)
            self._reached_ends.pop(tp, None)
        self._stopped.difference_update(tps)
        self._lag.revoked(tps)

    def _positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the next offset and the end of each partition, as far as known, without asking the broker."""
        positions = {}
        for tp, offset in self._next.items():
            bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), cached=True)
            if bounds is not None and (end := self.end(tp)) is not None:
                positions[tp] = (max(offset, bounds[0]), end)
        return positions

    def _starts(self, tps: list[TopicPartition]) -> list[ck.TopicPartition]:
        """Return where to begin in each of these partitions. Raises LogError if a commit cannot be right."""
        return [self._start(tp) for tp in self._commits_here(tps)]

    def _start(self, committed: ck.TopicPartition) -> ck.TopicPartition:
        tp, offset = (committed.topic, committed.partition), committed.offset
        if offset < 0:
            return ck.TopicPartition(*tp, ck.OFFSET_BEGINNING)
        if (wrong := self._wrong(tp, "has committed", offset)) is not None:
            raise wrong
        return ck.TopicPartition(*tp, offset)

    def _lost(self, topic: str, partition: int) -> LogError | None:
        """Return what is wrong with a position that the broker reports as out of range."""
        partition_position = ck.TopicPartition(topic, partition)
        try:
            offsets = [
                tp.offset
                for tp in (*self._consumer.position([partition_position]), *self._commits([(topic, partition)]))
            ]
            return self._wrong((topic, partition), "is at", max(offsets))
        except ck.KafkaException:
            return None

    def _wrong(self, tp: TopicPartition, verb: str, offset: int) -> LogError | None:
        """Return the error if `offset` is neither in the partition nor its end."""
        first, end = self._ask(lambda timeout_s: bounds_of(self._consumer, tp, timeout_s), "to where a topic ends")
        return self._outside(tp, verb, offset, (first, end))

    def _outside(self, tp: TopicPartition, verb: str, offset: int, bounds: tuple[int, int]) -> LogError | None:
        """Return the error if `offset` is neither within the bounds, first and next offset, nor their end."""
        first, end = bounds
        if offset < first:
            return LogError(
                f"{tp[0]}[{tp[1]}]: group {self._settings.topics.prefix}{self._group} {verb} {offset}, but the first "
                f"record has offset {first}: retention has cut {first - offset} that this group did not read. "
                f"Restore them, or accept the loss with `streamward admin offsets skip --group {self._group}`"
            )
        if offset > end:
            return LogError(
                f"{tp[0]}[{tp[1]}]: group {self._settings.topics.prefix}{self._group} {verb} {offset}, but the "
                f"partition ends at {end}. The topic was recreated or lost records; reset the group's offsets to the "
                "earliest"
            )
        return None

    def _commits_here(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        """Return the commits, without the offsets that were committed in a deleted topic of the same name."""
        commits = self._commits(partitions)
        for commit in commits:
            if self._topic_ids.is_of_another((commit.topic, commit.partition), commit.offset, commit.metadata):
                commit.offset = ck.OFFSET_INVALID
        return commits

    def _commits(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        tps = [ck.TopicPartition(*tp) for tp in partitions]
        return self._ask(lambda timeout_s: self._consumer.committed(tps, timeout=timeout_s), "for commits")

    def _ask(self, call: Callable[[float], T], subject: str) -> T:
        """Return what `call` returns; its argument is the time limit in seconds.

        Transient failures are retried for NOTICE_S: a caller that does not poll must not wait longer; see `commit`.
        """
        deadline = time.monotonic() + NOTICE_S
        while True:
            try:
                result = call(ANSWER_S)
            except ck.KafkaException as exc:
                if exc.args[0].code() not in TRANSIENT or time.monotonic() > deadline:
                    raise
                self._outage.silent(subject)
                time.sleep(TICK_S)
            else:
                self._outage.answered()
                return result


_LOST_MEMBERSHIP = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.FENCED_MEMBER_EPOCH,
    ck.KafkaError.STALE_MEMBER_EPOCH,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError._ASSIGNMENT_LOST,
}


class OffsetTracker:
    """Tracks which records of one partition are done. Only a contiguous prefix may be committed."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # read, in order; finished ones leave on the left
        self._done: set[int] = set()
        self._next: int | None = None
        self._position = 0

    def read(self, offset: int) -> None:
        """Add an offset that was read. Offsets come in order; the log may have gaps."""
        self._open.append(offset)
        self._position = offset + 1

    def reach_end(self, end: int) -> None:
        """Take the offsets from the last record to `end` as done: they hold no record that a reader gets."""
        if end > self._position:
            self.read(end - 1)
            self.done(end - 1)

    def done(self, offset: int) -> None:
        """Mark the record at `offset` as done."""
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._next = self._open.popleft() + 1
            self._done.discard(self._next - 1)

    @property
    def next_offset(self) -> int | None:
        """The first offset that is not done; None if none is done."""
        return self._next

    @property
    def left(self) -> int:
        """Records read and not done."""
        return len(self._open) - len(self._done)
