"""A language model of 40 thousand parameters with random weights, and groups for it: trainer tests take seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from schemas.events import AdvantagedGroup, GroupResponse, Sampling, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from tests.support.factories import changed

torch.set_num_threads(1)  # more only wait for each other at this size

VOCABULARY = 64
TEMPLATE = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"


def tiny_model(seed: int = 0, vocabulary: int = VOCABULARY, *, initializer_range: float = 0.3) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=initializer_range,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval().requires_grad_(False)


def word_tokenizer(words: Sequence[str], template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, of which the first four are <pad>, <s>, </s> and <unk>."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    return word_tokenizer(["<pad>", "<s>", "</s>", "<unk>", *map(str, range(VOCABULARY - 4))], template)


def save_tiny(folder: Path) -> Path:
    """Write the tiny model as a folder that `model.base` can name."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    return folder


def sampled_logps(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> list[float]:
    """The logprobs of a completion by one plain pass of its own."""
    if not completion:
        return []
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    chosen = (logits.float() / temperature).log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
    return chosen.tolist()


def tiny_group(
    model: Any,
    seed: int,
    *,
    slots: int = 4,
    prompt: int = 6,
    completion: int = 5,
    noise: float = 0.3,
    temperature: float = 1.0,
    **changes: Any,
) -> AdvantagedGroup:
    """A group of random tokens, sampled by `model` as it is, up to `noise` nats per token. Lengths vary by slot."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=draw).tolist()

    prompt_ids = [1, 5, *tokens(prompt - 2)]
    advantages = torch.randn(slots, generator=draw).tolist()
    start = tokens(1)
    responses = []
    for slot in range(slots):
        ids = [*start, *tokens(completion - 1 - slot % 3)] if completion > 3 else tokens(completion)
        logps = torch.tensor(sampled_logps(model, prompt_ids, ids, temperature))
        logps = (logps + noise * torch.randn(len(ids), generator=draw)).clamp(max=0)
        responses.append(
            GroupResponse(
                slot=slot,
                response_id=derive_id(seed, slot),
                partition=0,
                offset=slot,
                finish_reason="stop",
                latency_ms=7.5,
                reward=float(slot),
                advantage=advantages[slot],
                completion_token_ids=TokenIds.of(ids),
                logprobs=Logprobs.of(logps.tolist()),
                loss_mask=LossMask(b"\1" * len(ids)),
            )
        )
    group = AdvantagedGroup(
        group_id=derive_id("group", seed),
        task_id=derive_id("task", seed),
        created_at=0,
        policy="default",
        purpose="train",
        scenario="tiny",
        group_size=slots,
        adapter_version=0,
        base_digest="base",
        tokenizer_digest="tokenizer",
        complete=True,
        formula="grpo",
        formula_version=1,
        formula_eps=1e-4,
        formula_ddof=1,
        reward_mean=0.0,
        reward_std=1.0,
        sampling=Sampling(temperature=temperature, max_tokens=completion),
        prompt_token_ids=TokenIds.of(prompt_ids),
        responses=tuple(responses),
    )
    return changed(group, **changes)
