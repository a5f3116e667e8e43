"""A call while it is answered, for everybody who waits for its answer.

    the task that answers it ──► publish, finish ──► CallInProgress ──► pieces: any number of readers, from the first

A try that is made again while the first is in progress reads the same pieces. When the last reader has left, nobody
wants the answer any more: `abandon` is called, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from streams.errors import CallError
from streams.stages.agents.recording.calls import Piece


class CallInProgress:
    """The pieces of an answer as they come. Of one event loop."""

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._pieces: list[Piece] = []
        self._readers = 0
        self._abandon = abandon
        self._news = asyncio.Event()
        self._error: CallError | None = None
        self.done = False
        self.abandoned = False

    def publish(self, piece: Piece) -> None:
        """Give a piece to every reader."""
        self._pieces.append(piece)
        self._tell()

    def finish(self, error: CallError | None = None) -> None:
        """End the answer; with `error` every reader raises it behind the last piece."""
        self.done, self._error = True, error
        self._tell()

    def cancel(self) -> None:
        """End the answer where it is: its run is over, whoever still reads."""
        if not self.done and not self.abandoned:
            self.abandoned = True
            self._abandon()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield every piece, from the first. Raises CallError."""
        self._readers += 1
        at = 0
        try:
            while True:
                news = self._news
                while at < len(self._pieces):
                    at += 1
                    yield self._pieces[at - 1]
                if self.done and at == len(self._pieces):
                    break
                await news.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if self._readers == 0:
                self.cancel()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
