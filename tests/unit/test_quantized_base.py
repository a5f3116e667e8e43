"""A base in 4 bits: sampling and training see the same weights, and the bytes of an adapter are made again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from streams.engines import quantized_base
from streams.engines.base_model import load_base
from streams.engines.vllm.vllm_engine import VllmEngine
from streams.errors import SettingsError
from streams.settings.model import Model, Policy, Settings, Trainer
from tests.skips import needs
from tests.support.models.tiny import tiny_model, tiny_tokenizer
from trainer.versions import learner

quantized = pytest.mark.skipif(
    importlib.util.find_spec(quantized_base.LIBRARY) is None, reason=needs("bitsandbytes", "make setup-quantized")
)
IDS = torch.arange(4, 24).view(2, 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_without_bitsandbytes_one_is_told_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_base, "LIBRARY", "no_such_library")
    with pytest.raises(SettingsError, match=r"nf4 needs no_such_library; install streamward\[quantized\]"):
        load_base(Model(base=str(folder), quantization="nf4"))


def test_what_needs_the_weights_as_they_are_refuses() -> None:
    model = Model(quantization="nf4")
    with pytest.raises(SettingsError, match=r"model.quantization=nf4: engine vllm needs"):
        VllmEngine(Settings(model=model, policy=Policy(engine="vllm", servers="http://127.0.0.1:1")))
    with pytest.raises(SettingsError, match=r"model.quantization=nf4: trainer.shard_base needs"):
        learner.base_of(Settings(model=model, trainer=Trainer(shard_base=True)))


@quantized
def test_passes_with_and_without_a_gradient_see_the_same_weights(folder: Path) -> None:
    base = load_base(Model(base=str(folder), quantization="nf4"))
    whole = load_base(Model(base=str(folder)))
    bytes_of = [sum(parameter.nbytes for parameter in each.model.parameters()) for each in (base, whole)]
    assert bytes_of[0] < 0.6 * bytes_of[1] and base.base_digest != whole.base_digest
    with torch.no_grad():
        sampled = base.model(IDS).logits
    assert not torch.equal(sampled, whole.model(IDS).logits)
    assert torch.equal(base.model(IDS[:1]).logits, sampled[:1]), "of a row alone"
    trained = get_peft_model(base.model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    logits = trained(IDS).logits
    assert torch.equal(logits.detach(), sampled)
    logits.logsumexp(-1).sum().backward()
    gradients = [parameter.grad for name, parameter in trained.named_parameters() if "lora_B" in name]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


@quantized
def test_the_digest_is_of_the_bits_and_their_scales(folder: Path) -> None:
    settings = Model(base=str(folder), quantization="nf4")
    base = load_base(settings)
    assert load_base(settings).base_digest == base.base_digest
    names = [name for name, _ in quantized_base.scales(base.model)]
    assert len(names) == 2 * 7, "of each linear layer, without the head"
