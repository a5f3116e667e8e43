"""What is written to the log now, as server-sent events.

    ends of all topics ──► PartitionReader ──► a line per record: where, when, whose, what ──► text/event-stream

Each reader follows the log by itself and commits nothing; MOST may do so at once. A record that is no event is named,
too. Without JavaScript the page has the newest records instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.http import sse
from gateway.http.principal import principal_of
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    DeadLetter,
    Event,
    JobEvent,
    Response,
    Reward,
    Task,
    TrajectoryEvent,
    Turn,
)
from schemas.serde import Poison
from streams.errors import RefusedError
from streams.kafka import admin
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record
from streams.kafka.topics import LABELS, topics
from streams.output import moment
from streams.tools.query.views import name_of, quoted
from streams.tools.views.log_view import LogReader, LogView, Look
from streams.tools.views.visible_text import cut, visible

MOST = 4
"""Readers at once."""
POLL_S = 0.5
AT_ONCE = 200
"""Records of one poll."""
SHOWN = 160
"""Characters of what a record says."""
NEWEST = 50


def shown(log: LogReader) -> list[str]:
    """Return the topics whose records are shown, by label; logins and keys change little while one looks."""
    return [label for label in LABELS if label != "access" and label not in log.rights.hidden]


def newest_sql(log: LogReader) -> str:
    """Return the statement of the newest records of all topics."""
    every = " UNION ALL ".join(
        f"SELECT '{label}' AS topic, _partition, _offset, _timestamp, _key FROM {quoted(name_of(label))}"  # noqa: S608
        for label in shown(log)
    )
    return f"SELECT * FROM ({every}) ORDER BY _timestamp DESC, topic, _offset DESC LIMIT {NEWEST}"  # noqa: S608


def data(look: Look, log: LogReader) -> dict[str, Any]:
    """Return what the page shows before anything new comes. Raises RefusedError for who is of a tenant."""
    log.check_whole("here is")
    return {"newest": look.rows(newest_sql(log)), "follows": log.source != "archive", "at": look.at}


class LiveLog:
    """Streams what is written, to a few readers."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._free = asyncio.Semaphore(MOST)

    async def stream(self, request: Request) -> StreamingResponse:
        """Return the stream of records that are written from now on.

        Raises RefusedError if too many read already, and for who is of a tenant; LogError if no broker answers.
        """
        log = LogReader(self._view, principal_of(request))
        log.check_whole("here is")
        if self._view.source == "archive":
            raise RefusedError("an archive does not grow: start the page without --source archive")
        if self._free.locked():
            raise RefusedError(f"{MOST} readers follow the log already; close one of them")
        settings = self._view.settings
        bounds = await asyncio.to_thread(admin.offsets, settings, shown(log))
        return StreamingResponse(
            self._frames(request, {tp: high for tp, (_, high) in bounds.items()}),
            headers=sse.HEADERS,
            media_type=sse.MEDIA_TYPE,
        )

    async def _frames(self, request: Request, ends: dict[tuple[str, int], int]) -> AsyncIterator[bytes]:
        settings = self._view.settings
        labels = {topic.name: topic for topic in topics(settings.topics).values()}
        async with self._free:
            with PartitionReader(settings, ends) as reader:
                yield b": follows\n\n"
                while not await request.is_disconnected():
                    records = await asyncio.to_thread(reader.poll, AT_ONCE, POLL_S)
                    for record in records:
                        topic = labels[record.at.topic]
                        yield sse.frame(line(topic.label, record, record.decode(topic.event)))
                    if not records:
                        yield b": \n\n"


def line(label: str, record: Record, event: Event | Poison) -> dict[str, Any]:
    """Return what one line says of a record; texts of others are visible signs and cut."""
    return {
        "topic": label,
        "partition": record.at.partition,
        "offset": record.at.offset,
        "time": moment(record.timestamp_ms),
        "key": visible(cut((record.key or b"").decode("utf-8", "replace"), SHOWN)),
        "what": visible(cut(what(event), SHOWN)).replace("\n", " "),
    }


def what(event: Event | Poison) -> str:
    """Return what a record says, in a few words."""
    match event:
        case Poison():
            return f"no event: {event.reason}"
        case Task():
            return f"{event.purpose}: {event.messages[-1].content}"
        case Response():
            return f"slot {event.slot} by version {event.adapter_version}: {event.error or event.text}"
        case Reward():
            value = event.error if event.value is None else f"{event.value:.4g}"
            return f"slot {event.slot}, {event.source}: {value}"
        case AdvantagedGroup():
            return event.dropped_reason or f"mean reward {event.reward_mean:.3g} over {len(event.responses)} answers"
        case Batch():
            return f"batch {event.sequence} of {event.groups} groups"
        case AdapterEvent():
            return f"version {event.version} {event.kind.replace('_', ' ')}: {event.reason}"
        case DeadLetter():
            return f"{event.stage}: {event.reason}"
        case JobEvent():
            return f"{event.kind.replace('_', ' ')}: {event.reason}"
        case Turn():
            return f"turn {event.number} of {event.agent_id}: {event.error or event.reply.content}"
        case TrajectoryEvent():
            return f"run of {event.agent_id} {event.ending or event.kind}: {event.reason}"
        case _:
            return str(getattr(event, "kind", ""))
