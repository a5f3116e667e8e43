"""Recorded requests of other people's programs, sent again: which answers are others today.

    exchanges.recorded ──► each request, with the ids of today ──► server ──► status and shape ──► Difference

An id that an answer gave is another one today. A recorded request has it as it was, if its exchange lists the `ids` of
its answer, or as the number of its first place among all of them: {id 3}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import httpx

from tests.strangers.exchanges import shape_of

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAMED = re.compile(rf"{UUID.pattern}|\{{id \d+\}}")
SHOWN = 300
"""Characters of a text in a Difference."""

Exchange = Mapping[str, Any]
"""A line of a file: method, path, headers, body, ids, status and shape."""


class Difference(NamedTuple):
    """A request whose answer is another one today."""

    method: str
    path: str
    body: str
    status: int
    answer: str


class IdsOfToday:
    """What the ids of recorded answers are today."""

    def __init__(self) -> None:
        self._today: dict[str, str] = {}
        self._numbered: set[str] = set()

    def fill(self, text: str) -> str:
        """Return a recorded text with the ids of today."""
        return NAMED.sub(lambda match: self._today.get(match[0], match[0]), text)

    def take(self, exchange: Exchange, answer: str) -> None:
        """Take in what a recorded request was answered today."""
        ids = list(dict.fromkeys(UUID.findall(answer)))
        for new in ids:
            if new not in self._numbered:
                self._today[f"{{id {len(self._numbered)}}}"] = new
                self._numbered.add(new)
        self._today.update(zip(exchange.get("ids", ()), ids, strict=False))


def send(client: httpx.Client, exchange: Exchange, path: str, body: str) -> httpx.Response:
    """Send a recorded request."""
    content = body.encode(errors="surrogateescape") or None
    return client.request(exchange["method"], path, content=content, headers=exchange.get("headers", {}))


def shape_at(_path: str, _body: str, kind: str, answer: str) -> Any:
    """Return the shape of an answer."""
    return shape_of(kind, answer)


def differences(
    client: httpx.Client,
    recorded: Iterable[Exchange],
    *,
    settled: Callable[[Any], Any] = lambda shape: shape,
    send: Callable[[httpx.Client, Exchange, str, str], httpx.Response] = send,
    shape_at: Callable[[str, str, str, str], Any] = shape_at,
) -> list[Difference]:
    """Send recorded requests again, in order; return those with another status or shape.

    `settled`: what of a shape does not depend on when it was asked for.
    """
    different, ids = [], IdsOfToday()
    for each in recorded:
        path, body = ids.fill(each["path"]), ids.fill(each["body"])
        response = send(client, each, path, body)
        answer = response.content.decode(errors="surrogateescape")
        shape = shape_at(path, body, response.headers.get("content-type", ""), answer)
        if (response.status_code, settled(shape)) != (each["status"], settled(each["shape"])):
            different.append(Difference(each["method"], path, body[:SHOWN], response.status_code, answer[:SHOWN]))
        ids.take(each, answer)
    return different
