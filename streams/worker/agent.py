"""One record of a topic at a time, in its turn, and nothing but a crash or a result comes out.

    topic ──► is it its turn? ──► handle ──► done: it may be committed
                  │ a rebalance, a stop     ├── EventError ──► dead letter, done
                  └──► it comes again ◄─────┴── anything else: the worker ends

Not covered: several records of one topic at a time. Add workers instead: they share the partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from faust.types import TP

from schemas import ids as numbering
from streams.errors import EventError
from streams.kafka.lag import LagMeter
from streams.kafka.topics import Topic
from streams.observability import catalog
from streams.worker.app import App, DeadLetter, source
from streams.worker.faust.membership import lease
from streams.worker.table import stale

log = logging.getLogger("streamward.app")

Handle = Callable[[Any], Awaitable[None]]
"""Works on one faust event: `event.key` and `event.value` are bytes, `event.message` has its coordinates."""


def agent(
    app: App,
    topic: Topic,
    handle: Handle,
    dead_letter: DeadLetter,
    *,
    name: str | None = None,
    after: Iterable[Topic] = (),
) -> Any:
    """Register `handle` for every record of `topic`, one at a time, and return the faust agent.

    No exception leaves the agent, since Faust takes a failed event for done. An EventError goes to `dead_letter`, and
    the partition moves on; anything else ends the worker, and the event comes again after the restart.

    A record waits until the partitions of its number in the topics `after` are read as far as its timestamp, or to
    their ends: in a log that is read again, nothing else would keep it behind what was written before it.
    """
    before = [earlier.name for earlier in after]
    name = name or f"{topic.label}.{handle.__qualname__}"
    stage = name.removesuffix(f".{topic.label}")
    intake = LagMeter(app.meter, stage, app.settings.topics, lambda: _stands(app, topic.name))
    app.intakes.append(intake)

    async def learned(event: Any) -> None:
        await _learn(topic, event.value)
        await handle(event)

    async def work(stream: Any) -> None:
        async for event in stream.events():
            if await _its_turn(app, event, before):
                message, started = event.message, time.perf_counter()
                intake.took((message.topic, message.partition), message.offset, round(message.timestamp * 1000))
                await _work_on(app, event, learned, dead_letter)
                intake.done((message.topic, message.partition), message.offset + 1)
                app.meter.observe(catalog.PROCESSING, time.perf_counter() - started, stage)
            else:
                _withhold(event)

    return app.agent(source(app, topic), name=name, concurrency=1)(work)


async def _learn(topic: Topic, payload: bytes | None) -> None:
    """Have a Schema Registry asked about an id that nobody has met, beside the event loop: it may be away."""
    ids, kind = numbering.current(), topic.event.__name__
    if (schema_id := ids.undecided(kind, payload)) is not None:
        await asyncio.to_thread(ids.schema_of, kind, schema_id)


def _stands(app: App, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the next offset that is not done and the end of each partition owned, as far as known."""
    found = {}
    for tp in app.consumer.assignment():
        if tp.topic == topic and (end := app.consumer.highwater(tp)) is not None:
            generation, offset, _ = app.reached.get(tp, (None, 0, 0))
            if generation != app.consumer_generation_id:
                offset = app.consumer._committed_offset.get(tp) or 0
            found[tp.topic, tp.partition] = (offset, end)
    return found


async def _its_turn(app: App, event: Any, before: list[str]) -> bool:
    """Wait until these topics are read up to `event`; return False if it must come again (a rebalance, a stop)."""
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


async def _work_on(app: App, event: Any, handle: Handle, dead_letter: DeadLetter) -> None:
    held, done, failed = True, False, None
    app.working += 1
    try:
        try:
            held = await lease.settled()
            if held:
                await handle(event)
        except EventError as exc:
            await dead_letter(event, exc)
        done = held and not stale(app, event)
        if done:
            message = event.message
            reached = (message.generation_id, message.offset + 1, round(message.timestamp * 1000))
            app.reached[TP(message.topic, message.partition)] = reached
    except Exception as exc:
        failed = exc
    finally:
        app.working -= 1
        if not done:
            _withhold(event)
    if failed is not None:
        at = f"{event.message.topic}[{event.message.partition}]@{event.message.offset}"
        log.error("%s: not worked on, and the worker ends: %r", at, failed, exc_info=failed)
        await app.crash(failed)
        await asyncio.Event().wait()  # to return would be to go on with the next event


def _withhold(event: Any) -> None:
    """Keep the stream from acknowledging `event` when it leaves the agent: Faust acknowledges a message only once."""
    event.message.acked = True
