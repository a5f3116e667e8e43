"""Take in what comes from outside: bytes, as they were before their Content-Encoding, and counted before any parser.

    body, or message of a WebSocket ──► bytes ──► unpacked ──► values and levels ──► bytes that may be parsed
                                          └────────── or 413 ────────┘

Every door has an Intake: each route, MCP, the WebSocket of tools, the forms of the page. A long body is counted and
parsed in a thread (`read_apart`), as the event loop has others to answer. A parser keeps Python's lock, so a thread
alone would not help: the bounds do.

Not covered: the time of a body (limits.py), and what comes before it (connection.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request

from schemas import json_text
from streams.errors import CallError

MOST_LEVELS = 100
"""Deepest nesting of a body in JSON."""
MOST_RATIO = 100
"""How many times as long as it was sent a body may be, once it is unpacked and longer than LARGE_BYTES."""
LARGE_BYTES = 128 * 1024
"""A longer body is read in a thread; for a shorter one, going there and back costs more than it saves."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Intake:
    """How much a body or a message may have."""

    max_bytes: int
    bound: str = "the most that is taken here"
    """Where `max_bytes` is from."""
    max_values: int | None = None
    """Of JSON; None: it is no JSON."""
    max_numbers: int = 0
    """Of JSON, in addition: values in lists of numbers."""
    uncounted: Collection[str] = ()
    """Content types of bodies that are no JSON, and have readers with bounds of their own."""

    async def body(self, request: Request) -> bytes:
        """Return the body of a request. Raises CallError if it has too much; a declared length is enough."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise self._too_long()
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > self.max_bytes:
                raise self._too_long()
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        content = bytes(raw)
        if encoding not in ("", "identity"):
            content = await asyncio.to_thread(self._unpacked, encoding, content)
        if content_type(request.headers) not in self.uncounted:
            await self.check(content)
        return content

    async def check(self, raw: bytes) -> None:
        """Raise CallError if a body or a message has too much."""
        if len(raw) > self.max_bytes:
            raise self._too_long()
        if self.max_values is not None:
            await read_apart(self._count, raw)

    def _count(self, raw: bytes) -> None:
        assert self.max_values is not None  # noqa: S101 - else nothing is counted
        try:
            json_text.check_extent(raw, self.max_values, MOST_LEVELS, self.max_numbers)
        except json_text.ExtentError as exc:
            raise CallError("too_large", f"the body: {exc}; send less") from exc
        except UnicodeDecodeError:  # no JSON: the reader of the body says so
            return

    def _too_long(self) -> CallError:
        return CallError("too_large", f"the body is longer than {self.max_bytes} bytes ({self.bound}); send less")

    def _unpacked(self, encoding: str, raw: bytes) -> bytes:
        """Return a body as it was before its Content-Encoding, of which no more is unpacked than may be."""
        if encoding != "zstd":
            raise CallError("unsupported", f"Content-Encoding {encoding[:40]}: expected zstd, or none")
        try:
            import zstandard
        except ImportError as exc:
            problem = (
                "Content-Encoding zstd: the server cannot read it; install streamward[tinker], or send it as it is"
            )
            raise CallError("unsupported", problem) from exc
        limit = min(self.max_bytes, max(MOST_RATIO * len(raw), LARGE_BYTES))
        too_large = CallError(
            "too_large",
            f"the body is longer than {limit} bytes once it is unpacked: at most {self.max_bytes} ({self.bound}), and "
            f"{MOST_RATIO} times as long as it was sent; send less, or send it as it is",
        )
        size = 0
        try:
            size = zstandard.frame_content_size(raw)
            if size > limit:
                raise too_large
            content: bytes = zstandard.ZstdDecompressor().decompress(raw, max_output_size=limit)
        except zstandard.ZstdError as exc:
            if size < 0:  # it does not say how long it is
                raise CallError("too_large", f"{too_large.message}; or it is no zstd: {exc}") from exc
            raise CallError("invalid", f"the body is no zstd: {exc}") from exc
        return content


async def read_apart(read_bytes: Callable[[bytes], T], raw: bytes) -> T:
    """Return what a function makes of a body; in a thread if it is long."""
    return await asyncio.to_thread(read_bytes, raw) if len(raw) > LARGE_BYTES else read_bytes(raw)


def content_type(headers: Headers) -> str:
    """Return the type of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
