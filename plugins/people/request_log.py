"""Write an event for each request of the server, with the access decision, in parallel with the answers.

    requests ──► write: a queue of MOST_WAITING ──► a thread ──► Producer ──► requests
                        full, or given up ──► lost: counted in the next event

Answers do not wait for it. With serve.requests=lossy an unreachable broker costs only events. With `required` the
server refuses requests while the queue is full, or if no event was acknowledged for serve.acknowledge_s; only requests
within that time can lack events.

A server that starts reads back what its callers spent (serve.key_tokens_per_min): tokens that they owe outlive it.

Callers without a valid key (logins, too) or beyond their limits leave FLOOD_PER_S events a second at most, so that
refused requests cannot fill the topic; the next event says how many were skipped.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from gateway.http.limits import spend_tokens
from schemas.events import ANONYMOUS, Coordinates, RequestEvent
from schemas.serde import EncodeError
from streams.access.token_bucket import TokenBucket, take
from streams.errors import EventError, LogError
from streams.kafka import times
from streams.kafka.admin import offsets
from streams.kafka.producer import Producer
from streams.settings.model import Settings

MOST_WAITING = 10_000
"""Events in the queue, and as many with the producer; each has some hundred bytes."""
FLOOD_PER_S, FLOOD_BURST = 10.0, 100.0
"""Events of refusals that any caller can cause, for each caller."""
FLOODS = (401, 429)
"""Statuses of these requests; anonymous requests count, too."""
LINGER_MS = 50
LOOK_S = 0.05
PAUSE_S = 1.0
"""Before it is tried again after the log has refused something."""
SPENT_S = 3600.0
"""How far back tokens are read; what a key owes for longer is forgotten."""
CLOSE_S = 5.0
"""How long the end waits for acknowledgements."""

log = logging.getLogger("streamward.access")


def spent_tokens(settings: Settings) -> dict[str, TokenBucket]:
    """Return the tokens of each principal after the requests of the last SPENT_S, by time.monotonic().

    Each had none left at their beginning: a caller gets less than its limit rather than more. Raises as `times.tail`.
    """
    rule, since_unix = settings.serve, time.monotonic() - time.time()
    begin_s = time.time() - SPENT_S
    buckets: dict[str, TokenBucket] = {}
    if not rule.key_tokens_per_min:
        return buckets
    begin = times.Begin("time", int(begin_s * 1000))
    for record in times.tail(settings, times.named(settings, ["requests"]), begin, until_end=True):
        event = record.event
        if isinstance(event, RequestEvent) and event.prompt_tokens is not None:
            who = event.subject_id if event.subject_id.startswith("user ") else f"key {event.subject_id}"
            bucket = buckets.get(who, TokenBucket(0.0, begin_s + since_unix))
            tokens = event.prompt_tokens + (event.completion_tokens or 0)
            buckets[who] = spend_tokens(bucket, event.created_at / 1000 + since_unix, tokens, rule)
    return buckets


class RequestLog:
    """A queue, its thread and its producer. Use as a context manager; `write` is called from one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue: queue.Queue[RequestEvent] = queue.Queue(MOST_WAITING)
        self._counting = threading.Lock()
        """Held while these three change."""
        self._in_flight, self._lost = 0, 0
        self._progress_at = time.monotonic()
        self._buckets: dict[str, TokenBucket] = {}
        self._skipped: dict[str, int] = {}
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writes-requests", daemon=True)

    def __enter__(self) -> Self:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        offsets(self._settings, ["requests"])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._lost:
            log.warning("%d requests left no event: the log took none", self._lost)

    @property
    def lost(self) -> int:
        """How many events were given up since the last that was written."""
        return self._lost

    def why_not(self) -> str | None:
        """Return why nothing may be answered now; None if it may, as always unless events are required."""
        if self._settings.serve.requests != "required":
            return None
        if self._queue.full():
            return f"{MOST_WAITING} events of requests wait for the log, and serve.requests is required"
        with self._counting:
            waits = self._in_flight > 0 or not self._queue.empty()
            stuck_s = time.monotonic() - self._progress_at if waits else 0.0
        if stuck_s > self._settings.serve.acknowledge_s:
            return f"the log has taken no event of a request for {stuck_s:.0f} s, and serve.requests is required"
        return None

    def write(self, events: Iterable[RequestEvent]) -> None:
        """Queue events, or count those that do not fit. It does not wait."""
        for event in events:
            limited = self._limit_flood(event)
            if limited is None:
                continue
            with self._counting:
                if self._in_flight == 0 and self._queue.empty():
                    self._progress_at = time.monotonic()
            try:
                self._queue.put_nowait(limited)
            except queue.Full:
                self._lose(1)

    def _limit_flood(self, event: RequestEvent) -> RequestEvent | None:
        """Return what is written of a request; None if there were too many like it."""
        subject = event.subject_id
        if event.status in FLOODS or subject == ANONYMOUS:
            bucket = self._buckets.get(subject)
            self._buckets[subject], wait_s = take(bucket, time.monotonic(), rate=FLOOD_PER_S, burst=FLOOD_BURST)
            if wait_s:
                self._skipped[subject] = self._skipped.get(subject, 0) + 1
                return None
        skipped = self._skipped.pop(subject, 0)
        return replace(event, metadata={**event.metadata, "skipped": str(skipped)}) if skipped else event

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                with Producer(self._settings, linger_ms=LINGER_MS) as producer:
                    self._write_all(producer)
                return
            except LogError as exc:
                with self._counting:
                    given_up, self._in_flight = self._in_flight, 0
                self._lose(given_up)
                if not self._failing:
                    log.warning("requests leave no events: %s", exc)
                self._failing = True
                if self._stopping.wait(PAUSE_S):
                    self._lose(self._queue.qsize())
                    return

    def _write_all(self, producer: Producer) -> None:
        """Write what comes until the end. Raises LogError."""
        while not (self._stopping.is_set() and self._queue.empty()):
            self._send_some(producer)
            producer.serve()
        producer.flush(timeout_s=CLOSE_S)

    def _send_some(self, producer: Producer) -> None:
        if self._in_flight >= MOST_WAITING:
            if self._stopping.is_set():
                raise LogError("the broker has acknowledged nothing until the end")
            time.sleep(LOOK_S)
            return
        try:
            event = self._queue.get(timeout=LOOK_S)
        except queue.Empty:
            return
        while True:
            self._send(producer, event)
            if self._in_flight >= MOST_WAITING or self._queue.empty():
                return
            event = self._queue.get()

    def _send(self, producer: Producer, event: RequestEvent) -> None:
        with self._counting:
            lost, self._lost = self._lost, 0
            self._in_flight += 1
        if lost:
            event = replace(event, metadata={**event.metadata, "lost": str(lost)})
        try:
            producer.send(event, on_ack=self._on_ack)
        except (EncodeError, EventError) as exc:
            log.warning("a request leaves no event: %s", exc)
            with self._counting:
                self._in_flight -= 1
            self._lose(lost + 1)

    def _on_ack(self, _: Coordinates) -> None:
        with self._counting:
            self._in_flight = max(0, self._in_flight - 1)
            self._progress_at = time.monotonic()
        if self._failing:
            log.warning("requests leave events again")
            self._failing = False

    def _lose(self, count: int) -> None:
        with self._counting:
            self._lost += count
