"""Process the records of a topic one at a time: each ends in a result, a dead letter, or a crash.

    topic ──► is it its turn? ──► handle ──► done: it may be committed
                  │ a rebalance, a stop     ├── EventError ──► dead letter, done
                  └──► delivered again ◄────┴── anything else: the worker ends

To process more at a time, start more workers: they share the partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from faust.types import TP

from schemas import ids
from streams.errors import EventError
from streams.kafka.lag import LagMeter
from streams.kafka.topics import Topic
from streams.observability import catalog
from streams.worker.app import App, WriteDeadLetter, source
from streams.worker.faust.membership import membership
from streams.worker.table import stale

log = logging.getLogger("streamward.app")

Handle = Callable[[Any], Awaitable[None]]
"""Handles one faust event: `event.key` and `event.value` are bytes, `event.message` has its coordinates."""


def agent(
    app: App,
    topic: Topic,
    handle: Handle,
    dead_letter: WriteDeadLetter,
    *,
    name: str | None = None,
    after: Iterable[Topic] = (),
) -> Any:
    """Register `handle` for every record of `topic`, one at a time, and return the faust agent.

    No exception leaves the agent, since Faust takes a failed event for done. An EventError goes to `dead_letter`, and
    the partition continues; anything else ends the worker, and the event is delivered again after the restart.

    A record waits until the partitions of its number in the topics `after` are read up to its timestamp, or to their
    ends: when a log is read again, nothing else would keep it after what was written before it.
    """
    before = [earlier.name for earlier in after]
    name = name or f"{topic.label}.{handle.__qualname__}"
    stage = name.removesuffix(f".{topic.label}")
    lag = LagMeter(app.meter, stage, app.settings.topics, lambda: _progress(app, topic.name))
    app.lag_meters.append(lag)

    async def handle_known(event: Any) -> None:
        await _learn_schema(topic, event.value)
        await handle(event)

    async def work(stream: Any) -> None:
        async for event in stream.events():
            if await _its_turn(app, event, before):
                message, started = event.message, time.perf_counter()
                lag.took((message.topic, message.partition), message.offset, round(message.timestamp * 1000))
                await _process(app, event, handle_known, dead_letter)
                lag.done((message.topic, message.partition), message.offset + 1)
                app.meter.observe(catalog.PROCESSING, time.perf_counter() - started, stage)
            else:
                _withhold(event)

    return app.agent(source(app, topic), name=name, concurrency=1)(work)


async def _learn_schema(topic: Topic, payload: bytes | None) -> None:
    """Ask the Schema Registry about an unknown id, in a thread: the registry may be unreachable."""
    known, kind = ids.current(), topic.event.__name__
    if (schema_id := known.undecided(kind, payload)) is not None:
        await asyncio.to_thread(known.schema_of, kind, schema_id)


def _progress(app: App, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the next offset to process and the end of each owned partition, as far as known."""
    found = {}
    for tp in app.consumer.assignment():
        if tp.topic == topic and (end := app.consumer.highwater(tp)) is not None:
            generation, offset, _ = app.reached.get(tp, (None, 0, 0))
            if generation != app.consumer_generation_id:
                offset = app.consumer._committed_offset.get(tp) or 0
            found[tp.topic, tp.partition] = (offset, end)
    return found


async def _its_turn(app: App, event: Any, before: list[str]) -> bool:
    """Wait until these topics are read up to `event`; return False if it must be delivered again (rebalance, stop)."""
    message = event.message
    try:
        while not all(_is_read(app, TP(topic, message.partition), message.timestamp * 1000) for topic in before):
            if stale(app, event) or not app.flow_control.is_active():
                return False
            app.holding.add(message.topic)
            await asyncio.sleep(0.02)
    finally:
        app.holding.discard(message.topic)
    return True


def _is_read(app: App, tp: TP, timestamp_ms: float) -> bool:
    generation, offset, reached_ms = app.reached.get(tp, (None, 0, 0))
    if generation != app.consumer_generation_id:
        offset, reached_ms = app.consumer._committed_offset.get(tp) or 0, 0
    end = app.consumer.highwater(tp)  # None before the first fetch
    return reached_ms > timestamp_ms or (end is not None and offset >= end)


async def _process(app: App, event: Any, handle: Handle, dead_letter: WriteDeadLetter) -> None:
    holds, done, failed = True, False, None
    app.working += 1
    try:
        try:
            holds = await membership.holds()
            if holds:
                await handle(event)
        except EventError as exc:
            await dead_letter(event, exc)
        done = holds and not stale(app, event)
        if done:
            message = event.message
            reached = (message.generation_id, message.offset + 1, round(message.timestamp * 1000))
            app.reached[TP(message.topic, message.partition)] = reached
    except Exception as exc:  # a bug: the worker ends, below
        failed = exc
    finally:
        app.working -= 1
        if not done:
            _withhold(event)
    if failed is not None:
        at = f"{event.message.topic}[{event.message.partition}]@{event.message.offset}"
        log.error("%s: not processed, and the worker ends: %r", at, failed, exc_info=failed)
        await app.crash(failed)
        await asyncio.Event().wait()  # returning would mean continuing with the next event


def _withhold(event: Any) -> None:
    """Keep the stream from acknowledging `event` when it leaves the agent: Faust acknowledges a message only once."""
    event.message.acked = True
