"""The server of agents around its engine, over HTTP: what it adds to a call, trajectories written, and their bytes.

    agents, connections that are kept ──► streamward serve, a process of its own, scripted engine ──► broker
                                     ├──► an ASGI application that answers at once: what HTTP alone takes
                                     └──► a producer: what the broker's acknowledgement alone takes

Calls come at 100 a second, each of a conversation of its own; by turns with them the same prompts go to the bare
engine, the same bodies to the application, and as many bytes to the log. Then trajectories of 8 turns as fast as they
go, 16 side by side, each turn acknowledged before its answer ends. Before both come a thousand calls that are not
counted, since a broker that has just started takes longer. At last trajectories of 2, 4, 8 and 16 turns of one length:
their bytes a token, and how far their bytes are from a straight line over their tokens.

Not covered: a client's library, and the bytes that the broker adds to a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from schemas.events import Message, Sampling, Turn
from schemas.serde import encode
from streams.engines.scripted.scripted_tokens import ScriptedRendering, ScriptedTokenEngine
from streams.engines.token_stream import Generation
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.processes.child import free_port
from streams.settings.model import Serve, Settings
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.support.processes import read, until

RATE, CALLS, ROUNDS = 100.0, 200, 3
WARM_UP = 1000
SIDE_BY_SIDE, RUNS, TURNS = 16, 400, 8
TURN_BYTES = 1000
LENGTHS = (2, 4, 8, 16)
WANTED_A_SECOND = 100.0
QUESTION = "What is 47 * 83, and why?"
AT_ONCE = json.dumps({"choices": [{"message": {"role": "assistant", "content": QUESTION}}]}).encode()
_numbers = itertools.count()
Post = Callable[[str, list[dict[str, str]]], Awaitable[dict[str, str]]]
"""Sends messages to a path, and returns the message that comes back."""


def run() -> Iterator[dict[str, Any]]:
    """Yield overhead, speed and bytes."""
    say(f"agents: {ROUNDS} rounds of {CALLS} calls at {RATE:g}/s, {RUNS} runs of {TURNS} turns")
    with node() as settings, tempfile.TemporaryDirectory() as folder:
        served, bare = free_port(), str(free_port())
        here = settings.model_copy(
            update={
                "policy": settings.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "adapters": settings.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
                "serve": Serve(port=served),
            }
        )
        module = f"{__name__}:at_once"
        quiet = ("--port", bare, "--lifespan", "off", "--log-level", "warning", "--no-access-log")
        with (
            process("streams.cli", "serve", settings=here) as server,
            process("uvicorn", module, *quiet, settings=here),
            contextlib.closing(ScriptedTokenEngine()) as engine,
        ):
            for port in (served, int(bare)):
                until(lambda port=port: _answers(port), f"an answer at port {port}")
            yield from asyncio.run(_measured((served, int(bare)), engine, psutil.Process(server.pid), here))


async def at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answer any request as soon as its body is there: an ASGI application."""
    while (await receive()).get("more_body"):
        pass
    length = str(len(AT_ONCE)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": AT_ONCE})


async def _measured(
    ports: tuple[int, int], engine: ScriptedTokenEngine, server: psutil.Process, settings: Settings
) -> list[dict[str, Any]]:
    policy, seconds = settings.policy.name, {name: list[float]() for name in ("served", "bare", "http", "log")}
    ways = dict(zip(("served", "http"), ports, strict=True))
    await _rate(ports[0], policy, runs=WARM_UP // TURNS)
    with Producer(settings, linger_ms=0, stage="agents") as producer, ThreadPoolExecutor(1) as writes:
        for _, name in itertools.product(range(ROUNDS), seconds):
            if name == "bare":
                seconds[name] += await _paced(lambda: _bare(engine), CALLS)
            elif name == "log":
                written = partial(asyncio.get_running_loop().run_in_executor, writes, _write, producer, settings)
                seconds[name] += await _paced(written, CALLS)
            else:
                async with _connected(ways[name], policy) as post:  # anew: a server closes one unused for 5 s
                    seconds[name] += await _paced(partial(_talk, post, 1), CALLS)
    lines = [_overhead(seconds, percent, most) for percent, most in ((50, 0.001), (99, 0.005))]
    lines.append(await _speed(ports, policy, server))
    named = [f"bytes-{length}" for length in LENGTHS]
    async with _connected(ports[0], policy) as post:
        for name, length in zip(named, LENGTHS, strict=True):
            await _talk(post, length, name)
    return [*lines, _bytes([turn for _, turn in read(settings, Turn)], named)]


def _overhead(seconds: dict[str, list[float]], percent: int, most: float) -> dict[str, Any]:
    """Return what a call takes beside one of the engine alone; HTTP and the log are parts of the difference."""
    at = {name: statistics.quantiles(each, n=100)[percent - 1] for name, each in seconds.items()}
    return line(
        "agents",
        f"p{percent} of a call, {RATE:g} calls/s",
        ours=at["served"],
        peer=at["bare"],
        unit="s",
        ratio=at["bare"] / at["served"],
        peer_is="the bare engine",
        overhead_s=round(at["served"] - at["bare"], 5),
        wanted_s=most,
        http_alone_s=round(at["http"], 5),
        acknowledged_alone_s=round(at["log"], 5),
    )


async def _speed(ports: tuple[int, int], policy: str, server: psutil.Process) -> dict[str, Any]:
    """Return how many trajectories are written in a second."""
    before = server.cpu_times()
    ours = await _rate(ports[0], policy)
    after = server.cpu_times()
    processor_s = after.user + after.system - before.user - before.system
    return line(
        "agents",
        f"{RUNS} trajectories of {TURNS} turns",
        ours=ours,
        peer=WANTED_A_SECOND,
        unit="trajectories/s",
        ratio=ours / WANTED_A_SECOND,
        target=1,
        peer_is="the target",
        http_alone=round(await _rate(ports[1], policy), 1),
        server_processor_s_per_call=round(processor_s / RUNS / TURNS, 5),
    )


async def _rate(port: int, policy: str, runs: int = RUNS) -> float:
    """Return how many trajectories a second are answered."""
    room = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(post: Post) -> None:
        async with room:
            await _talk(post, TURNS)

    async with _connected(port, policy) as post:
        begun = time.perf_counter()
        await asyncio.gather(*(one(post) for _ in range(runs)))
        return runs / (time.perf_counter() - begun)


def _write(producer: Producer, settings: Settings) -> None:
    """Write as many bytes as a turn has, and wait for the broker."""
    number = next(_numbers)
    producer.send_bytes(topics(settings.topics)["turns"].name, str(number).encode(), os.urandom(TURN_BYTES))
    producer.flush()


def _bytes(turns: list[Turn], names: list[str]) -> dict[str, Any]:
    """Return how the bytes of trajectories grow with their tokens."""
    sizes = [sum(len(encode(turn)) for turn in turns if turn.trajectory_id == name) for name in names]
    tokens = [
        sum(len(turn.prompt_token_ids) + len(turn.completion_token_ids) for turn in turns if turn.trajectory_id == name)
        for name in names
    ]
    slope, start = statistics.linear_regression(tokens, sizes)
    off = max(abs(size - start - slope * count) / size for size, count in zip(sizes, tokens, strict=True))
    each = [size / count for size, count in zip(sizes, tokens, strict=True)]
    return line(
        "agents",
        f"bytes a token of a trajectory of {LENGTHS[-1]} turns",
        ours=each[-1],
        peer=each[0],
        unit="bytes",
        ratio=each[0] / each[-1],
        peer_is=f"a trajectory of {LENGTHS[0]} turns",
        bytes=sizes,
        tokens=tokens,
        furthest_from_a_line=round(off, 4),
    )


async def _paced(call: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Begin so many calls at RATE, and return how long each took, seconds."""
    seconds: list[float] = []

    async def timed() -> None:
        begun = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - begun)

    tasks, due = [], time.perf_counter()
    for _ in range(count):
        due += 1 / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(timed()))
    await asyncio.gather(*tasks)
    return seconds


async def _bare(engine: ScriptedTokenEngine) -> None:
    prompt = ScriptedRendering().first((Message(role="user", content=f"{next(_numbers)}: {QUESTION}"),), ())
    asked = Generation(prompt_token_ids=prompt, sampling=Sampling(max_tokens=64), draw_key="bare")
    async for _ in engine.submit(asked):
        pass


async def _talk(post: Post, turns: int, name: str | None = None) -> None:
    number, messages = next(_numbers), list[dict[str, str]]()
    path = "/agents/bench/v1" if name is None else f"/agents/bench/trajectories/{name}/v1"
    for _ in range(turns):
        messages.append({"role": "user", "content": f"{number}: {QUESTION}"})
        messages.append(await post(path, messages))


@asynccontextmanager
async def _connected(port: int, policy: str) -> AsyncIterator[Post]:
    """Yield what sends to a server over SIDE_BY_SIDE connections, with as little of a client as there can be."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(SIDE_BY_SIDE):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))

    async def post(path: str, messages: list[dict[str, str]]) -> dict[str, str]:
        body = json.dumps({"model": policy, "messages": messages, "max_tokens": 64}).encode()
        head = f"POST {path}/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        reader, writer = connection = await free.get()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        length = next(header.partition(":")[2] for header in headers if header.lower().startswith("content-length:"))
        answer = await reader.readexactly(int(length))
        free.put_nowait(connection)
        if " 200 " not in status:
            raise ValueError(f"{status}: {answer.decode()}")
        message = json.loads(answer)["choices"][0]["message"]
        return {"role": "assistant", "content": message["content"]}

    try:
        yield post
    finally:
        while not free.empty():
            free.get_nowait()[1].close()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return True
    except OSError:
        return False
