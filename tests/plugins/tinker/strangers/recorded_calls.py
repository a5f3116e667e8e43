"""Requests of Tinker's SDK and of a recipe, and the shapes of their answers: kept in a file, and sent again.

    program ──► proxy ──► server           kept: each request in order, its body without zstd, the ids of the answer
                  └──► calls.jsonl.xz ──► replay: today's ids in the place of those ──► a shape that differs

Results that the program took as protobuf are asked for in JSON, too, when the file is written. Requests that depend on
when they were sent (heartbeats, telemetry, a poll that had no result, a list from a cursor on) are left out.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import zstandard
from google.protobuf.json_format import MessageToDict

from plugins.tinker.api import protobuf
from tests.strangers.exchanges import shape, shape_of
from tests.strangers.proxy import Exchange
from tests.strangers.replay import UUID, Difference, differences

FILE = Path(__file__).parent / "calls.jsonl.xz"
PROTOBUF, ENCODING, PENDING = "application/x-protobuf", "content-encoding", 408
LEFT_OUT = ("/session_heartbeat", "/telemetry")
POLL = "/retrieve_futures"
KEPT_HEADERS = ("content-type", "accept", ENCODING)


def in_json(url: str, exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Ask a server for the results that a program took as protobuf; return what it says in JSON."""
    answers = []
    for exchange in exchanges:
        if PROTOBUF in exchange.kind:
            headers = {"content-type": "application/json", "accept": "application/json"}
            request = urllib.request.Request(url + exchange.path, exchange.body.encode(), headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - always http://
                kind, content = answer.headers["content-type"], answer.read().decode()
            answers.append(exchange._replace(headers=headers, kind=kind, answer=content))
    return answers


def compact(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """Return what the file keeps of exchanges."""
    return [
        {
            "method": exchange.method,
            "path": exchange.path,
            "headers": {name: value for name, value in exchange.headers.items() if name in KEPT_HEADERS},
            "body": _plain_body(exchange),
            "ids": list(dict.fromkeys(UUID.findall(exchange.answer))),
            "status": exchange.status,
            "shape": shape_of_answer(exchange.path, exchange.body, exchange.kind, exchange.answer),
        }
        for exchange in exchanges
        if not _depends_on_time(exchange)
    ]


def routes(calls: Iterable[dict[str, Any]]) -> list[str]:
    """Return the routes of recorded calls with their statuses, each once."""
    return sorted({f"{call['method']} {_route(call['path'])} {call['status']}" for call in calls})


def replay(url: str, calls: Iterable[dict[str, Any]]) -> list[Difference]:
    """Send recorded requests to a server, in order; return those whose answers have another shape."""
    with httpx.Client(base_url=url, timeout=300) as client:
        return differences(client, calls, send=_send, shape_at=shape_of_answer)


def _send(client: httpx.Client, call: Mapping[str, Any], path: str, body: str) -> httpx.Response:
    """Send a recorded request until it has a result, with its body as the SDK packs it."""
    content = body.encode(errors="surrogateescape")
    if call["headers"].get(ENCODING) == "zstd":
        content = zstandard.ZstdCompressor().compress(content)
    while True:
        answer = client.request(call["method"], path, content=content, headers=call["headers"])
        if not _is_pending(path, answer.status_code, answer.text):
            return answer


def shape_of_answer(path: str, body: str, kind: str, answer: str) -> Any:
    """Return the shape of an answer, of protobuf as that of the same fields in JSON."""
    if PROTOBUF not in kind:
        return shape_of(kind, answer)
    name = "SampleResponse" if ":sample:" in json.loads(body)["request_id"] else "ForwardBackwardOutput"
    message = protobuf.read(name, answer.encode(errors="surrogateescape"))
    return [PROTOBUF, shape(MessageToDict(message, preserving_proto_field_name=True))]


def _plain_body(exchange: Exchange) -> str:
    if exchange.headers.get(ENCODING) != "zstd":
        return exchange.body
    content = zstandard.ZstdDecompressor().decompress(exchange.body.encode(errors="surrogateescape"))
    return content.decode(errors="surrogateescape")


def _depends_on_time(exchange: Exchange) -> bool:
    is_later_poll = exchange.path.endswith(POLL) and bool(json.loads(exchange.body).get("prev_cursor"))
    pending = _is_pending(exchange.path, exchange.status, exchange.answer)
    return pending or exchange.path.endswith(LEFT_OUT) or is_later_poll


def _is_pending(path: str, status: int, answer: str) -> bool:
    """Return whether a server answers that there is no result yet."""
    return status == PENDING or (path.endswith(POLL) and status == 200 and json.loads(answer)["completions"] == [])


def _route(path: str) -> str:
    return UUID.sub("ID", path.partition("?")[0])
