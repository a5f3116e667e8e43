"""Write events from an event loop, each with a future that is done once the broker has acknowledged it.

    coroutines ──► write(event) ──► queue ──► one thread: send all that wait, flush ──► futures

Waiting events are sent together, so a hundred calls at once cost one round trip, and so do a trajectory's beginning and
its first turn: a server that finds a turn without a beginning writes it (`TaskRuns.finish`). While the broker is
unreachable everything waits; after kafka.outage_s the thread ends and calls `failed`. A server that was frozen writes
nothing before it knows that no other took its place (`may_write`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from schemas.events import Coordinates, Event, Turn
from streams.errors import LogError, StreamwardError
from streams.kafka.producer import Producer
from streams.kafka.record import encoded
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.observability.metrics import Meter
from streams.settings.model import Settings

STAGE = "agents"
LOOK_S = 0.1
"""How often a writer that may not write looks whether it may again; the process ends if it may not."""
log = logging.getLogger("streamward.agents")


class TurnWriter:
    """A producer and its thread. Use as a context manager."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        meter: Meter,
        failed: Callable[[StreamwardError], None],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`failed` is called from the thread when it ends because the log accepts nothing more; `may_write`: whether
        no other server can have this one's place."""
        self._settings, self._stop, self._meter, self._failed = settings, stop, meter, failed
        self._may_write = may_write
        self._topics = {topic.event: topic for topic in topics(settings.topics).values()}
        self.most_bytes = self._topics[Turn].max_bytes
        """A larger turn is refused."""
        self._queue: queue.SimpleQueue[tuple[str, bytes | None, bytes, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writes-turns")
        self._waits_since: float | None = None

    def __enter__(self) -> TurnWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    @property
    def waits_s(self) -> float:
        """How long the oldest event has waited for the broker, seconds; 0 if none waits."""
        since = self._waits_since
        return 0.0 if since is None else time.monotonic() - since

    def check(self, event: Turn) -> None:
        """Raise the error that `write` would raise, and queue nothing."""
        encoded(event, self._topics[type(event)])

    def write(self, *events: Event) -> Future[None]:
        """Queue events, in order after earlier ones, and return when the last of them is written.

        Raises EncodeError, and EventError if one is too large; then none is queued.
        """
        named = [(self._topics[type(event)], event) for event in events]
        for name, key, payload in [(topic.name, *encoded(event, topic)) for topic, event in named]:
            written: Future[None] = Future()
            self._queue.put((name, key, payload, written))
        return written

    def _run(self) -> None:
        outage = BrokerOutage(self._settings.kafka, self._stop, self._meter)
        producer = Producer(self._settings, linger_ms=0, outage=outage, stage=STAGE)
        waiting: list[tuple[str, bytes | None, bytes, Future[None]]] = []
        try:
            with producer:
                while (first := self._queue.get()) is not None:
                    self._waits_since = time.monotonic()
                    waiting, ends = [first], False
                    while not self._queue.empty() and not ends:
                        entry = self._queue.get()
                        ends = entry is None
                        waiting += [] if entry is None else [entry]
                    while not self._may_write():
                        time.sleep(LOOK_S)
                    for name, key, payload, written in waiting:
                        producer.send_bytes(name, key, payload, on_ack=partial(_mark_written, written))
                    producer.flush()
                    self._waits_since = None
                    if ends:
                        return
        except LogError as exc:
            for _, _, _, written in waiting:
                if not written.done():
                    written.set_exception(exc)
            self._failed(exc)


def _mark_written(written: Future[None], _: Coordinates) -> None:
    written.set_result(None)
