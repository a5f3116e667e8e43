"""Wait for a broker that is away, say so, and go on.

    flush, commit, poll, … ──► nothing for NOTICE_S ──► one warning ──► it answers: one line, and on
                                                                    ├──► told to stop: StoppedWaiting
                                                                    └──► kafka.outage_s is over: LogError

A process that runs outlives its broker: what it has sent stays in librdkafka's bounded queue, calls are made again, and
nothing is committed that was not acknowledged. One Patience belongs to one thread and to all its clients, so that an
outage is told once. At the start of a process, and in commands, nobody has one: they fail within
kafka.request_timeout_s.

Not covered: Faust's workers, whose client waits by itself.
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
"""A broker that was silent for so long, while something was wanted of it, counts as away."""
PROBE_S = 2.0
"""An idle process asks this often whether the broker is still there."""
ANSWER_S = 2.0
"""How long one question may take that is asked again anyway."""
TICK_S = 0.2
"""How quickly a wait notices that the process should stop, and how soon a failed call is made again."""

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
        ck.KafkaError._RESOLVE,  # a pod's name goes with the pod
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
"""Errors that pass when the broker is back and has settled."""


class BrokerUnreachable(LogError):
    """The broker did not answer in time; it may later."""


class StoppedWaiting(LogError):
    """The process was told to stop while the broker was away. What was not acknowledged is done again."""


class BrokerOutage:
    """How long the clients of one thread wait for their broker: kafka.outage_s, or until `stop` is set."""

    def __init__(self, kafka: Kafka, stop: threading.Event, meter: Meter = OFF) -> None:
        """Waiting is a sign of life for `meter`; while the broker is away its condition `kafka` does not hold."""
        self._kafka, self._stop, self._meter = kafka, stop, meter
        self._heard_at = self._asked_at = time.monotonic()
        self._away_s: float | None = None  # None: it answers
        self._told = False
        self._given_up: threading.Thread | None = None

    def answered(self) -> None:
        """Take note that the broker spoke."""
        if self._told:
            log.info("Kafka at %s answers again, after %.0f s", self._kafka.bootstrap, self._away_s)
            self._meter.ready("kafka")
        self._away_s, self._told, self._heard_at = None, False, time.monotonic()

    def silent(self, wanted: str) -> None:
        """Take note that what was `wanted` did not come; called again and again while it does not.

        Raises StoppedWaiting once the process should stop, LogError once the broker was away for kafka.outage_s.
        """
        self._meter.heartbeat()
        now = time.monotonic()
        step_s, self._asked_at = now - self._asked_at, now
        if self._away_s is None or (step_s > NOTICE_S and not self._told):
            self._away_s = 0.0  # nobody asked meanwhile; or this process was frozen, and must not blame the broker
        else:
            self._away_s += min(step_s, NOTICE_S)
        if self._away_s < NOTICE_S:
            return
        said_nothing = f"Kafka at {self._kafka.bootstrap} has not answered for {self._away_s:.0f} s ({wanted})"
        if self._stop.is_set():
            raise StoppedWaiting(f"{said_nothing}: stopping all the same. What is not acknowledged is done again")
        if self._away_s >= self._kafka.outage_s:
            raise LogError(
                f"{said_nothing}, and kafka.outage_s is {self._kafka.outage_s:g}. Nothing is lost: start this process "
                "again when the broker runs (`streamward doctor`), or set kafka.outage_s higher"
            )
        if not self._told:
            log.warning("%s: waiting, %g s at most", said_nothing, self._kafka.outage_s)
            self._meter.not_ready("kafka", said_nothing)
            self._told = True

    def probe(self, ask: Callable[[], object]) -> None:
        """Call `ask` if nothing was heard of the broker for PROBE_S. Raises as `silent`, and what cannot pass."""
        if time.monotonic() < self._heard_at + PROBE_S:
            return
        try:
            ask()
        except ck.KafkaException as exc:
            if exc.args[0].code() not in TRANSIENT:
                raise LogError(f"{exc.args[0].str()}. Check it with `streamward doctor`") from exc
            self.silent("to a question whether it is there")
        else:
            self.answered()

    def ask(self, call: Callable[[], T], wanted: str, *, here: bool = False) -> T:
        """Return what `call` returns, made again as long as it fails because the broker is away.

        It runs in a thread, since some calls of librdkafka wait for minutes for a broker that is frozen, whatever their
        time-out is. `here` runs it in this one: inside a callback of `poll`, any other would wait for that poll to end.
        Raises as `silent`, and any other error of `call`.
        """
        while True:
            try:
                result = call() if here else self._aside(call, wanted)
            except BrokerUnreachable:
                self.silent(wanted)
            except ck.KafkaException as exc:
                if exc.args[0].code() not in TRANSIENT:
                    raise
                self.silent(wanted)
            else:
                self.answered()
                return result
            time.sleep(TICK_S)

    def _aside(self, call: Callable[[], T], wanted: str) -> T:
        future: Future[T] = Future()
        thread = threading.Thread(target=_into, args=(future, call), name="asks-kafka", daemon=True)
        thread.start()
        while not wait([future], TICK_S).done:
            try:
                self.silent(wanted)
            except LogError:
                self._given_up = thread
                raise
        return future.result()

    def close(self, close: Callable[[], None]) -> None:
        """Call `close`, which closes a client; behind this back, later, if a call that was given up still uses it."""
        waits_for = self._given_up
        if waits_for is None or not waits_for.is_alive():
            close()
            return

        def later() -> None:
            waits_for.join()
            close()

        threading.Thread(target=later, name="closes-kafka", daemon=True).start()


def _into(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as exc:  # whatever it is, it is raised where the call was asked for
        future.set_exception(exc)
