"""The Faust worker: one app, configured in one place, and the functions that stages use.

    settings ──► build_app ──► stages register agents ──► run_worker ──► exit code
                    └─ fixes installed           source, table, emit, agent

Values are bytes, in and out; a stage decodes inside its agent. Delivery is at least once: an event is done when `agent`
says so, after what it emitted is acknowledged. An event that was interrupted (a rebalance, a stop, a crash) is not
done, whatever Faust believes, and is delivered again.

Settings for librdkafka (`kafka.client`) do not reach Faust, which uses aiokafka; a warning says so.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import faust
from aiokafka.errors import KafkaConnectionError
from faust.auth import SASLCredentials, SSLCredentials
from faust.types import TP

from schemas.events import AdapterEvent, Coordinates, DeadLetter, Event
from streams.errors import EventError, LogError, SettingsError
from streams.kafka.client import tls_context, unreachable
from streams.kafka.group_names import STREAMS
from streams.kafka.lag_meter import LagMeter
from streams.kafka.record import Record, dead_letter, encoded, trace_of, warn_of_time
from streams.kafka.topic_ids import TopicIds
from streams.kafka.topics import FRAMING_BYTES, Topic, row_bytes, topics
from streams.observability import catalog
from streams.observability.logging import quieten_faust
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing.tracer import OFF as NO_TRACER, Trace, Traced, Tracer, headers_of
from streams.processes.watchdog import Watchdog
from streams.settings.model import Kafka, Settings
from streams.worker import changelog_topics as changelogs, garbage
from streams.worker.faust import fixes
from streams.worker.faust.faust_table import Table

log = logging.getLogger("streamward.app")

READ_AHEAD_BYTES = 64 * 1024
"""Read-ahead of one partition. Faust delivers all of it before it fetches more, so with a backlog in many
partitions, a topic that the worker itself writes (`groups`) would wait a minute for its next turn, uncommitted. A
larger record is still read (KIP-74)."""
COMMIT_EVERY_S = 1.0
NEVER_S = 1e9
"""After a kill -9, at most this much is processed twice."""

WriteDeadLetter = Callable[[Any, EventError], Awaitable[None]]
"""Writes the dead letter of one faust event."""


class App(faust.App):  # type: ignore[misc]  # faust is not typed
    """A Faust app that knows its settings and its events in progress."""

    settings: Settings
    working: int = 0
    """Events in a handler now."""
    meter: Meter = OFF
    traces: Tracer = NO_TRACER
    """Not named `tracer`, which is Faust's own, of another kind."""
    ids: TopicIds
    """Partition counts of the topics that are read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reached: dict[TP, tuple[int, int, int]] = {}
        """By partition: generation, offset after the last event that is done, and that event's timestamp in ms."""
        self.holding: set[str] = set()
        """Topics with a next event that waits for other topics to be read."""
        self.lag_meters: list[LagMeter] = []
        """Of the agents."""

    def on_init_dependencies(self) -> Any:
        """Start without Faust's sensor, since its counts for each record are never read."""
        dependencies = super().on_init_dependencies()
        self.sensors.remove(self.monitor)
        return dependencies

    def _create_directories(self) -> None:
        """Create no folders: the tables are in memory, and Faust's folders would stay empty."""

    async def _consumer_wait_empty(self, consumer: Any, logger: Any) -> None:
        """Wait for the events in progress, and commit, as a rebalance and a stop do once the queues are cleared. Faust
        waits until every agent of a topic has acknowledged the events that one of them has taken. Where a topic has two
        agents, the event was also in the cleared queue of the other, so that wait would never end.
        """
        while self.working and not consumer.should_stop:
            await asyncio.sleep(0.01)
        await consumer.commit()


# --- the app ---------------------------------------------------------------------------------------------------------


