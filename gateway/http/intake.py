"""Take in bytes from outside: decode their Content-Encoding, and count values and nesting before any parser runs.

    body, or message of a WebSocket ──► bytes ──► unpacked ──► values and levels ──► bytes that may be parsed
                                          └────────── or 413 ────────┘

Every entrance has an Intake: each route, MCP, the WebSocket of tools, forms. A long body is counted and
parsed in a thread (`read_apart`), which keeps the event loop free. A parser holds Python's lock, so a thread alone
would not help: the bounds do.

Not covered: the time of a body (limits.py), and the head (connection.py).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request

from schemas import json_text
from streams.errors import CallError

MOST_LEVELS = 100
"""Deepest nesting of a body in JSON."""
MOST_RATIO = 100
"""Largest ratio of unpacked to sent size, for bodies that unpack to more than LARGE_BYTES."""
LARGE_BYTES = 128 * 1024
"""A longer body is read in a thread; for a shorter one, the switch costs more than it saves."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""Bytes of memory that a frame may ask for, RFC 9659."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Limits on a body or a message."""

    max_bytes: int
    bound: str = "the most that is taken here"
    """Where `max_bytes` is from."""
    max_values: int | None = None
    """Of JSON; None: it is not JSON."""
    max_numbers: int = 0
    """Of JSON, in addition: values in lists of numbers."""
    uncounted: Collection[str] = ()
    """Content types of bodies that are not JSON; their readers have their own bounds."""

    async def raw(self, request: Request) -> bytes:
        """Return the body of a request as it was sent. Raises CallError if it is too long; a declared length is
        enough."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise self._too_long()
        raw = bytearray()
        async for part in request.stream():
            raw += part
            if len(raw) > self.max_bytes:
                raise self._too_long()
        return bytes(raw)

    async def body(self, request: Request) -> bytes:
        """Return the body of a request, unpacked. Raises CallError if it has too much."""
        content = await self.raw(request)
        if coding := _coding(request.headers):
            content = await asyncio.to_thread(self._unpack, coding, content)
        if content_type(request.headers) not in self.uncounted:
            await self.check(content)
        return content

    async def check(self, raw: bytes) -> None:
        """Raise CallError if a body or a message is over a limit."""
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
        except UnicodeDecodeError:  # not JSON: the reader of the body reports it
            return

    def _too_long(self) -> CallError:
        return CallError("too_large", f"the body is longer than {self.max_bytes} bytes ({self.bound}); send less")

    def _unpack(self, coding: str, raw: bytes) -> bytes:
        """Return a body without a coding; no more than the limit is unpacked."""
        limit = min(self.max_bytes, max(MOST_RATIO * len(raw), LARGE_BYTES))
        try:
            content = CODINGS[coding](raw, limit + 1)
        except KeyError:
            problem = f"Content-Encoding {coding[:40]}: expected {', '.join(CODINGS)}, or none"
            raise CallError("unsupported_media_type", problem) from None
        except ImportError:
            problem = f"Content-Encoding {coding}: the server cannot read it; install zstandard, or send gzip"
            raise CallError("unsupported_media_type", problem) from None
        except UnreadableError as exc:
            raise CallError("invalid", f"Content-Encoding {coding}: the body is none: {exc}") from exc
        if len(content) > limit:
            raise CallError(
                "too_large",
                f"the body is longer than {limit} bytes once it is unpacked: at most {self.max_bytes} ({self.bound}), "
                f"and {MOST_RATIO} times as long as it was sent; send less, or send it as it is",
            )
        return content


class UnreadableError(Exception):
    """A body is not in the coding that its header names."""


def _inflate(formats: Collection[int], raw: bytes, most: int) -> bytes:
    for bits in formats:
        reader = zlib.decompressobj(bits)
        try:
            content = reader.decompress(raw, most)
        except zlib.error as exc:
            problem = str(exc)
            continue
        if reader.unused_data or (len(content) < most and not reader.eof):
            raise UnreadableError("it ends too early, or continues after its end")
        return content
    raise UnreadableError(problem)


def _unpack_zstd(raw: bytes, most: int) -> bytes:
    import zstandard

    try:
        size = zstandard.frame_content_size(raw)
        with zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(raw) as reader:
            content: bytes = reader.read(most)
    except zstandard.ZstdError as exc:
        raise UnreadableError(str(exc)) from exc
    if len(content) < min(size, most):
        raise UnreadableError("it ends too early")
    return content


CODINGS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_inflate, [zlib.MAX_WBITS + 16]),
    "deflate": partial(_inflate, [zlib.MAX_WBITS, -zlib.MAX_WBITS]),  # some clients leave out zlib's header
    "zstd": _unpack_zstd,
}
"""How a body of each Content-Encoding is unpacked, up to a number of bytes. Raises UnreadableError, ImportError."""


def _coding(headers: Headers) -> str:
    """Return the coding of a body; empty: none."""
    value = ", ".join(headers.getlist("content-encoding")).strip().lower()
    return "" if value == "identity" else value.removeprefix("x-")


async def read_apart(read_bytes: Callable[[bytes], T], raw: bytes) -> T:
    """Return what a function makes of a body; in a thread if it is long."""
    return await asyncio.to_thread(read_bytes, raw) if len(raw) > LARGE_BYTES else read_bytes(raw)


def content_type(headers: Headers) -> str:
    """Return the type of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
