"""The shared pass on the real model: logprobs and gradients of TRL's plain one, for a fraction of the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from streams.engines.base_model import load_base
from streams.settings.model import Model, Trainer
from tests.support.factories import changed
from tests.support.models.tiny import tiny_group, tiny_model
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import wrap

pytestmark = pytest.mark.model


def test_shared_prefixes_agree_with_trls_plain_pass_on_smollm2(tmp_path: Path) -> None:
    base = load_base(Model())
    settings = Trainer(checkpoints=tmp_path, max_grad_norm=0)
    trainer = LogGRPOTrainer(wrap(base.model, settings), base.tokenizer, settings)
    assert trainer.plain_because is None
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():  # as after some steps: B is not zero
        for parameter in trainer.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 1e-3)

    asked = base.tokenizer("What is 2 + 5?")["input_ids"]
    answers = [base.tokenizer(text)["input_ids"] for text in ("7", "The answer is 7.", "The sum is 7.")]
    group = tiny_group(tiny_model(), 1, slots=3)
    responses = tuple(
        changed(
            response,
            completion_token_ids=tuple(answer),
            logprobs=(-1.0,) * len(answer),
            loss_mask=(True,) * len(answer),
        )
        for response, answer in zip(group.responses, answers, strict=True)
    )
    group = changed(group, prompt_token_ids=tuple(asked), responses=responses)

    start = [parameter.detach().clone() for parameter in trainer.parameters]
    seen = []
    for plain in (None, "this is the oracle"):
        trainer.plain_because = plain
        with torch.no_grad():
            for parameter, value in zip(trainer.parameters, start, strict=True):
                parameter.copy_(value)
        trainer.optimizer = torch.optim.SGD(trainer.parameters, lr=1.0)
        metrics = trainer.train_batch([group])
        moved = [before - after.detach() for before, after in zip(start, trainer.parameters, strict=True)]
        seen.append((metrics, torch.cat([change.flatten() for change in moved])))
    (metrics, gradient), (plain_metrics, plain_gradient) = seen
    assert metrics["mismatch_max"] == pytest.approx(plain_metrics["mismatch_max"], abs=2e-5)
    assert metrics["loss"] == pytest.approx(plain_metrics["loss"], rel=1e-4)
    assert torch.linalg.norm(gradient - plain_gradient) < 1e-4 * torch.linalg.norm(plain_gradient)
    assert 2 * metrics["tokens_run"] < plain_metrics["tokens_run"]
