"""Tuning: its steps, and the losses against TRL's own trainers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from plugins.tuning.losses import dpo_loss, dpo_margins
from plugins.tuning.tuned_version import StartVersion
from plugins.tuning.tuner import Tuner, TuningSteps
from schemas.events import AdvantagedGroup, GroupResponse
from streams.engines.base_model import Base
from streams.errors import SettingsError, StreamwardError
from streams.settings.model import Settings, Trainer
from tests.support.models.chat_tiny import chat_base, chat_tokenizer
from tests.support.models.tiny import tiny_group, tiny_model
from tests.unit.test_examples import CONVERSATION, message, read, tokens_with_loss
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import TunedExample, answer_of

pytestmark = pytest.mark.usefixtures("torch_as_before")


@pytest.mark.parametrize(("text", "found"), [("7", ("p", 7)), ("grpo:7", ("grpo", 7)), ("a:b:0", ("a:b", 0))])
def test_a_start_is_a_version_or_that_of_another_policy(text: str, found: tuple[str, int]) -> None:
    assert StartVersion.parse(text, "p") == found


@pytest.mark.parametrize("text", ["", "newest", "p:", "-1", "1.5"])
def test_a_start_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="expected a version"):
        StartVersion.parse(text, "p")


# --- the losses, against TRL ------------------------------------------------------------------------------------------

RATE = 1e-2
STEPS = 3


def tuner(method: Any, *, beta: float = 0.1, plain: bool = False, **more: Any) -> Tuner:
    """A tuner whose adapter already does something: B is not zero."""
    settings = Settings(trainer=Trainer(learning_rate=RATE, **more))
    made = Tuner(settings, chat_base(), TuningSteps(method=method, beta=beta, batch=64), None)
    assert made.plain_because is None
    if plain:
        made.plain_because = "this is the oracle"
    disturb(made._model)
    return made


def test_an_end_that_is_the_pad_bears_loss_once_beside_a_longer_example() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    base = Base.of(tiny_model(), tokenizer, "base", "tokenizer")
    examples = read([{"messages": [message("user", "21"), message("assistant", said)]} for said in ("22", "23 24 25")])
    answers = [answer for example in examples for answer in example]
    assert [tokens_with_loss(answer).count(tokenizer.eos_token_id) for answer in answers] == [1, 1]
    padded = Tuner(Settings(), base, TuningSteps(method="sft"), None)
    padded.plain_because = "every row is padded"
    assert padded._pad == tokenizer.eos_token_id
    alone = torch.cat([padded.logps([answer]) for answer in answers])
    assert torch.allclose(padded.logps(answers), alone, atol=1e-5)
    assert torch.allclose(tuner("sft").logps(answers), tuner("sft", plain=True).logps(answers), atol=1e-5)


def disturb(model: Any) -> Any:
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return model


def ours(made: Tuner, examples: Sequence[TunedExample]) -> list[float]:
    """The loss of each of the steps, all examples in each."""
    losses = []
    reference = made._reference(examples)
    for _ in range(STEPS):
        losses.append(made.step(examples, reference).loss)
    return losses


def trls(trainer: type[Any], config: type[Any], rows: list[dict[str, Any]], folder: Path, **more: Any) -> list[float]:
    """The loss of each step of TRL's trainer on the same rows, from the same adapter."""
    seen: list[float] = []

    class Recording(trainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            seen.append(loss.item())
            return loss

    start = tuner("sft")._model  # the same adapter, on a model of its own
    settings = config(
        output_dir=str(folder), per_device_train_batch_size=len(rows), num_train_epochs=STEPS, learning_rate=RATE,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, bf16=False, use_cpu=True, max_length=None,
        gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True, **more,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Recording(
            model=start, args=settings, train_dataset=Dataset.from_list(rows), processing_class=chat_tokenizer()
        )
        made.train()
    assert len(seen) == STEPS
    return seen


def assert_as_trl(mine: list[float], theirs: list[float]) -> None:
    """Within 1e-6 of the loss; behind the optimizer, which magnifies the last digits of a gradient, a little less."""
    assert mine[0] == pytest.approx(theirs[0], rel=1e-6)
    assert mine == pytest.approx(theirs, abs=1e-4)
    assert mine[0] - mine[-1] > 0.01, "the steps must have an effect"


QUESTIONS = ("21 22", "23", "24 25 26 27", "21 28")
ANSWERS = ("31 32 33", "34", "35 36", "31 37 38 39")
WORSE = ("41", "42 43 44", "35 45", "31 37 38 40")


def prompts() -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]]:
    for asked, good, bad in zip(QUESTIONS, ANSWERS, WORSE, strict=True):
        yield (
            [message("system", "20"), message("user", asked)],
            [message("assistant", good)],
            [message("assistant", bad)],
        )


