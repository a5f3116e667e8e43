"""A client as agents are: it streams its answers, asks again until it has one, and writes down what it was given.

    python agent_client.py GIVEN ──► OPENAI_BASE_URL, STREAMWARD_PROMPT ──► two calls ──► a line each in GIVEN

It knows the API of chat completions and nothing else. A line is written once an answer has ended, so what is in the
file was acknowledged to a client.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PAUSE_S = 0.1
"""Before a call is made again that has no answer."""
LIMIT_S = 20.0
"""How long a client waits for the next part of an answer."""


class GivenAnswer(NamedTuple):
    """An answer whose end came."""

    answer_id: str
    text: str
    logprobs: list[float]


class Refused(Exception):
    """The server will not answer this call, however often it is made."""


def ask(base_url: str, messages: list[dict[str, str]], *, within_s: float = 120.0) -> GivenAnswer:
    """Return the answer to a conversation, asked for again while there is none.

    Raises Refused if the server says that there will be none, TimeoutError if there is none `within_s`.
    """
    body = json.dumps({"model": "default", "messages": messages, "stream": True, "logprobs": True, "max_tokens": 16})
    deadline = time.monotonic() + within_s
    while True:
        try:
            return _once(base_url, body.encode())
        except (OSError, http.client.HTTPException) as exc:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{base_url} gave no answer within {within_s:g} s: {exc!r}") from exc
        time.sleep(PAUSE_S)


def _once(base_url: str, body: bytes) -> GivenAnswer:
    """Return the answer. Raises ConnectionError if it breaks off or is not given now, Refused as `ask`."""
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=LIMIT_S)
    try:
        connection.request("POST", f"{url.path}/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read().decode(errors="replace")
            kind = ConnectionError if answer.status >= 500 else Refused
            raise kind(f"{answer.status}: {said}")
        return _read(answer)
    finally:
        connection.close()


def _read(answer: http.client.HTTPResponse) -> GivenAnswer:
    name, text, logprobs, finished = "", "", list[float](), False
    for event in _events(answer):
        if event is None:
            if not finished:
                raise ConnectionError("the stream ended without a finish_reason")
            return GivenAnswer(name, text, logprobs)
        if "error" in event:
            raise ConnectionError(str(event["error"]))
        name = event["id"]
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            logprobs += [token["logprob"] for token in (choice["logprobs"] or {"content": []})["content"]]
            finished = finished or choice["finish_reason"] is not None
    raise ConnectionError("the stream broke off")


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a stream, None for its end."""
    for line in answer:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield None if data == b"[DONE]" else json.loads(data)


def converse(base_url: str, file: str, said: list[str]) -> None:
    """Say these things one after the other, and write down each answer."""
    messages: list[dict[str, str]] = []
    for text in said:
        messages.append({"role": "user", "content": text})
        given = ask(base_url, messages)
        messages.append({"role": "assistant", "content": given.text})
        note(file, given)


def note(file: str, given: GivenAnswer) -> None:
    """Write down an answer, in one piece, whoever else writes."""
    ledger = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, json.dumps(given).encode() + b"\n")
    finally:
        os.close(ledger)


def main(file: str) -> None:
    """Be an agent that adds; which of its runs are right follows from their addresses."""
    base_url, prompt = os.environ["OPENAI_BASE_URL"], os.environ["STREAMWARD_PROMPT"]
    result = sum(int(part) for part in prompt.rstrip(" =").split("+"))
    wrong = zlib.crc32(base_url.encode()) % 2
    converse(base_url, file, [prompt, str(result + wrong)])


if __name__ == "__main__":
    main(sys.argv[1])
