"""Refuse a model that an engine would decode wrongly, and an adapter with logits that are not finite.

fixed prompts and answers ──► the engine's way ──┐
                          └──► plain forwards ───┴──► they agree, or the engine does not start
a fixed prompt, an adapter ──► logits ──► they are finite, or the version does not serve
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from streams.errors import SettingsError

AGREEMENT = 1e-3
"""Nats by which two ways of decoding may differ in float32."""
AGREEMENT_HALF = 0.5
"""The same in bfloat16, which has three digits."""

PROMPT = (*range(3, 14), 17)
Prompt = tuple[int, ...]
Decode = Callable[
    [
        list[Prompt],
        Tensor,  # [rows, steps] int64: the answers
        Tensor,  # [rows] int64: which of the prompts each answers; ascending
    ],
    Tensor,  # [rows, 1 + steps, V]: logits after the prompt and after each token of the answer
]


def is_finite(model: Any, run: Callable[[Tensor], Tensor]) -> bool:
    """Return whether `run` gives finite logits for a prompt: finite numbers may have infinite products."""
    ids = torch.tensor(PROMPT, device=model.device) % model.get_input_embeddings().num_embeddings
    with torch.inference_mode():
        return bool(run(ids).isfinite().all())


def check_decoding(model: Any, decode: Decode) -> None:
    """Raise SettingsError if `decode` gives other logits than plain forwards of `model`, which run first."""
    size = model.get_input_embeddings().num_embeddings
    prompts = [tuple(token % size for token in (*range(3, 14), *tail)) for tail in ((17, 18, 19), (17,))]
    answers = torch.tensor([[21, 22, 23], [24, 25, 26], [27, 28, 29]], device=model.device) % size
    prompt_of_row = torch.tensor([0, 0, 1], device=model.device)
    try:
        with torch.inference_mode():
            plain = torch.stack(
                [
                    model(input_ids=torch.cat((answers.new_tensor(prompts[prompt]), row))[None]).logits[0, -4:]
                    for prompt, row in zip(prompt_of_row.tolist(), answers, strict=True)
                ]
            )
            decoded = decode(prompts, answers, prompt_of_row)
            difference = (plain.log_softmax(-1) - decoded.log_softmax(-1)).abs().max().item()
    except (TypeError, AttributeError, IndexError, RuntimeError) as exc:  # an architecture of another shape
        raise SettingsError(f"model.base: the transformers engine cannot run this architecture: {exc}") from exc
    allowed = AGREEMENT if model.dtype == torch.float32 else AGREEMENT_HALF
    if not difference <= allowed:
        raise SettingsError(
            f"model.base: with this architecture the engine's decoding differs by {difference:.2g} nats from plain, "
            f"and at most {allowed} is expected; use a model with plain softmax attention, e.g. a Llama or a Qwen2"
        )
