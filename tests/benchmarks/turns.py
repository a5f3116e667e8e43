"""Our step on trajectories of eight turns against TRL's own pass on them, and the memory of both.

One group of eight trajectories on the real SmolLM2-135M: a prompt, then eight times what the policy wrote and what the
environment answered. Half of the tokens after the prompt are the environment's and carry no loss. Everything but the
pass that gives logprobs is the same code on both sides, as in the benchmark `trainer`.

    a tree         every second turn each trajectory parts from half of those that it was one with: 8, 4, 2, 1
    early turns    the first two turns are those of all eight trajectories, the next two those of one other, the last
                   four of none: episodes from one seed, which answer the same action with the same observation
    prompt alone   random tokens: no two trajectories have anything in common but their prompt

Memory is what a step takes beyond what the process holds before it: its peak resident size, measured by Linux.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.tokens import LossMask
from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.trainer import SLOTS, group_of, real_trainer, steps

if TYPE_CHECKING:
    from torch import Tensor

TURNS = 8
WRITTEN, SHOWN = 16, 16
"""Tokens of a turn: the policy's and the environment's."""


class Case(NamedTuple):
    """How much the trajectories have in common."""

    name: str
    prompt: int
    """Tokens of the prompt."""
    shared: tuple[int, ...]
    """For each turn: how many neighbours, of eight trajectories, have the same turn and the same turns before."""


TARGET = 3.0
"""How many times faster ours should be where trajectories have turns in common."""

CASES = (
    Case("a tree of turns", 128, (8, 8, 4, 4, 2, 2, 1, 1)),
    Case("early turns shared", 128, (8, 8, 2, 2, 1, 1, 1, 1)),
    Case("prompt alone shared", 128, (1,) * TURNS),
)


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines a case: seconds and peak memory of one step, ours and the peer's."""
    with real_trainer() as trainer:
        for case in CASES:
            name = f"{case.name}, {case.prompt} + {TURNS} x ({WRITTEN} + {SHOWN}) tokens, {SLOTS} trajectories"
            say(f"turns: {name}")
            written = LossMask((b"\1" * WRITTEN + b"\0" * SHOWN) * TURNS)
            group = group_of(trainer, *tokens(case, trainer.model.config.vocab_size), written)
            sides = {side: partial(measured, step) for side, step in steps(trainer, group).items()}
            found = by_turns(sides, rounds=5, budget_s=60)
            last = [found[side][-1][1] for side in ("ours", "peer")]
            about = {
                "peer_is": "TRL GRPOTrainer's own pass",
                "rounds": len(found["ours"]),
                "tokens_run": [step.metrics["tokens_run"] for step in last],
            }
            ours, peer = median_s(found["ours"]), median_s(found["peer"])
            cpu = [min(step.cpu_s for _, step in found[side]) for side in ("ours", "peer")]
            times = {"ours": ours, "peer": peer, "unit": "s/step", "ratio": peer / ours}
            times |= {"target": TARGET} if case.shared[0] > 1 else {}
            yield line("turns", name, **times, cpu_s=cpu, **about)
            peaks = [max(step.peak_bytes for _, step in found[side]) / 2**20 for side in ("ours", "peer")]
            memory = {"ours": peaks[0], "peer": peaks[1], "unit": "MiB at the peak", "ratio": peaks[1] / peaks[0]}
            yield line("turns", f"{name}, memory", **memory, **about)


def tokens(case: Case, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return a prompt [P] and the tokens that follow it in each trajectory [B, T]."""
    import torch

    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(100, vocabulary, (case.prompt,), generator=draw)
    turns = [
        torch.randint(100, vocabulary, (SLOTS // alike, WRITTEN + SHOWN), generator=draw).repeat_interleave(alike, 0)
        for alike in case.shared
    ]
    return prompt, torch.cat(turns, dim=1)


class Step(NamedTuple):
    """One step and what it took."""

    metrics: dict[str, float]
    cpu_s: float
    peak_bytes: int


def measured(step: Callable[[], dict[str, float]]) -> Step:
    """Run `step`; Linux keeps the peak of its resident memory since the last reset."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at what is resident now
    before, mark = _resident("VmRSS"), time.process_time()
    metrics = step()
    return Step(metrics, time.process_time() - mark, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
