"""One generation in progress: the request, and the tokens as they are drawn.

    any thread: submit(Generation) ──► TokenStream ◄── push, finish: the thread that decodes
                                           └────► for, async for, batches: (token, logprob); cancel()

Tokens stay in the stream, so a reader that comes late, or reads twice, misses none. A failed generation is data, like a
failed slot: it ends with "error", and `error` says why.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.events import Sampling
from streams.engines.constraint import Constraint
from streams.observability.trace_context import Context

Ending = Literal["stop", "length", "cancelled", "error"]
Drawn = tuple[int, float]
"""A token, and its logprob in nats: the policy's own, even if a constraint removed others (decoding_row.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer to draw. Its tokens are a function of only the fields up to `constraint`, and the weights."""

    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    draw_key: str
    """Seeds the random numbers, with the slot and the number of the token; see `protocol.uniform`."""
    slot: int = 0
    version: int = 0
    """Version of the adapter, which must be loaded; 0 is the base model."""
    constraint: Constraint | None = None
    """The grammar of the answer, compiled by the engine that answers; None: free."""
    conversation: str = ""
    """Key of the conversation that it continues: of several servers, the one with its beginning in the cache
    answers."""
    owner: str = ""
    """The policy, if an engine answers for several: waiting generations begin round-robin by policy."""
    trace: Context | None = None
    """Where it is in a trace, for a server that is traced too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOrigin:
    """Where an answer is from, if it was not sampled now by the version and the engine that were asked."""

    version: int | None = None
    engine: str | None = None
    base_digest: str | None = None
    """None: as asked, like the others."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the record of the answer says about it, in its metadata, by names that begin with ORIGIN."""


ORIGIN = "origin."


class TokenStream:
    """The answer to one generation. The engine writes it; any number of threads and event loops read it."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.origin: AnswerOrigin | None = None
        """Where it is from; None: as its generation says. Set before the first token."""
        self.drawn: list[Drawn] = []
        """All tokens so far, including a drawn end of turn."""
        self.cached_tokens = 0
        """Number of prompt tokens that were not run, as their keys and values were cached. Set before the first
        token."""
        self.ending: Ending | None = None
        self.error: str | None = None
        self.stop: str | None = None
        """The stop text that ended it; its characters may be in the last tokens."""
        self.cancelled = False
        self.when_cancelled: Callable[[], None] | None = None
        """Called by `cancel`, for an engine that does not poll `cancelled`."""
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.ending is not None

    def cancel(self) -> None:
        """Request its end after the step in progress; no effect after its end."""
        self.cancelled = True
        if self.when_cancelled is not None:
            self.when_cancelled()

    def __iter__(self) -> Iterator[Drawn]:
        """Yield each token as soon as it is drawn, from the first; block until the end."""
        start = 0
        while True:
            with self._changed:
                while len(self.drawn) == start and not self.done:
                    self._changed.wait()
                fresh, done = self.drawn[start:], self.done
            yield from fresh
            start += len(fresh)
            if done:
                return

    async def __aiter__(self) -> AsyncIterator[Drawn]:
        """Yield each token as soon as it is drawn, from the first, without blocking the event loop."""
        async for fresh in self.batches():
            for drawn in fresh:
                yield drawn

    async def batches(self) -> AsyncGenerator[list[Drawn], None]:
        """Yield the new tokens as soon as any are drawn; a busy loop gets more at once."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        is_woken, start = False, 0

        def wake() -> None:
            nonlocal is_woken
            if not is_woken:  # waking the loop costs a system call
                is_woken = True
                loop.call_soon_threadsafe(news.set)

        with self._changed:
            self._listeners.append(wake)
        try:
            while True:
                news.clear()
                with self._changed:
                    is_woken, fresh, done = False, self.drawn[start:], self.done
                if fresh:
                    yield fresh
                start += len(fresh)
                if done:
                    return
                await news.wait()
        finally:
            with self._changed:
                self._listeners.remove(wake)

    # --- for the engine ----------------------------------------------------------------------------------------------

    def push(self, token: int, logprob: float) -> None:
        """Append a token; no effect after its end."""
        with self._changed:
            if self.ending is None:
                self.drawn.append((token, logprob))
                self._notify()

    def finish(self, ending: Ending, *, error: str | None = None, stop: str | None = None) -> None:
        """End it. The first end counts."""
        with self._changed:
            if self.ending is None:
                self.ending, self.error, self.stop = ending, error, stop
                self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._listeners:
            try:
                wake()
            except RuntimeError:  # its event loop was closed while the reader waited
                continue
