"""Records as they are written, as server-sent events.

    ends of all topics ──► PartitionReader ──► RecordLine ──► text/event-stream

Each reader follows the log separately and commits nothing; at most MAX_READERS at once. An undecodable record has a
line, too. Without JavaScript the page shows the newest records instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.http import sse
from gateway.http.principal import principal_of
from plugins.page.views.record_line import RecordLine, live_topics
from streams.errors import RefusedError
from streams.kafka import admin
from streams.kafka.reader import PartitionReader
from streams.kafka.topics import topics
from streams.tools.views.log_view import LogReader, LogView

MAX_READERS = 4
POLL_S = 0.5
POLL_RECORDS = 200


class LiveLog:
    """Streams records as they are written, to a few readers."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._free = asyncio.Semaphore(MAX_READERS)

    async def stream(self, request: Request) -> StreamingResponse:
        """Return the stream of records that are written from now on.

        Raises RefusedError if there are too many readers, and for a tenant's principal; LogError if no broker answers.
        """
        log = LogReader(self._view, principal_of(request))
        labels = live_topics(log.rights)
        if self._view.source == "archive":
            raise RefusedError("an archive does not grow: start the page without --source archive")
        if self._free.locked():
            raise RefusedError(f"{MAX_READERS} readers follow the log already; close one of them")
        bounds = await asyncio.to_thread(admin.offsets, self._view.settings, labels)
        return StreamingResponse(
            self._frames(request, {tp: high for tp, (_, high) in bounds.items()}),
            headers=sse.HEADERS,
            media_type=sse.MEDIA_TYPE,
        )

    async def _frames(self, request: Request, ends: dict[tuple[str, int], int]) -> AsyncIterator[bytes]:
        settings = self._view.settings
        topic_of = {topic.name: topic for topic in topics(settings.topics).values()}
        async with self._free:
            with PartitionReader(settings, ends) as reader:
                yield b": follows\n\n"
                while not await request.is_disconnected():
                    records = await asyncio.to_thread(reader.poll, POLL_RECORDS, POLL_S)
                    for record in records:
                        topic = topic_of[record.at.topic]
                        yield sse.frame(asdict(RecordLine.of(topic.label, record, record.decode_either(topic.event))))
                    if not records:
                        yield b": \n\n"
