"""The step and the engine on the device that TEST_DEVICE names; `cpu` shows that these tests test something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from schemas.events import Message, Sampling
from streams.engines.base_model import Base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import SamplingRequest
from streams.settings.model import Trainer
from tests.support.factories import task
from tests.support.models.tiny import sampled_logps, tiny_group, tiny_model, tiny_tokenizer
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import wrap

DEVICE = os.environ.get("TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.device(DEVICE).type == "cuda" and not torch.cuda.is_available(), reason="NOT RUN: there is no CUDA device"
    ),
]


def trainer_on(device: str, tmp_path: Path) -> LogGRPOTrainer:
    settings = Trainer(checkpoints=tmp_path, micro_groups=2, learning_rate=0.01)
    return LogGRPOTrainer(wrap(tiny_model().to(device), settings), tiny_tokenizer(), settings)


def weights_after(device: str, tmp_path: Path, *, is_plain: bool = False) -> torch.Tensor:
    """The adapter after three steps on five groups."""
    trainer, model = trainer_on(device, tmp_path), tiny_model()
    groups = [tiny_group(model, seed, prompt=4 + seed, slots=2 + seed % 4) for seed in range(5)]
    if is_plain:
        trainer.plain_because = "TRL's own pass"
    for _ in range(3):
        assert not trainer.train_batch(groups)["skipped"]
    return torch.cat([parameter.detach().cpu().flatten() for parameter in trainer.parameters])


def test_the_same_batches_give_the_same_bytes_on_one_device(tmp_path: Path) -> None:
    assert torch.equal(weights_after(DEVICE, tmp_path), weights_after(DEVICE, tmp_path))


@pytest.mark.parametrize("other", ["plain", "cpu"])
def test_the_step_is_that_of_the_plain_pass_and_of_the_processor(other: str, tmp_path: Path) -> None:
    ours = weights_after(DEVICE, tmp_path)
    theirs = weights_after(DEVICE if other == "plain" else "cpu", tmp_path, is_plain=other == "plain")
    start = torch.cat([one.detach().cpu().flatten() for one in trainer_on(DEVICE, tmp_path).parameters])
    moved = torch.linalg.norm(theirs - start)
    assert moved > 0.1 and torch.linalg.norm(ours - theirs) < 0.02 * moved


def test_sampled_logprobs_are_those_of_a_plain_pass_on_the_processor() -> None:
    engine = TransformersEngine(Base.of(tiny_model().to(DEVICE), tiny_tokenizer(), "base", "tokenizer"))
    asked = [
        SamplingRequest(
            sampling_id=f"sampling-{number}",
            task=task(
                task_id=f"task-{number}",
                messages=(Message(role="user", content=" ".join(map(str, range(5, 8 + number)))),),
                sampling=Sampling(max_tokens=8),
            ),
        )
        for number in range(3)
    ]
    answers = engine.sample(asked)
    assert answers == engine.sample(asked)
    for completion in (one for slots in answers for one in slots):
        prompt, ids = list(completion.prompt_token_ids), list(completion.completion_token_ids)
        assert completion.logprobs == pytest.approx(sampled_logps(tiny_model(), prompt, ids), abs=1e-3)
