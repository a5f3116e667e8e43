"""The `transformers` engine against `model.generate(num_return_sequences=G)` on the same prompts, tokens a second.

Sums as in the demo: 16 prompts, 8 answers to each, 12 tokens at most, temperature 1; SmolLM2-135M, float32, version 0.
Each round asks other sums, the same of both, since a policy agent never sees the same tasks twice. Counted are the
tokens drawn, the end-of-turn token included and tokens after it not.

The same rounds are answered by streams, too, one for each slot (`ContinuousEngine`): what rounds would cost if they
were made of streams. The ratio of that line is of CPU time, since the machine is not quiet.

Not covered: an adapter (the peer would need one merged, or peft around it, which is slower).
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from streams.engines.protocol import SamplingRequest
from tests.benchmarks.side_by_side import DEVICE, by_turns, line, median_s, say

TASKS, SLOTS = 16, 8
TARGET = 2.0
THREADS = (1, 2)


def run() -> Iterator[dict[str, Any]]:
    """Yield one line a number of threads; ours and peer are tokens a second."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the policy agent's process sets it
    import torch

    from streams.engines.base_model import load_base
    from streams.engines.local.continuous import ContinuousEngine
    from streams.engines.local.transformers_engine import TransformersEngine
    from streams.settings.model import Model

    peer_base = load_base(Model(device=DEVICE))  # a model of its own: the engine exchanges parts of the one it is given
    for threads in THREADS:
        if threads > (os.cpu_count() or 1):
            continue
        engine = TransformersEngine(load_base(Model(device=DEVICE)), threads)
        say(f"sampling: {TASKS} tasks x {SLOTS} slots, {torch.get_num_threads()} thread(s)")
        measured = by_turns({"ours": _ours(engine), "peer": _generate(peer_base)}, rounds=7, budget_s=25)
        streams_base = load_base(Model(device=DEVICE))
        streams_engine = ContinuousEngine(streams_base, threads)
        streams = _by_streams(streams_engine, streams_base)
        cpu = by_turns({"ours": _cpu_s(_ours(engine)), "streams": _cpu_s(streams)}, rounds=7, budget_s=25)
        streams_engine.close()
        rates = {name: _tokens(turns) / median_s(turns) for name, turns in measured.items()}
        yield line(
            "sampling",
            f"{TASKS} prompts x {SLOTS}, 12 tokens, {threads} thread{'s'[: threads - 1]}",
            ours=rates["ours"],
            peer=rates["peer"],
            unit="tokens/s",
            ratio=rates["ours"] / rates["peer"],
            target=TARGET,
            peer_is="transformers generate(num_return_sequences)",
            threads=threads,
            rounds=len(measured["ours"]),
            tokens_a_round={name: round(_tokens(turns)) for name, turns in measured.items()},
        )
        seconds = {name: statistics.median(cpu_s for _, cpu_s in turns) for name, turns in cpu.items()}
        yield line(
            "sampling",
            f"rounds against streams, {threads} thread{'s'[: threads - 1]}",
            ours=seconds["ours"],
            peer=seconds["streams"],
            unit="CPU s",
            ratio=seconds["streams"] / seconds["ours"],
            peer_is="the same slots as streams of the engine for agents",
            threads=threads,
            rounds=len(cpu["ours"]),
        )


def _tokens(turns: list[tuple[float, int]]) -> float:
    return sum(tokens for _, tokens in turns) / len(turns)


def _rounds() -> Iterator[list[SamplingRequest]]:
    """Yield 16 requests at a time, the same for every caller."""
    from streams.stages.tasks.generators import TaskSpec, generate

    spec = TaskSpec(family="sums", count=10_000, purpose="train", policy="bench", group_size=SLOTS)
    tasks = generate(spec, now_ms=0)
    for number in itertools.count():
        some = itertools.islice(tasks, TASKS)
        yield [SamplingRequest(sampling_id=f"{number}-{index}", task=task) for index, task in enumerate(some)]


def _ours(engine: Any) -> Callable[[], int]:
    rounds = _rounds()

    def sample() -> int:
        answers = engine.sample(next(rounds))
        return sum(len(completion.completion_token_ids) for slots in answers for completion in slots)

    return sample


def _cpu_s(run: Callable[[], int]) -> Callable[[], float]:
    """Return a function that runs `run` and returns the seconds of CPU time that it took."""

    def timed() -> float:
        begun = time.process_time()
        run()
        return time.process_time() - begun

    return timed


def _by_streams(engine: Any, base: Any) -> Callable[[], int]:
    from streams.engines.rendering.prompts import Prompts
    from streams.engines.token_stream import Generation

    rounds, prompts = _rounds(), Prompts(base)

    def sample() -> int:
        streams = []
        for request in next(rounds):
            prompt = prompts.tokens(request.messages)
            for slot in range(SLOTS):
                generation = Generation(
                    prompt_token_ids=prompt, sampling=request.sampling, draw_key=request.draw_key, slot=slot
                )
                streams.append(engine.submit(generation))
        return sum(len(list(stream)) for stream in streams)

    return sample


def _generate(base: Any) -> Callable[[], int]:
    import torch

    rounds = _rounds()
    tokenizer = base.tokenizer
    tokenizer.padding_side = "left"
    ends = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends

    def generate() -> int:
        requests = next(rounds)
        inputs = tokenizer.apply_chat_template(
            [[{"role": m.role, "content": m.content} for m in request.messages] for request in requests],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        ).to(DEVICE)
        with torch.inference_mode():
            out = base.model.generate(
                **inputs,
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                max_new_tokens=requests[0].sampling.max_tokens,
                num_return_sequences=SLOTS,
                eos_token_id=ends,
                pad_token_id=pad,
            )
        drawn = out[:, inputs["input_ids"].shape[1] :]
        ended = (drawn == ends).int().cumsum(1)
        behind = (ended - (drawn == ends).int()) > 0  # an end was drawn before this place
        return int((~behind).sum())

    return generate
