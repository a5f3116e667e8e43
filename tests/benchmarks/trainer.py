"""Our training step against plain TRL's own pass on the same batch, on the real SmolLM2-135M.

The trainer is the same, and so are loss, backward, clipping and AdamW: only the pass that gives logprobs is exchanged
(`plain_because`). One group of eight slots, one thread, weights in float32. Tokens are random, so that beyond the
prompt no two responses begin alike: the worst case for a trainer that runs each distinct prefix once.

Not covered: batches of several groups. Those share their system prompt too, so ours gains more.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.events import AdvantagedGroup, GroupResponse, Sampling, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from tests.benchmarks.side_by_side import DEVICE, by_turns, line, median_s, say

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.step.grpo import LogGRPOTrainer

SLOTS = 8
CASES = ((64, 8, 2.5), (256, 32, 3.5))
"""Prompt tokens, completion tokens, and how many times faster ours should be."""


def run() -> Iterator[dict[str, Any]]:
    """Yield one line a size; ours and peer are seconds for one step."""
    import torch

    with real_trainer() as trainer:
        for prompt, completion, target in CASES:
            say(f"trainer: {SLOTS} slots of {prompt} + {completion} tokens, {torch.get_num_threads()} thread(s)")
            group = random_group(trainer, prompt, completion)
            measured = by_turns(steps(trainer, group), rounds=5, budget_s=25)
            ours, peer = median_s(measured["ours"]), median_s(measured["peer"])
            yield line(
                "trainer",
                f"{prompt} + {completion} tokens, {SLOTS} slots",
                ours=ours,
                peer=peer,
                unit="s/step",
                ratio=peer / ours,
                target=target,
                peer_is="TRL GRPOTrainer's own pass",
                threads=torch.get_num_threads(),
                rounds=len(measured["ours"]),
                tokens_run=[measured[name][-1][1]["tokens_run"] for name in ("ours", "peer")],
            )


def real_trainer() -> AbstractContextManager[LogGRPOTrainer]:
    """Have the trainer of the real model with the default settings."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process sets it

    from streams.engines.base_model import load_base
    from streams.settings.model import Model

    base = load_base(Model(device=DEVICE))
    return trainer_of(base.model, base.tokenizer)


@contextmanager
def trainer_of(model: Any, tokenizer: Any) -> Iterator[LogGRPOTrainer]:
    """Yield the trainer of a model with the default settings."""
    from streams.settings.model import Model, Settings, Trainer
    from trainer.step.grpo import LogGRPOTrainer
    from trainer.step.model import pin, wrap

    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        settings = Settings(model=Model(device=DEVICE), trainer=Trainer(checkpoints=Path(folder)))
        pin(settings)
        yield LogGRPOTrainer(wrap(model, settings.trainer), tokenizer, settings.trainer)


def steps(trainer: LogGRPOTrainer, group: AdvantagedGroup) -> dict[str, Callable[[], dict[str, float]]]:
    """Return a step on a group by our pass, and by TRL's own."""

    def step(plain_because: str | None) -> dict[str, float]:
        before, trainer.plain_because = trainer.plain_because, plain_because
        try:
            return trainer.train_batch([group])
        finally:
            trainer.plain_because = before

    return {"ours": partial(step, trainer.plain_because), "peer": partial(step, "the peer is plain TRL")}


def random_group(trainer: LogGRPOTrainer, prompt: int, completion: int, *, seed: int = 0) -> AdvantagedGroup:
    """Return a group of random tokens with the logprobs that the model gives them now."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    vocabulary = trainer.model.config.vocab_size
    prompt_ids = torch.randint(100, vocabulary, (prompt,), generator=draw)
    ids = torch.randint(100, vocabulary, (SLOTS, completion), generator=draw)
    return group_of(trainer, prompt_ids, ids, LossMask(b"\1" * completion))


def group_of(trainer: LogGRPOTrainer, prompt: Tensor, completions: Tensor, loss_mask: LossMask) -> AdvantagedGroup:
    """Return a group of `completions` [B, T] after `prompt` [P], with the logprobs that the model gives them now."""
    import torch

    from trainer.step import prefix_tree
    from trainer.step.prefix_tree import Row

    slots, width = completions.shape
    needed = range(width)
    rows = [
        Row([*prompt.tolist(), *row.tolist()], len(prompt), needed, at * width) for at, row in enumerate(completions)
    ]
    with torch.no_grad():
        logprobs = prefix_tree.logprobs(trainer.model.get_base_model(), rows, (slots, width), 1.0)[0]
    responses = tuple(
        GroupResponse(
            slot=slot,
            response_id=derive_id("bench", slot),
            partition=0,
            offset=slot,
            finish_reason="length",
            latency_ms=0.0,
            reward=float(slot % 2),
            advantage=1.0 if slot % 2 else -1.0,
            completion_token_ids=TokenIds.of(completions[slot].tolist()),
            logprobs=Logprobs.of(logprobs[slot].tolist()),
            loss_mask=loss_mask,
        )
        for slot in range(slots)
    )
    return AdvantagedGroup(
        group_id=derive_id("bench"),
        task_id="bench",
        created_at=0,
        policy="default",
        purpose="train",
        scenario="bench",
        group_size=slots,
        adapter_version=0,
        base_digest="",
        tokenizer_digest="",
        complete=True,
        formula="grpo",
        formula_version=1,
        formula_eps=1e-4,
        formula_ddof=1,
        reward_mean=0.5,
        reward_std=0.5,
        sampling=Sampling(max_tokens=width),
        prompt_token_ids=TokenIds.of(prompt.tolist()),
        responses=responses,
    )
