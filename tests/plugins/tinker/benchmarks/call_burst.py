"""208 training calls of 3.3 MB at once, and heartbeats meanwhile: what a client of the Tinker API sends for one update.

    208 clients ──► forward_backward, protobuf ──► streamward serve ──► broker ──► request_id      acknowledged
    1 client    ──► session_heartbeat, one after another, until the last call is acknowledged      how long each takes

The figures to compare with are those of SkyRL's server, which stores calls in SQLite (NovaSky-AI/SkyRL, pull request
2060): before it, 33 of 64 writes of 500 KB failed; with it, 208 of 3.3 MB took 26.8 s, heartbeats 111 ms at p95.

Not covered: the passes themselves. Clients, server and broker share this machine; theirs was another one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from streams.processes.child import free_port
from streams.settings.model import Serve, Settings
from tests.benchmarks import local_http
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.plugins.tinker.pass_messages import PROTOBUF, pass_message
from tests.support.processes import read, until

CALLS = 208
EXAMPLES, TOKENS = 100, 2060
"""Of each call: 3.3 MB."""
PEER_P95_S = 0.111
PEER_S = 26.77
BASE = "smollm2-135m-instruct"


def run() -> Iterator[dict[str, Any]]:
    """Yield how long all calls took, and p95 of the heartbeats; ValueError if a call is not acknowledged or missing."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as settings:
        here = settings.model_copy(
            update={
                "policy": settings.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "model": settings.model.model_copy(update={"base": BASE}),
                "adapters": settings.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
                "serve": Serve(port=free_port()),
            }
        )
        with process("streams.cli", "serve", settings=here):
            until(lambda: local_http.answers(here.serve.port), "an answer of the server")
            say(f"call_burst: {CALLS} calls of {EXAMPLES} examples of {TOKENS} tokens at once")
            taken_s, beats, size = asyncio.run(
                burst(f"http://127.0.0.1:{here.serve.port}/api/v1", CALLS, EXAMPLES, TOKENS)
            )
        stored = stored_numbers(here)
    if stored != [*range(1, CALLS + 1)]:
        raise ValueError(f"call_burst: {len(stored)} of {CALLS} calls are in the log")
    p95, longest = statistics.quantiles(beats, n=100)[94], max(beats)
    facts = {"calls": CALLS, "call_mb": round(size / 1e6, 2), "acknowledged": CALLS, "heartbeats": len(beats)}
    theirs = "SkyRL's figure, on another machine"
    yield line(
        "call_burst", "all calls acknowledged and in the log", ours=taken_s, peer=PEER_S, unit="s",
        ratio=PEER_S / taken_s, peer_is=theirs, **facts,
    )  # fmt: skip
    yield line(
        "call_burst", "p95 of heartbeats meanwhile", ours=p95, peer=PEER_P95_S, unit="s", ratio=PEER_P95_S / p95,
        peer_is=theirs, longest_s=round(longest, 3), **facts,
    )  # fmt: skip


def stored_numbers(settings: Settings) -> list[int]:
    """Return the numbers of the forward_backward calls in the log, sorted."""
    from schemas.events import TrainingCall

    calls = (call for _, call in read(settings, TrainingCall))
    return sorted(call.seq_id for call in calls if call.kind == "forward_backward" and call.seq_id is not None)


async def burst(url: str, calls: int, examples: int, tokens: int) -> tuple[float, list[float], int]:
    """Send calls of a new model at once; return seconds, those of each heartbeat meanwhile, and bytes of a call.

    Raises ValueError for any answer but 200.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=600) as client:
        session = (
            await post(client, "create_session", json={"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"})
        )["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": BASE, "lora_config": {"rank": 4}}
        model = (await post(client, "create_model", json=body))["request_id"]
        message = pass_message(model, 1, examples, tokens)
        bodies = []
        for number in range(1, calls + 1):
            message.seq_id = number
            bodies.append(message.SerializeToString())
        began, stop = time.perf_counter(), threading.Event()
        beating = asyncio.create_task(asyncio.to_thread(heartbeats, url, session, stop))
        sent = asyncio.gather(*(post(client, "forward_backward", content=raw, headers=PROTOBUF) for raw in bodies))
        answers = await sent
        if [answer["request_id"] for answer in answers] != [f"{model}:{number}" for number in range(1, calls + 1)]:
            raise ValueError("call_burst: a call has another id than its number")
        taken_s = time.perf_counter() - began
        stop.set()
        return taken_s, await beating, len(bodies[0])


def heartbeats(url: str, session: str, stop: threading.Event) -> list[float]:
    """Send heartbeats, one after another, until `stop` is set; return the seconds of each."""
    seconds = list[float]()
    with httpx.Client(base_url=url, timeout=600) as client:
        while not stop.wait(0.05):
            mark = time.perf_counter()
            client.post("session_heartbeat", json={"session_id": session}).raise_for_status()
            seconds.append(time.perf_counter() - mark)
    return seconds


async def post(client: httpx.AsyncClient, path: str, **how: Any) -> dict[str, Any]:
    """Return the answer to a request. Raises ValueError for any but 200."""
    answer = await client.post(path, **how)
    if answer.status_code != 200:
        raise ValueError(f"{path}: {answer.status_code}: {answer.text[:300]}")
    fields: dict[str, Any] = answer.json()
    return fields
