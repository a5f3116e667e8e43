"""Process the records of a topic, one or many at a time: each ends in a result, a dead letter, or a crash.

    topic ──► is it its turn? ──► handle ──► done: it may be committed
                  │ a rebalance, a stop     ├── EventError ──► dead letter, done
                  └──► delivered again ◄────┴── anything else: the worker ends

Many at a time cost a table less: a row that several of them change is written once, and their results are acknowledged
together. To work in parallel, start more workers: they share the partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from faust.types import TP

from schemas import ids
from streams.errors import EventError
from streams.kafka.lag_meter import LagMeter
from streams.kafka.topics import Topic
from streams.observability import catalog
from streams.worker.faust.faust_app import App, WriteDeadLetter, source
from streams.worker.faust.faust_table import stale
from streams.worker.faust.membership import membership

log = logging.getLogger("streamward.app")

Handle = Callable[[Any], Awaitable[None]]
"""Handles one faust event: `event.key` and `event.value` are bytes, `event.message` has its coordinates."""
HandleMany = Callable[[Sequence[Any]], Awaitable[None]]
"""Handles several faust events, each partition's in order."""
MAX_EVENTS = 256
"""Maximum events that an agent takes at once. A partition's share usually holds all slots of a task."""


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

    An EventError goes to `dead_letter`, and the partition continues; otherwise as `agent_of_many`.
    """

    async def handle_one(events: Sequence[Any]) -> None:
        (event,) = events
        try:
            await handle(event)
        except EventError as exc:
            await dead_letter(event, exc)

    return agent_of_many(
        app, topic, handle_one, name=name or f"{topic.label}.{handle.__qualname__}", after=after, max_events=1
    )


def agent_of_many(
    app: App, topic: Topic, handle: HandleMany, *, name: str, after: Iterable[Topic] = (), max_events: int = MAX_EVENTS
) -> Any:
    """Register `handle` for the records of `topic`, all available ones at once, and return the faust agent. A rebalance
    may begin while `handle` waits. Rows written after that are lost, so it must then read no row: check `stale`. Its
    events are delivered again.

    No exception leaves the agent, since Faust treats a failed event as done: any error of `handle` ends the worker,
    and its events are delivered again after the restart.

    A record waits until the partitions of its number in the topics `after` are read up to its timestamp, or to their
    ends: when a log is read again, nothing else would keep records in the order of writing. Such records are
    handled one at a time.
    """
    before = [earlier.name for earlier in after]
    stage = name.removesuffix(f".{topic.label}")
    lag = LagMeter(app.meter, stage, app.settings.topics, lambda: _progress(app, topic.name))
    app.lag_meters.append(lag)
    max_events = 1 if before else max_events

    async def handle_known(events: Sequence[Any]) -> None:
        started = time.perf_counter()
        for event in events:
            lag.took(event.message.tp, event.message.offset, round(event.message.timestamp * 1000))
            await _learn_schema(topic, event.value)
        await handle(events)
        for event in events:
            lag.done(event.message.tp, event.message.offset + 1)
            app.meter.observe(catalog.PROCESSING, (time.perf_counter() - started) / len(events), stage)

    async def work(stream: Any) -> None:
        stream.enable_acks = False  # an event is acknowledged when it is done, and by nothing else
        batch: list[Any] = []
        async for event in stream.events():
            batch.append(event)
            if len(batch) < max_events and not stream.channel.queue.empty():
                continue
            events, batch = batch, []
            if await _its_turn(app, event, before):
                await _process(app, stream, events, handle_known)

    return app.agent(source(app, topic), name=name, concurrency=1)(work)


async def _learn_schema(topic: Topic, payload: bytes | None) -> None:
    """Ask the Schema Registry about an unknown id, in a thread: the registry may be unreachable."""
    known_ids, kind = ids.current(), topic.event.__name__
    if (schema_id := known_ids.id_to_look_up(kind, payload)) is not None:
        await asyncio.to_thread(known_ids.schema_of, kind, schema_id)


def _progress(app: App, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the next offset to process and the last known end of each owned partition."""
    positions = {}
    for tp in app.consumer.assignment():
        if tp.topic == topic and (end := app.consumer.highwater(tp)) is not None:
            generation, offset, _ = app.reached.get(tp, (None, 0, 0))
            if generation != app.consumer_generation_id:
                offset = app.consumer._committed_offset.get(tp) or 0
            positions[tp.topic, tp.partition] = (offset, end)
    return positions


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


async def _process(app: App, stream: Any, batch: Sequence[Any], handle: HandleMany) -> None:
    failed = None
    app.working += 1
    try:
        if await membership.holds() and (events := [event for event in batch if not stale(app, event)]):
            await handle(events)
            for event in (event for event in events if not stale(app, event)):
                reached_ms = round(event.message.timestamp * 1000)
                app.reached[event.message.tp] = (event.message.generation_id, event.message.offset + 1, reached_ms)
                await stream.ack(event)
    except Exception as exc:  # a bug: the worker ends, below
        failed = exc
    finally:
        app.working -= 1
    if failed is not None:
        place = f"{batch[0].message.topic}[{batch[0].message.partition}]@{batch[0].message.offset}"
        rest = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        log.error("%s%s: not processed, and the worker ends: %r", place, rest, failed, exc_info=failed)
        await app.crash(failed)
        await asyncio.Event().wait()  # returning would mean continuing with the next event
