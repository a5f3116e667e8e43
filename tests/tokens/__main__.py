"""Compare, token by token, what an engine says that it sampled with what the log has, over every protocol.

    python -m tests.tokens [--engine transformers|vllm|scripted ...] [--count TOKENS] [--together CALLS]

    conversations of three turns ──► chat, responses, messages ──► the server ──► a log on a Kafka node of its own
                                                                      │                      │
                                     what the engine was given ◄──────┘                      └──► turns
                                     and says it drew, kept beside it  ──────────── equal? ────────┘

The server is that of `streamward serve`, with SmolLM2 in its process or in a vLLM server beside it. A turn is compared
whole: the prompt that it stands for (what it continues, and its own), the sampled tokens, and each logprob. COUNT is of
sampled tokens, split evenly over the protocols. Exit code 1 if anything differs or is missing.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx

from gateway import server
from schemas.events import Turn
from streams.engines.base_model import folder_of
from streams.engines.build import build_tokens
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import Generation, TokenStream
from streams.engines.vllm.launch import python_with_vllm
from streams.kafka.node import process as broker
from streams.settings.model import Policy, Settings
from streams.stages.agents.trajectories.call_chains import Chains
from tests.support.agent_server import serving, settings_of, turns
from tests.support.vllm.server import vllm_server

TURNS, ANSWER = 3, 64
"""Of a conversation: its turns, and the most tokens of an answer."""


class TappedEngine:
    """A `TokenEngine`, and every stream that it was asked for, by the id of its turn."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self.streams: dict[str, TokenStream] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; a call without a seed has its turn's id for its draw key."""
        self.streams[generation.draw_key] = stream = self._engine.submit(generation)
        return stream


class Protocol(NamedTuple):
    """How a client speaks."""

    path: str
    body: Callable[[list[dict[str, Any]]], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]


PROTOCOLS = {
    "chat": Protocol(
        "chat/completions",
        lambda said: {"messages": said, "max_tokens": ANSWER},
        lambda answer: answer["choices"][0]["message"]["content"] or "",
    ),
    "responses": Protocol(
        "responses",
        lambda said: {"input": said, "max_output_tokens": ANSWER},
        lambda answer: "".join(part["text"] for item in answer["output"] for part in item["content"]),
    ),
    "messages": Protocol(
        "messages",
        lambda said: {"messages": said, "max_tokens": ANSWER},
        lambda answer: "".join(block["text"] for block in answer["content"]),
    ),
}


class Compared(NamedTuple):
    """What a protocol's turns came to."""

    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    differences: int = 0


def main(arguments: Sequence[str]) -> int:
    """Compare with every engine that is named; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tokens", description=(__doc__ or "").splitlines()[0])
    engines = ("transformers", "vllm", "scripted")
    parser.add_argument("--engine", action="append", choices=engines, help="transformers and vllm if none is named")
    parser.add_argument("--count", type=int, default=100_000, help="sampled tokens with each engine")
    parser.add_argument("--together", type=int, default=16, help="conversations at once")
    given = parser.parse_args(arguments)
    print(f"{'protocol':10} {'engine':13} {'turns':>7} {'prompt':>9} {'sampled':>9} {'differ':>7}", flush=True)
    differ = 0
    for engine in given.engine or engines[:2]:
        for protocol, found in _compared(engine, given.count, given.together).items():
            counts = f"{found.turns:7} {found.prompt_tokens:9} {found.sampled_tokens:9} {found.differences:7}"
            print(f"{protocol:10} {engine:13} {counts}", flush=True)
            differ += found.differences
    return int(differ > 0)


def _compared(engine: str, count: int, together: int) -> dict[str, Compared]:
    """Have conversations over every protocol with one engine, and compare them."""
    tapped: list[TappedEngine] = []

    def build(settings: Settings) -> tuple[TappedEngine, Rendering]:
        built, rendering = build_tokens(settings)
        tapped.append(TappedEngine(built))
        return tapped[0], rendering

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = settings_of(stack.enter_context(broker.embedded(folder / "kafka")).bootstrap, folder)
        policy = settings.policy
        if engine != "scripted":
            policy = Policy(name="sums", engine="transformers", threads=0)
        if engine == "vllm":
            base, options = folder_of(settings.model.base), ("--max-model-len", "2048")
            url = stack.enter_context(vllm_server(python_with_vllm(), base, folder / "vllm.log", *options))
            policy = Policy(name="sums", engine="vllm", servers=url, server_folder=folder / "served")
        settings = settings.model_copy(update={"policy": policy})
        stack.enter_context(patch.object(server, "build_tokens", build))
        url = stack.enter_context(serving(settings))
        found = {}
        for protocol in PROTOCOLS:
            _talk(f"{url}/agents/{protocol}/v1", PROTOCOLS[protocol], tapped[0], count // len(PROTOCOLS), together)
            recorded = turns(settings, protocol)
            found[protocol] = _compare(recorded, tapped[0].streams)
            tapped[0].streams.clear()
    return found


def _talk(base: str, protocol: Protocol, engine: TappedEngine, count: int, together: int) -> None:
    """Have so many conversations at once until so many tokens are sampled."""

    def talks(thread: int) -> None:
        number = 0
        with httpx.Client(timeout=600) as client:
            while sum(len(stream.drawn) for stream in tuple(engine.streams.values())) < count:
                number += 1
                said: list[dict[str, Any]] = []
                for turn in range(TURNS):
                    said.append({"role": "user", "content": f"{QUESTIONS[turn]} ({thread}.{number})"})
                    body = {"model": "sums", **protocol.body(said)}
                    answer = client.post(f"{base}/{protocol.path}", json=body).raise_for_status().json()
                    said.append({"role": "assistant", "content": protocol.text(answer)})

    with ThreadPoolExecutor(together) as pool:
        for done in [pool.submit(talks, thread) for thread in range(together)]:
            done.result()


QUESTIONS = ("Name a river, and tell me about it.", "And another one?", "Which is longer?")


def _compare(recorded: Sequence[Turn], streams: dict[str, TokenStream]) -> Compared:
    """Compare the log's turns with the engine's streams; what is in one of them alone differs whole."""
    missing = streams.keys() - {turn.turn_id for turn in recorded}
    found = Compared(differences=sum(len(streams[turn_id].drawn) for turn_id in missing))
    chains: dict[str, Chains] = {}
    for turn in recorded:
        chain = chains.setdefault(turn.trajectory_id, Chains())
        chain.add(turn)
        whole = list(chain.tokens(turn.turn_id))
        stream = streams.get(turn.turn_id)
        asked = () if stream is None else stream.generation.prompt_token_ids
        drawn = [] if stream is None else stream.drawn
        has = [*whole[: len(whole) - len(turn.completion_token_ids)], *_sampled(turn)]
        said = [*asked, *((token, _float32(logprob)) for token, logprob in drawn)]
        found = Compared(
            turns=found.turns + 1,
            prompt_tokens=found.prompt_tokens + turn.prompt_tokens,
            sampled_tokens=found.sampled_tokens + len(turn.completion_token_ids),
            differences=found.differences + sum(one != other for one, other in zip_longest(has, said)),
        )
    return found


def _sampled(turn: Turn) -> list[tuple[int, float]]:
    return [(token, _float32(value)) for token, value in zip(turn.completion_token_ids, turn.logprobs, strict=True)]


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
