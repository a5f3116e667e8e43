"""On the real model: what the engine recorded is what the trainer will compute, and the weights are those shipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from schemas.events import Message, RewardSource, Sampling, Task
from streams.adapters.store import fetch, publish
from streams.engines.base_model import SHIPPED, Base, gguf_file, load_base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import SamplingRequest
from streams.settings.model import Model
from tests.skips import IN_FULL
from tests.support.thoroughness import FULL

pytestmark = pytest.mark.model

NATS = 1e-4
"""The promise: engine and trainer agree on each token to this, in float32."""


@pytest.fixture(scope="module")
def base() -> Base:
    return load_base(Model())


@pytest.fixture
def engine(base: Base) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(base)
    yield engine
    engine.close()


def requests() -> list[SamplingRequest]:
    questions = ["What is 3 + 4?", "What is 12 + 345 + 7? Answer with the number only.", "Say hello."]
    samplings = [Sampling(max_tokens=12), Sampling(max_tokens=20, temperature=0.8), Sampling(max_tokens=8)]
    return [
        SamplingRequest(
            sampling_id=f"sampling-{index}",
            task=Task(
                task_id=f"task-{index}",
                created_at=0,
                policy="default",
                group_size=2,
                sampling=sampling,
                reward_sources=(RewardSource(name="exact"),),
                messages=(Message(role="user", content=question),),
            ),
        )
        for index, (question, sampling) in enumerate(zip(questions, samplings, strict=True))
    ]


def lora_that_matters(plain: PreTrainedModel, folder: Path) -> Path:
    """Write an adapter as the trainer does, its B factors random, and leave the model as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(plain, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)
    model.save_pretrained(folder)
    model.unload()
    return folder


def test_engine_and_trainer_agree_on_every_logprob_of_a_served_adapter(
    base: Base, engine: TransformersEngine, tmp_path: Path
) -> None:
    of_base = [[completion.text for completion in slots] for slots in engine.sample(requests()[:2])]
    plain = load_base(Model()).model
    store = str(tmp_path / "store")
    uri, files = publish(lora_that_matters(plain, tmp_path / "trained"), store, "default", 1)
    folder = fetch(store, uri, files, tmp_path / "fetched")
    engine.serve(1, folder)
    answers = engine.sample(requests())
    texts = [[completion.text for completion in slots] for slots in answers]
    assert texts[:2] != of_base, "the adapter was meant to matter"
    trainer = PeftModel.from_pretrained(plain, folder).eval()
    worst = 0.0
    for request, slots in zip(requests(), answers, strict=True):
        for completion in slots:
            prompt, drawn = list(completion.prompt_token_ids), list(completion.completion_token_ids)
            with torch.no_grad():
                logits = trainer(input_ids=torch.tensor([prompt + drawn])).logits[0, len(prompt) - 1 : -1]
            logprobs = (logits.float() / request.sampling.temperature).log_softmax(-1)
            expected = logprobs.gather(-1, torch.tensor(drawn)[:, None])[:, 0]
            worst = max(worst, (expected - torch.tensor(completion.logprobs)).abs().max().item())
    assert worst < NATS


def test_the_prompt_is_proper_chatml_and_the_text_has_none_of_it(base: Base, engine: TransformersEngine) -> None:
    for slots in engine.sample(requests()[:1]):
        for completion in slots:
            assert base.tokenizer.decode(completion.prompt_token_ids) == (
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
            )
            assert "<|" not in completion.text


@pytest.mark.parametrize("text", ["What is 12 + 345?", "  7 apples\n\n 8", "naïve 你好 ½ ▁ ~", "a  b\tc"])
def test_the_tokenizer_gives_back_every_text_and_takes_digits_one_by_one(base: Base, text: str) -> None:
    tokens = base.tokenizer.encode(text, add_special_tokens=False)
    assert base.tokenizer.decode(tokens) == text
    pieces = [base.tokenizer.decode([token]) for token in tokens]
    assert all(piece in "0123456789" for piece in pieces if any(c in "0123456789" for c in piece))


@pytest.mark.skipif(not FULL, reason=IN_FULL)
@pytest.mark.filterwarnings("ignore")  # the peer's own loader has opinions
def test_the_converted_weights_are_those_of_the_shipped_file(base: Base) -> None:
    (name,) = SHIPPED
    path = gguf_file(name)
    shipped = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    ours = dict(base.model.named_parameters())
    theirs = dict(shipped.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
