"""Threads of the Agent Protocol: how soon a run is seen, and how long a long thread takes to be read.

    POST /acp/runs/stream ──► the run is in the log ──► its first event      beside: the first byte of a chat's stream
    GET /acp/threads/{id} with 1,000 messages ──► the whole thread     of its own events, and of tasks and their answers

One call after another, by turns, over a connection of each way that is kept; server, engine and broker are those of
`streamward serve` on the scripted engine. The work of a run is what a chat's stream takes until its first byte.

Not covered: many callers at once, and a broker on another machine.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from schemas.events import Message
from streams.kafka.producer import Producer
from streams.processes.child import free_port
from streams.settings.model import Serve, Settings
from tests.benchmarks import local_http
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import LEAST_S, line, say
from tests.support.factories import T0, response, task
from tests.support.processes import until

CALLS, WARM_UP = 300, 100
MESSAGES, READS = 1000, 50
FIRST_AIM_S, THREAD_AIM_S = 0.020, 0.050
TEXT = "What is 47 * 83, and why? " * 4


def run() -> Iterator[dict[str, Any]]:
    """Yield what a run's first event takes over that of a chat, and what a long thread takes, both in seconds."""
    say(f"threads: {CALLS} runs and chats by turns, and a thread of {MESSAGES} messages")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as made:
        settings = made.model_copy(
            update={
                "policy": made.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "adapters": made.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
                "serve": Serve(port=free_port()),
            }
        )
        with process("streams.cli", "serve", settings=settings):
            port = settings.serve.port
            until(lambda: local_http.answers(port), f"an answer at port {port}")
            with closing(local_http.connection(port)) as chats, closing(local_http.connection(port)) as runs:
                seconds = _first_events(chats, runs, settings.policy.name)
                reads = {"": _reads(runs, _long_thread(runs)), " of tasks": _reads(runs, _task_thread(settings))}
    bare, ours = (statistics.median(seconds[way]) for way in ("chat", "run"))
    added = max(ours - bare, LEAST_S)
    yield line(
        "threads", "p50 of a run's first event, over a chat's", ours=added, peer=FIRST_AIM_S, unit="s",
        ratio=FIRST_AIM_S / added, target=1.0, peer_is="the aim", chat_s=round(bare, 5), run_s=round(ours, 5),
        calls=CALLS,
    )  # fmt: skip
    for origin, times in reads.items():
        read = statistics.median(times)
        yield line(
            "threads", f"p50 of reading a thread of {MESSAGES} messages{origin}", ours=read, peer=THREAD_AIM_S,
            unit="s", ratio=THREAD_AIM_S / read, target=1.0, peer_is="the aim", reads=READS,
        )  # fmt: skip


def _first_events(
    chats: http.client.HTTPConnection, runs: http.client.HTTPConnection, model: str
) -> dict[str, list[float]]:
    """Return how long the first event of each stream took, seconds."""
    seconds: dict[str, list[float]] = {"chat": [], "run": []}
    for number in range(WARM_UP + CALLS):
        message = {"role": "user", "content": f"{number}: what is 47 * 83, and why?"}
        bodies = {
            "chat": (chats, "/v1/chat/completions", {"model": model, "messages": [message], "stream": True}),
            "run": (runs, "/acp/runs/stream", {"messages": [message], "stream_mode": "messages"}),
        }
        for way, (connection, path, body) in bodies.items():
            mark = time.perf_counter()
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read(1)
            if number >= WARM_UP:
                seconds[way].append(time.perf_counter() - mark)
            response.read()
    return seconds


def _long_thread(connection: http.client.HTTPConnection) -> str:
    """Return a thread whose messages are in its own events."""
    thread = local_http.send(connection, "POST", "/acp/threads", {})["thread_id"]
    pair = [{"role": role, "content": TEXT} for role in ("user", "assistant")]
    for _ in range(MESSAGES // 20):
        local_http.send(connection, "PATCH", f"/acp/threads/{thread}", {"messages": pair * 10})
    return str(thread)


def _task_thread(settings: Settings) -> str:
    """Return a thread whose messages are those of tasks and of their answers."""
    thread = str(uuid.uuid4())
    with Producer(settings) as producer:
        for number in range(MESSAGES // 2):
            name, question = f"{thread}-{number}", Message(role="user", content=TEXT)
            producer.send(task(task_id=name, thread=thread, created_at=T0 + number, messages=(question,)))
            producer.send(response(task_id=name, text=TEXT, created_at=T0 + number))
    return thread


def _reads(connection: http.client.HTTPConnection, thread: str) -> list[float]:
    """Return how long a long thread takes to be read, seconds."""

    def is_whole() -> bool:
        return len(local_http.send(connection, "GET", f"/acp/threads/{thread}")["messages"]) == MESSAGES

    seconds: list[float] = []
    until(is_whole, f"a thread of {MESSAGES} messages")
    for _ in range(READS):
        mark = time.perf_counter()
        found = local_http.send(connection, "GET", f"/acp/threads/{thread}")
        seconds.append(time.perf_counter() - mark)
        if len(found["messages"]) != MESSAGES:
            raise ValueError(f"the thread has {len(found['messages'])} messages; expected {MESSAGES}")
    return seconds