def build_app(
    settings: Settings,
    *,
    worker_name: str,
    meter: Meter = OFF,
    tracer: Tracer = NO_TRACER,
) -> App:
    """Return the app of a stream worker, with the fixes installed; `worker_name` is its client id in the broker's logs.

    `meter` counts what the stages do, `tracer` records it.
    Raises SettingsError if the installed Faust is not the one that was fixed, or a TLS file cannot be read.
    """
    kafka, session_s = settings.kafka, settings.kafka.session_timeout_s
    if kafka.client:
        log.warning("kafka.client (%s) does not reach the Faust worker", ", ".join(kafka.client))
    name = f"{settings.topics.prefix}{STREAMS}"
    app = App(
        name,
        broker=[f"kafka://{server.strip()}" for server in kafka.bootstrap.split(",")],
        broker_credentials=_credentials(kafka),
        broker_client_id=worker_name,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 4,
        broker_rebalance_timeout=session_s * 2,
        broker_commit_interval=COMMIT_EVERY_S,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=READ_AHEAD_BYTES,
        processing_guarantee="at_least_once",
        producer_acks=-1,
        producer_linger=0,  # an awaited send would wait for the batch to fill
        producer_max_request_size=max(t.max_bytes for t in topics(settings.topics).values()) + FRAMING_BYTES,
        producer_partitioner=None,  # aiokafka's: murmur2 of the key, as Java and librdkafka's murmur2_random
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        Table=Table,
        table_standby_replicas=0,
        stream_buffer_maxsize=1024,
        stream_wait_empty=False,  # App waits for the handlers instead
        stream_processing_timeout=NEVER_S,  # Faust's detector reads the sensor, which is off; ours is the watchdog
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_replication_factor=settings.topics.replication,
        web_enabled=False,
        worker_redirect_stdouts=False,
        autodiscover=False,
    )
    app.settings, app.meter, app.traces = settings, meter, tracer
    app.ids = TopicIds(kafka, ())
    fixes.install(app)
    return app


def _credentials(kafka: Kafka) -> SASLCredentials | SSLCredentials | None:
    """Return the credentials in Faust's terms. Raises SettingsError, naming the TLS setting that cannot be used."""
    context = tls_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        assert kafka.sasl_password is not None  # noqa: S101  # settings refuse SASL without it
        return SASLCredentials(
            mechanism=kafka.sasl_mechanism,
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value(),
            ssl_context=context,
        )
    return SSLCredentials(context=context) if context is not None else None


# --- what stages build on --------------------------------------------------------------------------------------------


def source(app: App, topic: Topic) -> Any:
    """Return `topic` as a faust topic of bytes, to read from or to emit to."""
    return app.topic(topic.name, key_type=bytes, value_type=bytes, partitions=topic.partitions)


def table(app: App, name: str, partitions: int) -> Any:
    """Return a faust table of bytes by bytes; `partitions` are those of the topics whose agents write it.

    Write it only inside an event, by assignment, after what the event emits is acknowledged. It also holds keys of
    partitions that this worker no longer owns: check `owned_partitions` when iterating.
    """
    return app.Table(
        name,
        key_type=bytes,
        value_type=bytes,
        partitions=partitions,
        extra_topic_configs={"max.message.bytes": str(row_bytes(app.settings.topics))},
    )


async def emit(topic: Any, key: bytes | None, value: bytes, headers: Mapping[str, bytes] | None = None) -> Any:
    """Write a record to `topic` (of `source`) and return its metadata once all replicas have it."""
    return await (await topic.send(key=key, value=value, headers=list(headers.items()) if headers else None))


def record_of(event: Any) -> Record:
    """Return the Record of one faust event."""
    message = event.message
    at, timestamp_ms = Coordinates(message.topic, message.partition, message.offset), round(message.timestamp * 1000)
    warn_of_time(at, timestamp_ms)
    return Record(
        at,
        timestamp_ms,
        message.key,
        message.value,
        tuple(message.headers.items() if isinstance(message.headers, dict) else message.headers or ()),
    )


class Outlet:
    """Writes events to their topics, and returns once they are acknowledged."""

    def __init__(self, app: App, stage: str) -> None:
        """`stage` is the writer's name, for the meter."""
        self._meter, self._tracer, self._stage = app.meter, app.traces, stage
        self._topics = {topic.event: topic for topic in topics(app.settings.topics).values()}
        self._sources = {event: source(app, topic) for event, topic in self._topics.items()}

    async def emit(self, event: Event) -> None:
        """Write one event to its topic. Raises EventError if it is too large for the topic."""
        await self._write(event, trace_of(event) if isinstance(event, DeadLetter) else {})

    async def emit_traced(self, event: Traced, trace: Trace | None, *, began_ms: float | None = None) -> None:
        """Write one event under its trace, with a span that began at `began_ms`. Raises as `emit`."""
        written = await self._write(event, headers_of(trace))
        self._tracer.report(
            event, trace, Coordinates(written.topic, written.partition, written.offset), began_ms=began_ms
        )

    async def _write(self, event: Event, headers: Mapping[str, bytes]) -> Any:
        kind = type(event)
        key, payload = encoded(event, self._topics[kind])
        written = await emit(self._sources[kind], key, payload, headers)
        self._meter.add(catalog.EVENTS_OUT, self._stage, self._topics[kind].label)
        if isinstance(event, DeadLetter):
            self._meter.add(catalog.DEAD_LETTERS, self._stage, event.reason)
        elif isinstance(event, AdapterEvent):
            self._meter.add(catalog.DECISIONS, event.policy, event.kind)
        return written

    def dead_letters(self) -> WriteDeadLetter:
        """Return the callback of `agent` for an event that the stage cannot use."""

        async def write(event: Any, error: EventError) -> None:
            await self.emit(dead_letter(record_of(event), stage=self._stage, reason=error.reason, error=str(error)))

        return write


