"""A conversation of 800 turns: what a turn costs the server of agents then, against what it cost at the twentieth.

    bodies of a conversation that grows ──► the server, its log in memory ──► CPU seconds a call
                                  ├──► read and checked ──► CPU seconds of that
                                  └──► the turn that is continued ──► CPU seconds of that

A client sends the whole conversation with each call, here about 200 characters a turn. By turns with the long
conversation, short ones are made. Answers are there at once, so no model takes part; a token is a byte.

Not covered: the connection, the broker's acknowledgement, and a model, to which a longer prompt costs more anyway.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from gateway.agents import chat
from gateway.agents.caller import Caller
from gateway.http.body import read_call
from streams.engines.scripted.scripted_engine import END_OF_TURN
from streams.engines.scripted.scripted_tokens import ScriptedRendering
from tests.benchmarks.side_by_side import line, say
from tests.support.server_in_memory import ServerInMemory, serving

EARLY, LATE = 20, 800
ROUNDS, CALLS = 9, 10
TEXT = "The wind is from the west, and there may be some rain in the afternoon, but not before four o'clock."
CALL, READ, FIND = "a call", "reading a call", "finding the turn that a call continues"
ANSWER = (*TEXT.encode(), END_OF_TURN)
_numbers = itertools.count()


def run() -> Iterator[dict[str, Any]]:
    """Yield what a call costs, and the two parts of it that have to look at the whole history."""
    say(f"long_conversation: turn {LATE} against turn {EARLY}, {ROUNDS} rounds of {CALLS} calls")
    seconds: dict[str, dict[int, list[float]]] = {case: {EARLY: [], LATE: []} for case in (CALL, READ, FIND)}
    with serving(ScriptedRendering(), frozenset({END_OF_TURN}), remembered_mb=1000) as server:
        late = GrowingConversation(server)
        late.grow(LATE)
        for _ in range(ROUNDS):
            early = GrowingConversation(server)
            early.grow(EARLY)
            for turns, conversation in ((EARLY, early), (LATE, late)):
                parts = [conversation.next_call_s() for _ in range(CALLS)]
                seconds[READ][turns] += [reading for reading, _ in parts]
                seconds[FIND][turns] += [finding for _, finding in parts]
                seconds[CALL][turns] += conversation.grow(CALLS)
    for case, of_case in seconds.items():
        yield _result(case, of_case)


class GrowingConversation:
    """A conversation, and its next turns."""

    def __init__(self, server: ServerInMemory) -> None:
        self._server, self._name, self._messages = server, next(_numbers), list[dict[str, str]]()

    def grow(self, turns: int) -> list[float]:
        """Have so many turns answered, and return the CPU seconds of the server for each."""
        seconds = []
        for _ in range(turns):
            body = self._next_body()
            self._server.engine.says(ANSWER)
            begun = time.process_time()
            self._server.run(_answer(self._server.app, body))
            seconds.append(time.process_time() - begun)
            self._messages.append({"role": "user", "content": self._question()})
            self._messages.append({"role": "assistant", "content": TEXT})
        return seconds

    def next_call_s(self) -> tuple[float, float]:
        """Return the CPU seconds of reading the next call, and of finding the turn that it continues."""
        [conversations] = self._server.recorder._conversations
        raw = self._next_body()
        begun = time.process_time()
        body, digest = read_call(chat.ChatBody, raw)
        call = chat.call(body, Caller("default", None, digest, None))
        read = time.process_time()
        conversation = conversations.find_continued(call)
        assert conversation is not None
        placement = conversation.chains.place(call.messages, call.tools, digests=call.digests)
        found = time.process_time()
        assert len(placement.new) == 1
        return read - begun, found - read

    def _question(self) -> str:
        return f"{self._name}: {TEXT}"

    def _next_body(self) -> bytes:
        messages = [*self._messages, {"role": "user", "content": self._question()}]
        return json.dumps({"model": "sums", "messages": messages, "max_tokens": 256}).encode()


async def _answer(app: Any, body: bytes) -> None:
    """Send a call to an application of ASGI, and take its answer."""
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    parts, statuses = iter([{"type": "http.request", "body": body}]), list[int]()

    async def receive() -> dict[str, Any]:
        for part in parts:
            return part
        await asyncio.Event().wait()  # the client stays
        raise AssertionError("not reached")

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    await app(scope, receive, send)
    assert statuses == [200]


def _result(case: str, seconds: dict[int, list[float]]) -> dict[str, Any]:
    """Return what a call costs late in a conversation, against an early one."""
    ours, peer = (statistics.median(seconds[turns]) for turns in (LATE, EARLY))
    return line(
        "long_conversation",
        f"{case}, turn {LATE}",
        ours=ours,
        peer=peer,
        unit="s",
        ratio=peer / ours,
        peer_is=f"turn {EARLY}",
        us_a_turn_between=round(1e6 * (ours - peer) / (LATE - EARLY), 2),
    )
