"""The decoding thread: it admits new streams between two steps, and none hangs when a step fails.

    submit, post (any thread) ──► inbox ──► admit ──► step, step, ... ──► streams end
                                              ▲  cancelled ones are dropped between steps

A `Decoder` defines the step: this file handles threads, not models. If a step raises, every open stream ends with that
error, the decoder forgets all of them, and the next generation finds it empty: a generation that exhausts the memory
ends its neighbours, but not the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from streams.engines.token_stream import TokenStream
from streams.errors import RefusedError

T = TypeVar("T")

log = logging.getLogger(__name__)


class Decoder(Protocol):
    """Interface that the loop drives, from its own thread only."""

    def admit(self, stream: TokenStream) -> None:
        """Accept a stream; it may wait before it is run."""

    def drop(self, stream: TokenStream) -> None:
        """Forget a stream that was cancelled."""

    def step(self) -> None:
        """Push the next tokens to their streams, and finish those that are done."""

    def clear(self) -> None:
        """Forget every stream, and everything that a failed step may have left unfinished."""


class DecodingLoop:
    """Drives a decoder on a thread of its own, until closed."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._open: list[TokenStream] = []
        self._arrived: list[TokenStream] = []
        self._posted: list[Callable[[], None]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    def submit(self, stream: TokenStream) -> TokenStream:
        """Queue the stream for an answer. Raises RefusedError once the loop is closed."""
        with self._changed:
            if self._closing:
                raise RefusedError("the engine is closed and takes no more generations; start another")
            self._arrived.append(stream)
            self._changed.notify()
        return stream

    def post(self, order: Callable[[], None]) -> None:
        """Call `order` on the decoding thread before its next step."""
        with self._changed:
            self._posted.append(order)
            self._changed.notify()

    def call(self, order: Callable[[], T]) -> T:
        """Return what `order` returns on the decoding thread, before its next step.

        Raises its errors, and RefusedError once the loop is closed.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(order())
            except Exception as exc:  # any error is raised in the caller
                result.set_exception(exc)

        with self._changed:
            if self._closing:
                raise RefusedError("the engine is closed; start another")
            self._posted.append(run)
            self._changed.notify()
        return result.result()

    def close(self) -> None:
        """End every stream after the step in progress, and the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._turn()
            except Exception as exc:  # a model may raise anything, and the readers of its streams must be told
                log.exception("a decoding step failed; its %d generations end with the error", len(self._open))
                for stream in self._open:
                    stream.finish("error", error=f"the engine failed: {type(exc).__name__}: {exc}")
                self._decoder.clear()
            self._open = [stream for stream in self._open if not stream.done]
        for stream in (*self._open, *self._arrived):
            stream.finish("error", error="the engine was closed")
        for order in self._posted:  # each tells the caller that waits for it
            order()

    def _wait(self) -> bool:
        """Wait for work; return False once the loop is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._arrived or self._posted or self._closing)
            return not self._closing

    def _turn(self) -> None:
        with self._changed:
            arrived, self._arrived = self._arrived, []
            posted, self._posted = self._posted, []
        self._open += arrived
        for order in posted:
            order()
        for stream in arrived:
            self._decoder.admit(stream)
        for stream in self._open:
            if stream.cancelled and not stream.done:
                self._decoder.drop(stream)
                stream.finish("cancelled")
        self._open = [stream for stream in self._open if not stream.done]
        if self._open:  # a client may have left, or its version been unloaded, before the first step
            self._decoder.step()
