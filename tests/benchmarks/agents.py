"""The server of agents around its engine: how long a call waits for it, trajectories written, and their bytes.

Scripted engine, real broker, without HTTP. Calls come at 100 a second, each of a conversation of its own, and then the
same prompts at the same rate to the bare engine. Then trajectories of 8 turns as fast as they go, 16 side by side, each
turn acknowledged before the next. At last trajectories of 2, 4, 8 and 16 turns of one length: their bytes a token, and
how far their bytes are from a straight line over their tokens.

Not covered: HTTP, and the bytes that the broker adds to a record.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from schemas.events import Message, Sampling, Turn
from schemas.serde import encode
from streams.engines.scripted_rendering import ScriptedRendering
from streams.engines.scripted_tokens import ScriptedTokenEngine
from streams.engines.token_stream import Generation
from streams.observability.metrics import OFF
from streams.settings.model import Settings
from streams.stages.agents.calls import Done, ModelCall
from streams.stages.agents.recorder import Recorder
from streams.stages.agents.service import opened
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import line, say
from tests.support.processes import read

RATE, CALLS = 100.0, 600
SIDE_BY_SIDE, RUNS, TURNS = 16, 400, 8
LENGTHS = (2, 4, 8, 16)
WANTED_A_SECOND = 100.0
QUESTION = "What is 47 * 83, and why?"
_numbers = itertools.count()


def run() -> Iterator[dict[str, Any]]:
    """Yield overhead, speed and bytes."""
    say(f"agents: {CALLS} calls at {RATE:g}/s, {RUNS} runs of {TURNS} turns")
    with node() as settings, tempfile.TemporaryDirectory() as folder:
        here = settings.model_copy(
            update={
                "policy": settings.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "adapters": settings.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
            }
        )
        engine = ScriptedTokenEngine(here.policy.script)
        try:
            with opened(here, engine, ScriptedRendering(), threading.Event(), OFF) as recorder:
                yield from asyncio.run(_measured(recorder, engine, here))
        finally:
            engine.close()


async def _measured(recorder: Recorder, engine: ScriptedTokenEngine, settings: Settings) -> list[dict[str, Any]]:
    policy, lines = settings.policy.name, list[dict[str, Any]]()
    await _paced(lambda: _talk(recorder, policy, 1), 50)
    served = await _paced(lambda: _talk(recorder, policy, 1), CALLS)
    bare = await _paced(lambda: _bare(engine), CALLS)
    for percent, most in ((50, 0.001), (99, 0.005)):
        ours, peer = (statistics.quantiles(seconds, n=100)[percent - 1] for seconds in (served, bare))
        lines.append(
            line(
                "agents",
                f"p{percent} of a call, {RATE:g} calls/s",
                ours=ours,
                peer=peer,
                unit="s",
                ratio=peer / ours,
                peer_is="the bare engine",
                overhead_s=round(ours - peer, 5),
                wanted_s=most,
            )
        )
    room, begun = asyncio.Semaphore(SIDE_BY_SIDE), time.perf_counter()

    async def one() -> None:
        async with room:
            await _talk(recorder, policy, TURNS)

    await asyncio.gather(*(one() for _ in range(RUNS)))
    seconds = time.perf_counter() - begun
    case = f"{RUNS} trajectories of {TURNS} turns"
    lines.append(
        line(
            "agents",
            case,
            ours=RUNS / seconds,
            peer=WANTED_A_SECOND,
            unit="trajectories/s",
            ratio=RUNS / seconds / WANTED_A_SECOND,
            target=1,
            peer_is="what is wanted",
        )
    )
    named = [f"bytes-{length}" for length in LENGTHS]
    for name, length in zip(named, LENGTHS, strict=True):
        await _talk(recorder, policy, length, name)
    await recorder.close()
    lines.append(_bytes([turn for _, turn in read(settings, Turn)], named))
    return lines


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


async def _paced(call: Callable[[], Coroutine[Any, Any, None]], count: int) -> list[float]:
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


async def _talk(recorder: Recorder, policy: str, turns: int, name: str | None = None) -> None:
    number, messages = next(_numbers), list[Message]()
    for _ in range(turns):
        messages.append(Message(role="user", content=f"{number}: {QUESTION}"))
        call = ModelCall(
            agent_id="bench",
            trajectory_id=name,
            model=policy,
            protocol="chat",
            messages=tuple(messages),
            sampling=Sampling(max_tokens=64),
            request_digest=f"{next(_numbers):064}",
        )
        [done] = [piece async for piece in recorder.answer(call) if isinstance(piece, Done)]
        messages.append(done.message)