@pytest.mark.parametrize("plain", [False, True])
def test_sft_on_an_exported_file_has_the_loss_of_trls_sft_trainer(tmp_path: Path, plain: bool) -> None:
    examples = read([{"messages": [*asked, *good]} for asked, good, _ in prompts()])
    rows = [{"prompt": asked, "completion": good} for asked, good, _ in prompts()]
    theirs = trls(SFTTrainer, SFTConfig, rows, tmp_path)
    assert_as_trl(ours(tuner("sft", plain=plain), examples), theirs)


def test_sft_on_conversations_has_the_loss_of_trls_trainer_on_what_the_assistant_says(tmp_path: Path) -> None:
    plain_call = [{name: value for name, value in one.items() if name in ("role", "content")} for one in CONVERSATION]
    whole = [plain_call, [message("user", "21"), message("assistant", "22 29")]]
    theirs = trls(SFTTrainer, SFTConfig, [{"messages": one} for one in whole], tmp_path, assistant_only_loss=True)
    assert_as_trl(ours(tuner("sft"), read([{"messages": one} for one in whole])), theirs)


def sampled() -> list[AdvantagedGroup]:
    return [tiny_group(tiny_model(), seed, prompt=4 + seed, slots=3) for seed in range(4)]


def best_and_worst(one: AdvantagedGroup) -> tuple[GroupResponse, GroupResponse]:
    slots = Curation(method="dpo").choose(one)
    assert not isinstance(slots, str)
    return one.responses[slots[0]], one.responses[slots[1]]


def test_sft_on_sampled_tokens_has_the_loss_of_trls_sft_trainer_on_the_same_tokens(tmp_path: Path) -> None:
    examples, rows = [], []
    for one in sampled():
        best = best_and_worst(one)[0]
        prompt, completion = list(one.prompt_token_ids), list(best.completion_token_ids)
        examples.append((answer_of(one, best),))
        rows.append({"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion})
    assert_as_trl(ours(tuner("sft"), examples), trls(SFTTrainer, SFTConfig, rows, tmp_path))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_on_an_exported_file_has_the_loss_of_trls_dpo_trainer(tmp_path: Path, beta: float, plain: bool) -> None:
    """Its reference is a copy of the adapter before the first step, as ours is, and not the base model."""
    rows = [{"prompt": asked, "chosen": good, "rejected": bad} for asked, good, bad in prompts()]
    theirs = trls(DPOTrainer, DPOConfig, rows, tmp_path, beta=beta)
    mine = ours(tuner("dpo", beta=beta, plain=plain), read(rows, "dpo"))
    assert_as_trl(mine, theirs)


def test_dpo_on_sampled_tokens_has_the_loss_written_down_from_the_paper() -> None:
    """A second implementation: a plain pass for each answer, arXiv:2305.18290 equation 7."""
    pairs = [(one, *best_and_worst(one)) for one in sampled()]
    examples = [(answer_of(one, best), answer_of(one, worst)) for one, best, worst in pairs]
    made = tuner("dpo", beta=0.3)
    with torch.no_grad():
        before = torch.tensor([[logp(made, one, best), logp(made, one, worst)] for one, best, worst in pairs])
    made.step(examples, made._reference(examples))
    after = torch.tensor([[logp(made, one, best), logp(made, one, worst)] for one, best, worst in pairs])
    gained = (after - before).double()
    expected = torch.log1p(torch.exp(-0.3 * (gained[:, 0] - gained[:, 1]))).mean()
    with torch.no_grad():
        answers = [answer for example in examples for answer in example]
        margins = dpo_margins(made.logps(answers).view(-1, 2), before, 0.3)
    assert dpo_loss(margins, len(pairs)).item() == pytest.approx(expected.item(), abs=1e-6)
    assert expected < 0.69


def logp(made: Tuner, one: AdvantagedGroup, response: GroupResponse) -> float:
    prompt, completion = list(one.prompt_token_ids), list(response.completion_token_ids)
    with torch.no_grad():
        logits = made._model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).sum())