def owned_partitions(app: App, topic_name: str) -> set[int]:
    """Return the partitions of a topic that this worker owns; none while it is recovering or between generations."""
    if app.rebalancing or not app.tables.recovery.completed.is_set():
        return set()
    return {tp.partition for tp in app.consumer.assignment() if tp.topic == topic_name}


# --- running it ------------------------------------------------------------------------------------------------------


def create_changelogs(app: App) -> None:
    """Create the changelog topics of the app's tables, and check those that exist. Faust itself creates no topic.

    Raises LogError if the broker does not answer or refuses, SettingsError for a wrong partition count.
    """
    changelogs.create(app.settings, {t.changelog_topic.get_topic_name(): t.partitions for t in app.tables.values()})


def run_worker(app: App, *, grace_s: float = 25) -> int:
    """Run the app in this process until SIGTERM or SIGINT, and return the exit code: 0 drained, 1 crashed.

    A signal stops the reading; events in progress are finished and committed. A stop that takes longer than `grace_s`,
    after a signal or a crash, and every watchdog, ends the process with 75. The topics must exist; changelogs are
    created. Raises LogError if the broker is unreachable at the start, or records were deleted before they were read.
    Call from the main thread.
    """
    create_changelogs(app)
    quieten_faust()
    loop = fixes.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = _FaustWorker(app, loop=loop, grace_s=grace_s)
    garbage.settle()
    try:
        worker.execute_from_commandline()
    except SystemExit as exc:
        reason = worker.crash_reason or app.crash_reason
        if isinstance(reason, KafkaConnectionError):
            raise unreachable(app.settings.kafka, reason) from exc
        if isinstance(reason, LogError | SettingsError):
            raise reason from None
        return int(exc.code or 0)
    finally:
        worker.has_stopped()
    return 0


class _FaustWorker(faust.Worker):  # type: ignore[misc]
    """A Faust worker without its own console and log set-up, which drains before it stops."""

    def __init__(self, app: App, *, loop: asyncio.AbstractEventLoop, grace_s: float) -> None:
        super().__init__(app, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
        self.spinner = None
        self._grace_s = grace_s
        self._stop_watchdog: Watchdog | None = None

    def _setproctitle(self, info: str, *, ident: str = "") -> None:
        """Leave the title of the process unchanged."""

    def _install_signal_handlers_unix(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, self._schedule_shutdown, number)

    def _schedule_shutdown(self, number: signal.Signals) -> None:
        self._watch_stop()
        super()._schedule_shutdown(number)

    def on_worker_shutdown(self) -> None:
        """Begin to stop, after an expected signal or a crash."""
        self._watch_stop()
        super().on_worker_shutdown()

    def _watch_stop(self) -> None:
        if self._stop_watchdog is None:
            self._stop_watchdog = Watchdog(self._grace_s, f"the worker has not stopped within {self._grace_s:g} s")

    def has_stopped(self) -> None:
        """Cancel the time limit of the stop: it is over."""
        if self._stop_watchdog is not None:
            self._stop_watchdog.close()

    async def _stop_on_signal(self, number: signal.Signals) -> None:
        log.info("%s: draining", number.name)
        await drain(self.app)
        await super()._stop_on_signal(number)


async def drain(app: App) -> None:
    """Stop reading, wait for the events in progress, and commit. What is queued stays in the log."""
    consumer = app._consumer
    if consumer is None or not app.consumer.started:
        return
    consumer.stop_flow()
    app.flow_control.suspend()
    app.flow_control.clear()
    while app.working and not app.should_stop:
        await asyncio.sleep(0.01)
    if not app.rebalancing:
        await consumer.commit()
