"""Streams of answers that several calls get: one sampling in progress, or one that is complete.

first call ──► engine ──► source ──► SharedSampling ──► a TokenStream for each call
later call ──────────────────────────────┘                   └── the last one leaves: the source is cancelled
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from schemas.tokens import Logprobs, TokenIds
from streams.engines.token_stream import ORIGIN, AnswerOrigin, Drawn, Ending, Generation, TokenStream

CACHED_FROM = ORIGIN + "cached_from"
"""Metadata of an answer that was not sampled for its own question: the id of the turn or response that was."""
SIMILAR_TO = ORIGIN + "similar_to"
"""The same of an answer to a question that has a similar one: the turn of that."""


def with_notes(origin: AnswerOrigin | None, **notes: str) -> AnswerOrigin:
    """Return an origin with more notes, by names without ORIGIN."""
    origin = origin or AnswerOrigin()
    return replace(origin, notes={**origin.notes, **{ORIGIN + name: text for name, text in notes.items()}})


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A complete answer."""

    turn_id: str
    created_at: int
    """Milliseconds since the epoch."""
    tokens: TokenIds
    logprobs: Logprobs
    ending: Ending
    stop: str | None

    def stream(self, generation: Generation, **notes: str) -> TokenStream:
        """Return it as the answer to a generation."""
        answer = _beginning(generation, zip(self.tokens, self.logprobs, strict=True))
        answer.origin = with_notes(None, cached_from=self.turn_id, **notes)
        answer.finish(self.ending, stop=self.stop)
        return answer


class SharedSampling:
    """One sampling that equal calls share while it is in progress. Runs in one event loop."""

    def __init__(self, turn_id: str) -> None:
        """`turn_id`: that of the call that is sampled."""
        self._turn_id = turn_id
        self.source: TokenStream | None = None
        self._begun: asyncio.Future[TokenStream] = asyncio.get_running_loop().create_future()
        self._streams: list[TokenStream] = []
        self._drawn = 0
        """Number of tokens that all streams have."""
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether another call may share it."""
        return self.source is None or (self.source.ending in (None, "stop", "length") and not self.source.cancelled)

    def fail(self, error: BaseException) -> None:
        """Give an error to the calls that wait for its beginning."""
        self._begun.set_exception(error)
        self._begun.exception()  # there may be no such call

    def lead(self, source: TokenStream) -> TokenStream:
        """Begin, and return the stream of the first call."""
        self.source = source
        first = self._follow(source.generation)
        first.origin = source.origin
        self._begun.set_result(source)
        self._pump = asyncio.create_task(self._copy(source))
        return first

    async def follow(self, generation: Generation) -> TokenStream:
        """Return the stream of another call once the first one has begun. Raises its error if it cannot begin."""
        source = await asyncio.shield(self._begun)
        stream = self._follow(generation)
        stream.origin = with_notes(source.origin, cached_from=self._turn_id)
        return stream

    def _follow(self, generation: Generation) -> TokenStream:
        source = self.source
        stream = _beginning(generation, [] if source is None else source.drawn[: self._drawn])
        if self._pump is not None and self._pump.done() and source is not None and source.ending is not None:
            stream.finish(source.ending, error=source.error, stop=source.stop)
        else:
            self._streams.append(stream)
            stream.when_cancelled = partial(self._leave, stream)
        return stream

    def _leave(self, stream: TokenStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            stream.finish("cancelled")
            if not self._streams and self.source is not None:
                self.source.cancel()

    async def _copy(self, source: TokenStream) -> None:
        async for drawn in source.batches():
            for stream in self._streams:
                for token in drawn:
                    stream.push(*token)
            self._drawn += len(drawn)
        for stream in self._streams:
            stream.finish(source.ending or "error", error=source.error, stop=source.stop)


def _beginning(generation: Generation, drawn: Iterable[Drawn]) -> TokenStream:
    """Return a stream with its first tokens."""
    stream = TokenStream(generation)
    for token, logprob in drawn:
        stream.push(token, logprob)
    return stream
