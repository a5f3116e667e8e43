"""The benchmark of stale batches measures what it says: batches are as old as `lag`, and arms correct as named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from streams.settings.model import Trainer
from tests.benchmarks.staleness import ARMS, learn, table
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.loss import loss_of, token_losses


@pytest.mark.parametrize(("lag", "samplers"), [(0, [0, 1, 2, 3]), (2, [0, 0, 0, 1])])
def test_a_batch_was_sampled_by_the_version_so_many_steps_before_it(
    lag: int, samplers: list[int], tmp_path: Path
) -> None:
    problem = replace(table(0, tmp_path / "base"), versions=len(samplers))
    steps = [step for step in learn(problem, ARMS["clip"], lag, 0, tmp_path) if step["metrics"]]
    assert [step["sampled_by"] for step in steps] == samplers
    is_sampler = [step["metrics"]["mismatch"] < 1e-4 for step in steps]  # the recorded logprobs are the sampler's
    assert is_sampler == [sampler == number for number, sampler in enumerate(samplers)]


@pytest.mark.parametrize(
    ("arm", "expected"),
    [("none", [-1.0, 1.0]), ("truncate", [-2.0, 0.5]), ("clip", [0.0, 0.0]), ("ratio", [-3.0, 0.5])],
)
def test_an_arm_weights_stale_tokens_as_its_name_says(arm: str, expected: list[float]) -> None:
    settings = Trainer(**ARMS[arm])
    logps = torch.tensor([[math.log(3), math.log(0.5)]], requires_grad=True)  # and 0 when sampled
    stale: Any = SimpleNamespace(
        advantages=torch.tensor([[1.0, -1.0]]), sampled_logps=torch.zeros(1, 2), loss_mask=torch.ones(1, 2)
    )
    trainer: Any = SimpleNamespace(settings=settings, loss=loss_of(settings.loss))
    token_losses(trainer.loss, LogGRPOTrainer._loss_tokens(trainer, stale, logps)).sum().backward()
    assert logps.grad is not None and logps.grad[0].tolist() == pytest.approx(expected)
