"""Members of a consumer group that read nothing: membership shows that a process is alive, or is the only one.

    IdleMember ──► a thread keeps the membership, also during a step of many minutes
    SoleMember ──► the group has a member ──► wait as long as one that was killed is kept ──► RefusedError
                   it has none ──► join, look again, commit a claim ──► the place is held
    membership lost, or this process frozen ──► no other member, and our claim still there ──► the place is held again
                                            └──► claim of another ──► this process ends with code 75
    several of a kind ──► one holds the place, a member with its URL ──► the others wait, and know where it is

The broker accepts commits only from members of the current generation, so of two that join at once at most one claims
the place. A member that was killed is kept for kafka.session_timeout_s.

Not covered: records that a process gave to a producer before it was frozen; they are written when it wakes.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Self

import confluent_kafka as ck

from streams.errors import LogError, RefusedError
from streams.kafka import times
from streams.kafka.client import POLL_S, admin_client, consumer
from streams.kafka.record import TopicPartition
from streams.kafka.retry import ANSWER_S, TRANSIENT, BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.output import moment
from streams.processes.watchdog import end_process
from streams.settings.model import Settings

POLL_EVERY_S = 0.5
SURE = 0.6
"""Part of a session for which the place is held after a look at it: the last heartbeat may be a quarter older."""
MARGIN_S = 2.0
"""How long a killed member may still be listed after its session ends."""

log = logging.getLogger("streamward.kafka")


class IdleMember:
    """A member of a group that reads nothing. A thread keeps the membership. Use as a context manager."""

    def __init__(self, settings: Settings, group: str, tp: TopicPartition, outage: BrokerOutage) -> None:
        """`tp`: the partition that the member subscribes to and commits."""
        self._settings, self._tp, self._outage, self._stopping = settings, tp, outage, threading.Event()
        self._group = settings.topics.prefix + group
        self._is_joined = False
        self._thread = threading.Thread(target=self._stay, name=f"member of {group}", daemon=True)

    def __enter__(self) -> Self:
        self._join()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._outage.close(self._client.close)

    def commit(self, next_offset: int, metadata: str = "") -> None:
        """Commit an offset, which is only shown. Raises KafkaException, LogError after an outage."""
        offsets = [ck.TopicPartition(*self._tp, next_offset, metadata=metadata)]
        self._outage.ask(lambda: self._client.commit(offsets=offsets, asynchronous=False), "to a commit")

    def _join(self, **config: object) -> None:
        session_ms = int(self._settings.kafka.session_timeout_s * 1000)
        self._client = consumer(
            self._settings.kafka,
            {
                "group.id": self._group,
                "enable.auto.commit": False,
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": session_ms // 4,
                "max.poll.interval.ms": max(300_000, session_ms),
                **config,
            },
        )
        self._client.subscribe([self._tp[0]], on_assign=self._read_nothing)

    def _read_nothing(self, client: ck.Consumer, _: list[ck.TopicPartition]) -> None:
        client.assign([])
        self._is_joined = True

    def _stay(self) -> None:
        while not self._stopping.wait(POLL_EVERY_S):
            self._client.poll(0)


class SoleMember(IdleMember):
    """The only process of its kind on a log. Use as a context manager; the end of the block leaves the place."""

    def __init__(
        self, settings: Settings, kind: str, stop: threading.Event, outage: BrokerOutage, url: str = ""
    ) -> None:
        """`kind`: its command, which is the name of the group, too. `url`: where others of its kind reach this one."""
        super().__init__(settings, kind, (topics(settings.topics)["adapters"].name, 0), outage)
        self._kind, self._stop = kind, stop
        words = f"{socket.gethostname()}, process {os.getpid()}, since {moment(times.now_ms())}"
        self._description = f"{words}, {url}" if url else words
        self._claim, self._member_id = str(uuid.uuid4()), ""
        self._between: Callable[[], None] | None = None
        self.others_at: float | None = None
        """When another member was last seen before the place was taken, by time.monotonic; None: there was none."""
        self._session_s = settings.kafka.session_timeout_s
        self._held_at = time.monotonic()

    @property
    def is_held(self) -> bool:
        """Whether this process was awake so lately that no other can have its place.

        What it asks counts from when it began to ask: it may be frozen before it has the answer.
        """
        return time.monotonic() - self._held_at <= SURE * self._session_s

    def waiting(self, between: Callable[[], None]) -> Self:
        """Wait for the place as long as another has it, and call `between` now and then meanwhile."""
        self._between = between
        return self

    def member_urls(self) -> list[str]:
        """Return the URLs of the members: the one that holds the place, and those that try to take it.

        Raises LogError if the broker does not answer.
        """
        try:
            names = [name for name, _ in self._members().values()]
        except ck.KafkaException as exc:
            raise LogError(f"group {self._group}: its members cannot be read: {exc.args[0].str()}; try again") from exc
        return [url for url in (name.rpartition(" ")[2] for name in names) if "://" in url]

    def __enter__(self) -> Self:
        """Take the place. Raises RefusedError if another process has it, StoppedWaiting, LogError."""
        patience_s = self._session_s + MARGIN_S
        until, is_told, asked_at = time.monotonic() + patience_s, False, time.monotonic()
        while (others := self._outage.ask(self._others, "which members a group has")) or not self._take():
            if others:
                self.others_at = time.monotonic()
            if self._between is not None:
                self._between()
                until = time.monotonic() + patience_s
            if time.monotonic() > asked_at + ANSWER_S:  # the broker was unreachable, and restarts each session
                until = time.monotonic() + patience_s
            problem = f"another `{self._kind}` works on this log: {'; '.join(others)} (group {self._group})"
            if others and time.monotonic() > until:
                raise RefusedError(
                    f"{problem}. It was not killed: it would be gone after {self._session_s:g} s "
                    "(kafka.session_timeout_s). Stop it first, or give this one a log of its own (topics.prefix)"
                )
            if others and not is_told and self._between is not None:
                log.info("%s. This one is the next", problem)
            elif others and not is_told:
                log.warning("%s. Waiting %g s for it to end; one that was killed is gone by then", problem, patience_s)
            if others:
                is_told = True
            if self._stop.wait(random.uniform(0.5, 1) * POLL_EVERY_S):  # noqa: S311 - of two that meet, one is first
                raise StoppedWaiting(f"stopping, as {problem}")
            asked_at = time.monotonic()
        self._thread.start()
        return self

    def _take(self) -> bool:
        """Join the group and claim the place; return whether it is ours. Otherwise the group is left again."""
        self._is_joined = is_taken = False
        self._join(**{"client.id": self._description})
        try:
            while not self._is_joined:
                message = self._client.poll(POLL_S)
                failed = None if message is None else message.error()
                if failed is not None and failed.code() not in TRANSIENT:
                    raise LogError(f"group {self._group} cannot be joined: {failed.str()}")
                self._outage.silent("to a member that joins")
            self._member_id = self._client.memberid() or ""
            asked_at = time.monotonic()
            if not self._outage.ask(self._others, "which members a group has"):
                self.commit(0, self._claim)
                self._held_at, is_taken = asked_at, True
        except ck.KafkaException as exc:
            log.info("group %s: the claim was not taken, trying again: %s", self._group, exc.args[0].str())
        finally:
            if not is_taken:
                self._outage.close(self._client.close)
                self._member_id = ""
        return is_taken

    def _members(self) -> dict[str, tuple[str, str]]:
        """Return description and host of the group's members, by their ids. Raises KafkaException."""
        client, timeout_s = admin_client(self._settings.kafka), self._settings.kafka.request_timeout_s
        # librdkafka (2.16) may abort where it describes a group while the broker is unreachable: this fails first
        client.list_topics(self._tp[0], timeout=ANSWER_S)
        described = client.describe_consumer_groups([self._group], request_timeout=timeout_s)[self._group]
        try:
            members = described.result().members
        except ck.KafkaException as exc:
            if exc.args[0].code() == ck.KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise
        return {member.member_id: (member.client_id, member.host.lstrip("/")) for member in members}

    def _others(self) -> list[str]:
        members = self._members().items()
        return [f"{name}, at {host}" for member_id, (name, host) in members if member_id != self._member_id]

    def _stay(self) -> None:
        while not self._stopping.wait(POLL_EVERY_S):
            asked_at = time.monotonic()
            self._client.poll(0)
            if not self.is_held or self._client.memberid() != self._member_id:
                asked_at = self._regain()
            self._held_at = asked_at

    def _regain(self) -> float:
        """Return when this process was the only member again, and no other was meanwhile; otherwise end it."""
        log.warning("group %s: lost its place, or was frozen: looking whether another has it", self._group)
        while not self._stopping.wait(POLL_EVERY_S):
            asked_at = time.monotonic()
            self._client.poll(0)
            member_id = self._client.memberid() or ""
            try:
                [commit] = self._client.committed([ck.TopicPartition(*self._tp)], timeout=ANSWER_S)
                members = self._members()
            except (ck.KafkaException, UnicodeDecodeError):  # no answer yet; the second is librdkafka's, of metadata
                continue
            if not (commit.metadata or "").startswith(self._claim):
                names = "; ".join(name for name, _ in members.values())
                end_process(
                    f"another `{self._kind}` has taken this one's place on this log ({names}), "
                    f"after it was silent for {self._session_s:g} s (kafka.session_timeout_s)"
                )
            if [*members] == [member_id]:
                self._member_id = member_id
                return asked_at
        return self._held_at
