"""What suites of others asked, kept small: each request once, and of its answer the shape.

    exchanges ──► one a request ──► exchanges.jsonl.xz ──► asked again in `make test`, and the shapes compared

A shape has the names and types of an answer's fields, and the values of those that others decide by (`VALUES`). Of a
stream it has the shape of each event, where equal ones that follow each other count once. Requests that name an answer
given before are left out: its id is another one today. So are those about files and jobs (`MADE`), for the same reason.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.strangers.proxy import Exchange

FILE = Path(__file__).parent / "exchanges.jsonl.xz"
VALUES = ("object", "type", "role", "status", "finish_reason", "stop_reason", "stop_sequence", "code", "param")
"""Fields whose values are part of a shape."""
MADE = ("/v1/files", "/v1/fine_tuning")
"""How paths begin that have the id of what was made for the request; test_fine_tuning_over_http.py asks such."""
LONGEST = 20_000
"""Longer requests are left out: they are about size, which has tests of its own."""


def shape(value: Any) -> Any:
    """Return what remains of JSON when texts and numbers become their types."""
    if isinstance(value, dict):
        return {name: each if name in VALUES and _plain(each) else shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return _once(shape(each) for each in value)
    return None if value is None else "number" if isinstance(value, int | float) else "text"


def shape_of(kind: str, answer: str) -> Any:
    """Return the shape of an answer's body."""
    if not kind.startswith("text/event-stream"):
        has_json = kind.startswith("application/json") and answer  # that to HEAD is empty
        return shape(json.loads(answer)) if has_json else kind
    frames = []
    for frame in answer.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines())
        data = lines.get("data")
        if data is not None:
            frames.append([lines.get("event"), data if data == "[DONE]" else shape(json.loads(data))])
    return [frame for n, frame in enumerate(frames) if not n or frame != frames[n - 1]]


def compact(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """Return each request once, with the shape of its answer."""
    found = {
        (each.method, each.path, each.body): {
            "method": each.method,
            "path": each.path,
            "headers": {name: value for name, value in each.headers.items() if name == "anthropic-version"},
            "body": each.body,
            "status": each.status,
            "shape": shape_of(each.kind, each.answer),
        }
        for each in exchanges
        if len(each.body) <= LONGEST and '"resp_' not in each.body and not each.path.startswith(MADE)
    }
    return [found[key] for key in sorted(found)]


def write(exchanges: Iterable[dict[str, Any]], file: Path = FILE) -> None:
    """Replace the file."""
    text = "".join(json.dumps(each, sort_keys=True) + "\n" for each in exchanges)
    file.write_bytes(lzma.compress(text.encode(), preset=9))


def recorded(file: Path = FILE) -> list[dict[str, Any]]:
    """Return what the file has."""
    return [json.loads(line) for line in lzma.decompress(file.read_bytes()).splitlines()]


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool)


def _once(shapes: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for each in shapes:
        if each not in found:
            found.append(each)
    return found
