"""Where the time of a training step goes, by the size of the model: ours and TRL's own pass, seconds and launches.

Models of random weights in the shapes of SmolLM2-135M and of Qwen2.5 with 0.5, 1.5 and 3 billion parameters, in
bfloat16 on a GPU. One group of eight: a turn of 256 + 128 tokens, and eight turns that part like a tree (`turns`).

    BENCH_DEVICE=cuda python -m tests.benchmarks by_size     all sizes; on a CPU a tiny one
    BENCH_SIZES="135M 3B"                                    these

A profiled step, after the timed ones, says how many operations it starts (of a GPU: kernels), which share of its time
the device works, and which five operations take the most of it.

Not covered: learning. Random weights teach nothing, and cost as much.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.tokens import LossMask
from tests.benchmarks import turns
from tests.benchmarks.side_by_side import DEVICE, by_turns, line, median_s, say
from tests.benchmarks.trainer import group_of, random_group, steps, trainer_of

if TYPE_CHECKING:
    from schemas.events import AdvantagedGroup
    from trainer.step.grpo import LogGRPOTrainer


class Size(NamedTuple):
    """The shape of a Llama."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int


SIZES = {
    "tiny": Size(64, 2, 2, 1, 128, 49_152),
    "135M": Size(576, 30, 9, 3, 1536, 49_152),
    "0.5B": Size(896, 24, 14, 2, 4864, 151_936),
    "1.5B": Size(1536, 28, 12, 2, 8960, 151_936),
    "3B": Size(2048, 36, 16, 2, 11_008, 151_936),
}
PROMPT, COMPLETION = 256, 128
LARGE_FROM, TARGET_LARGE = ("1.5B", "3B"), 1.5


def run() -> Iterator[dict[str, Any]]:
    """Yield one line for each size and case; ours and peer are seconds for one step."""
    chosen = os.environ.get("BENCH_SIZES", " ".join(SIZES) if DEVICE != "cpu" else "tiny").split()
    for name in chosen:
        with trainer_of(*_random_model(SIZES[name])) as trainer:
            for case, group in _groups(trainer).items():
                say(f"by_size: {name}, {case}, {DEVICE}")
                yield _measured(trainer, name, case, group)


def _measured(trainer: LogGRPOTrainer, name: str, case: str, group: AdvantagedGroup) -> dict[str, Any]:
    import torch

    def whole(step: Callable[[], dict[str, float]]) -> None:
        step()
        if DEVICE != "cpu":
            torch.cuda.synchronize()

    sides = {side: partial(whole, step) for side, step in steps(trainer, group).items()}
    found = by_turns(sides, rounds=5, budget_s=60)
    profiles = {side: _profile(step) for side, step in sides.items()}
    ours, peer = median_s(found["ours"]), median_s(found["peer"])
    return line(
        "by_size",
        f"{name}, {case}",
        ours=ours,
        peer=peer,
        unit="s/step",
        ratio=peer / ours,
        target=TARGET_LARGE if case.startswith("8 turns") and name in LARGE_FROM else 1.0,
        peer_is="TRL GRPOTrainer's own pass",
        device=DEVICE if DEVICE == "cpu" else torch.cuda.get_device_name(DEVICE),
        profile=profiles,
    )


def _random_model(size: Size) -> tuple[Any, Any]:
    """Return a model of this shape on the device, and a tokenizer whose ids it knows."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from streams.engines.base_model import load_tokenizer
    from streams.settings.model import Model

    config = LlamaConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    return model.to(dtype).eval().requires_grad_(False), load_tokenizer(Model().base)


def _groups(trainer: LogGRPOTrainer) -> dict[str, AdvantagedGroup]:
    tree = turns.CASES[0]
    written = LossMask((b"\1" * turns.WRITTEN + b"\0" * turns.SHOWN) * turns.TURNS)
    parts = [part.to(DEVICE) for part in turns.tokens(tree, trainer.model.config.vocab_size)]
    return {
        f"one turn of {PROMPT} + {COMPLETION} tokens": random_group(trainer, PROMPT, COMPLETION),
        f"8 turns of {turns.WRITTEN} + {turns.SHOWN} tokens": group_of(trainer, *parts, written),
    }


def _profile(step: Callable[[], None]) -> dict[str, Any]:
    """Return the operations that a step starts, the share of its time that the device works, and the longest five."""
    from torch.profiler import ProfilerActivity, profile

    is_gpu = DEVICE != "cpu"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as profiler:
        mark = time.perf_counter()
        step()
        wall_us = (time.perf_counter() - mark) * 1e6
    rows = profiler.key_averages()
    time_of = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    longest = sorted(rows, key=lambda row: -getattr(row, time_of))[:5]
    total = sum(getattr(row, time_of) for row in rows)
    started = sum(row.count for row in rows if not is_gpu or "LaunchKernel" in row.key)
    return {
        "started": started,
        "device_share": round(total / wall_us, 2),
        "longest": {row.key[:60]: round(getattr(row, time_of) / total, 2) for row in longest},
    }
