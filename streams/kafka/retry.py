"""Wait out an unreachable broker, and log it once.

    flush, commit, poll, … ──► no answer for NOTICE_S ──► one warning ──► it answers: one line, and on
                                                                      ├──► asked to stop: StoppedWaiting
                                                                      └──► kafka.outage_s is over: LogError

A running process outlives its broker: what it has sent stays in librdkafka's bounded queue, calls are retried, and
nothing is committed before it was acknowledged. One BrokerOutage belongs to one thread and to all its clients, and
those of further threads are made from it, so that an outage is logged once. It also ends a long read when the process
should stop. Commands, and the first request of a starting process, have none: they fail within kafka.request_timeout_s.
Faust's client waits by itself and has none either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

import confluent_kafka as ck

from streams.errors import LogError
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Kafka

NOTICE_S = 5.0
"""A broker that leaves requests unanswered for this long counts as unreachable."""
PROBE_S = 2.0
"""How often an idle process checks that the broker still answers."""
ANSWER_S = 2.0
"""Time limit of one request that is retried anyway."""
MISSING_S = 30.0
"""How long a topic may be unknown to the broker before it counts as missing: librdkafka, too, gives a new topic as long
to spread (topic.metadata.propagation.max.ms)."""
TICK_S = 0.2
"""How quickly a wait notices that the process should stop, and the delay before a failed call is retried."""

log = logging.getLogger("streamward.kafka")

T = TypeVar("T")

TRANSIENT = frozenset(
    {
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._TIMED_OUT_QUEUE,
        ck.KafkaError._WAIT_COORD,
        ck.KafkaError._WAIT_CACHE,
        ck.KafkaError._DESTROY_BROKER,  # librdkafka replaces its handle of a node while a request waits for it
        ck.KafkaError._RESOLVE,  # a Pod's name is gone with the Pod
        ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
        ck.KafkaError.NOT_COORDINATOR,
        ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ck.KafkaError.REQUEST_TIMED_OUT,
        ck.KafkaError.NOT_ENOUGH_REPLICAS,
        ck.KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.BROKER_NOT_AVAILABLE,
        ck.KafkaError.REPLICA_NOT_AVAILABLE,
        ck.KafkaError.NETWORK_EXCEPTION,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that pass once the broker is back and has settled."""


class BrokerUnreachable(LogError):
    """The broker did not answer in time; it may later."""


class StoppedWaiting(LogError):
    """The process was asked to stop while the broker was unreachable. What was not acknowledged is done again."""


class StoppedReading(StoppedWaiting):
    """The process was asked to stop while it read a long range of the log. The next one reads it again."""


class BrokerOutage:
    """How long the clients of one thread wait for their broker: kafka.outage_s, or until `stop` is set."""

    def __init__(self, kafka: Kafka, stop: threading.Event, meter: Meter = OFF) -> None:
        """Waiting counts as progress for `meter`; its condition `kafka` fails while the broker is unreachable."""
        self._kafka, self._stop, self.meter = kafka, stop, meter
        self._heard_at = self._asked_at = time.monotonic()
        self._silent_s: float | None = None  # None: it answers
        self._warned = False
        self._warnings: set[BrokerOutage] = set()
        """The process's members that noticed the outage: the first logs it, and the last logs its end."""
        self._abandoned: threading.Thread | None = None

    def of_another_thread(self) -> BrokerOutage:
        """Return one for another thread of the same process."""
        outage = BrokerOutage(self._kafka, self._stop, self.meter)
        outage._warnings = self._warnings
        return outage

    def answered(self) -> None:
        """Note that the broker answered."""
        self._warnings.discard(self)
        if self._warned and not self._warnings:
            log.info("Kafka at %s answers again, after %.0f s", self._kafka.bootstrap, self._silent_s)
            self.meter.ready("kafka")
        self._silent_s, self._warned, self._heard_at = None, False, time.monotonic()

    def silent(self, subject: str) -> None:
        """Note that `subject` did not come; called repeatedly until it does.

        Raises StoppedWaiting once the process should stop, LogError once the outage has lasted kafka.outage_s.
        """
        self.meter.heartbeat()
        now = time.monotonic()
        step_s, self._asked_at = now - self._asked_at, now
        if self._silent_s is None or (step_s > NOTICE_S and not self._warned):
            self._silent_s = 0.0  # nothing was asked meanwhile, or this process was frozen: not the broker's fault
        else:
            self._silent_s += min(step_s, NOTICE_S)
        if self._silent_s < NOTICE_S:
            return
        problem = f"Kafka at {self._kafka.bootstrap} has not answered for {self._silent_s:.0f} s ({subject})"
        if self._stop.is_set():
            raise StoppedWaiting(f"{problem}: stopping anyway. What is not acknowledged is done again")
        if self._silent_s >= self._kafka.outage_s:
            raise LogError(
                f"{problem}, and kafka.outage_s is {self._kafka.outage_s:g}. Nothing is lost: start this process "
                "again when the broker runs (`streamward doctor`), or set kafka.outage_s higher"
            )
        if not self._warned:
            if not self._warnings:
                log.warning("%s: waiting, %g s at most", problem, self._kafka.outage_s)
                self.meter.not_ready("kafka", problem)
            self._warnings.add(self)
            self._warned = True

    def read_on(self, topic: str) -> None:
        """Return if `topic` should be read further; raise StoppedReading once the process should stop."""
        if self._stop.is_set():
            raise StoppedReading(f"stopping while {topic} is read; the next process reads it again")

    def probe(self, ask: Callable[[], object]) -> None:
        """Call `ask` after PROBE_S without an answer. Raises as `silent`, and LogError for what does not pass."""
        if time.monotonic() < self._heard_at + PROBE_S:
            return
        try:
            ask()
        except ck.KafkaException as exc:
            if exc.args[0].code() not in TRANSIENT:
                raise LogError(f"{exc.args[0].str()}. Check it with `streamward doctor`") from exc
            self.silent("to a probe")
        else:
            self.answered()

    def ask(self, call: Callable[[], T], subject: str) -> T:
        """Return what `call` returns, retried while the broker is unreachable.

        It runs in a thread of its own, since some calls of librdkafka wait for a frozen broker for minutes, whatever
        their time limit. Raises as `silent`, and any other error of `call`.
        """
        while True:
            try:
                result = self._aside(call, subject)
            except BrokerUnreachable:
                self.silent(subject)
            except ck.KafkaException as exc:
                if exc.args[0].code() not in TRANSIENT:
                    raise
                self.silent(subject)
            else:
                self.answered()
                return result
            time.sleep(TICK_S)

    def _aside(self, call: Callable[[], T], subject: str) -> T:
        future: Future[T] = Future()
        thread = threading.Thread(target=_run_into, args=(future, call), name="asks-kafka", daemon=True)
        thread.start()
        while not wait([future], TICK_S).done:
            try:
                self.silent(subject)
            except LogError:
                self._abandoned = thread
                raise
        return future.result()

    def close(self, close: Callable[[], None]) -> None:
        """Call `close`, which closes a client. If that takes longer than NOTICE_S, it is left to a thread.

        A client waits for a silent broker to answer its commits and abandoned calls.
        """

        def later() -> None:
            if self._abandoned is not None:
                self._abandoned.join()
            close()

        future: Future[None] = Future()
        threading.Thread(target=_run_into, args=(future, later), name="closes-kafka", daemon=True).start()
        if wait([future], NOTICE_S).done:
            future.result()


def _run_into(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as exc:  # raised in the thread that asked
        future.set_exception(exc)