# --- steps ------------------------------------------------------------------------------------------------------------


def weights(made: Tuner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters])


def tuned(examples: Sequence[TunedExample], **more: Any) -> tuple[torch.Tensor, dict[str, float]]:
    settings = Settings(trainer=Trainer(learning_rate=more.pop("rate", RATE), seed=more.pop("seed", 0)))
    made = Tuner(settings, chat_base(), TuningSteps(**{"method": "sft", "batch": 2, "epochs": 2, **more}), None)
    metrics = made.tune(examples)
    return weights(made), metrics


def many() -> list[TunedExample]:
    return read([{"messages": [*asked, *good]} for asked, good, _ in prompts()])[:3]


def test_the_same_examples_and_seed_give_the_same_bytes_and_another_seed_another_order() -> None:
    one, other, seeded = tuned(many()), tuned(many()), tuned(many(), seed=5)
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[0], seeded[0])


def test_every_epoch_sees_every_example_once_and_the_metrics_count_them() -> None:
    metrics = tuned(many())[1]
    counted = {name: metrics[name] for name in ("steps", "examples", "tokens", "skipped")}
    tokens = sum(example[0].loss_tokens for example in many())
    assert counted == {"steps": 4, "examples": 3, "tokens": tokens, "skipped": 0}
    assert metrics["loss"] < metrics["loss_first"]


def test_micro_batches_only_bound_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = many()
    whole = tuner("sft").step(examples)
    monkeypatch.setattr("plugins.tuning.tuner.MICRO_TOKENS", 1)
    assert tuner("sft").step(examples).loss == pytest.approx(whole.loss, abs=1e-6)


def test_preferences_learn_to_tell_the_answers_apart() -> None:
    rows = [{"prompt": asked, "chosen": good, "rejected": bad} for asked, good, bad in prompts()]
    metrics = tuned(read(rows, "dpo"), method="dpo", epochs=6)[1]
    assert metrics["loss_first"] == pytest.approx(0.6931, abs=1e-3)
    assert (metrics["accuracy"], metrics["margin"] > 0) == (1.0, True)


def test_a_gradient_that_is_never_finite_is_an_error_and_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuner("sft")
    with torch.no_grad():
        made.parameters[0].fill_(float("nan"))
    with pytest.raises(StreamwardError, match="none of 1 steps had a finite gradient"):
        made.tune(many())


def test_a_tuning_that_leaves_every_weight_as_it_is_says_so() -> None:
    assert tuned(many(), rate=1e-50)[1]["unchanged"] == 1.0
    assert tuned(many())[1]["unchanged"] == 0.0


def test_several_processes_are_refused() -> None:
    with pytest.raises(SettingsError, match="tuning has one process"):
        tuner("sft", processes=2)


@pytest.mark.parametrize("recorded", [{}, {"tuning.method": "rl"}, {"tuning.method": "sft", "tuning.epochs": "many"}])
def test_a_recipe_that_is_not_one_of_tuning_is_refused(recorded: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="the recipe in the log cannot be used here"):
        TuningSteps.of_recipe(recorded)


def test_steps_come_back_from_the_recipe_they_were_written_to() -> None:
    steps = TuningSteps(method="dpo", epochs=3, batch=5, beta=0.25)
    assert TuningSteps.of_recipe(steps.plain()) == steps
