"""Detect which weights a server answers with, from the logprobs of a fixed text.

    base, adapter ──► one forward pass here ──► the adapter's change, predicted ──────┐
                                                                                      ├──► served, or not
    server ──► prompt_logprobs of the base and of the adapter ──► its change ─────────┘

A server lists an adapter once it is loaded; whether it applies it shows only in the numbers. The change from base to
adapter is compared, so that the server's own rounding (bfloat16, other kernels) partly cancels. Three root mean squares
over the tokens of the text decide, in nats:

    moved     the server's change                      less than a quarter of `size`: it answered with the base
    apart     its difference from the prediction       above the limit: it answered with something else
    size      the predicted change                     almost 0 (such as B = 0): undetectable, so not refused

`apart` may be four times the noise, which is the distance of the server's base from ours, or a tenth of the size.

It cannot detect a server that answers probes with other weights than tasks. Under bfloat16 it cannot tell versions that
differ by less than the rounding, nor a base if other requests in the same batch alter the rounding by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.events import Message
from streams.engines.rendering.prompts import Prompts

QUESTION = "What is 12 + 34 + 5? Answer with the number only."
REPLY = (
    "51. Adding from the left, 12 and 34 make 46, and 5 more make 51. A list of three words: river, yellow, seven. "
    "In other news, the weather was said to be mild, 20 degrees by noon, so 8 of the 15 boats left the harbour."
)
"""Sums, prose and numbers, so that any change by an adapter shows somewhere."""
MOST_TOKENS = 128
"""Tokens of the probe; one prefill."""
NOISE_FLOOR = 1e-4
"""Nats by which two correct implementations differ in float32; measured noise counts as at least this."""
SAME_BASE = 0.25
"""Root mean square in nats up to which two sets of base logprobs belong to one model: bfloat16 stays below a third of
it, another model or another tokenizer is off by whole nats."""
MOVED = 0.25
"""A change below this share of the predicted size counts as none."""
APART, NEAR = 4.0, 0.1
"""A change may differ from the predicted one by APART times the noise, or by the share NEAR of its size."""


class Probe:
    """The text, and its logprobs under our own weights. `model` is the base; one thread uses it."""

    def __init__(self, prompts: Prompts, model: Any, most_tokens: int = MOST_TOKENS) -> None:
        tokens = prompts.render_tokens([Message(role="user", content=QUESTION)]) + prompts.plain(REPLY)
        self.tokens = tokens[: min(most_tokens, prompts.context_tokens - 1)]
        self._model = model
        self.base_logprobs = self._logprobs()

    def logprobs(self, adapter: Path) -> list[float]:
        """Return the logprob of each token except the first under the adapter. Raises EventError (bad_adapter)."""
        from streams.engines.local.lora import BatchedLora, read_lora

        lora = BatchedLora(self._model)
        lora.use([(slice(None), read_lora(adapter, self._model))])
        try:
            return self._logprobs()
        finally:
            lora.remove()

    def _logprobs(self) -> list[float]:
        import torch

        with torch.inference_mode():
            ids = torch.tensor([self.tokens], device=self._model.device)
            logprobs = self._model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
            values: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
            return values


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """The change from base to adapter on a server, against the predicted one; root mean squares, nats."""

    size: float
    moved: float
    apart: float
    noise: float

    @property
    def is_detectable(self) -> bool:
        """Whether the adapter changes enough to be told from the base."""
        return self.size > NOISE_FLOOR

    @property
    def is_served(self) -> bool:
        """Whether the change is the predicted one, or as small if the adapter cannot be told from the base."""
        if self.is_detectable and self.moved < MOVED * self.size:
            return False
        return self.apart <= max(APART * self.noise, NEAR * self.size)

    def __str__(self) -> str:
        return (
            f"a change of {self.moved:.2g} nats where {self.size:.2g} was predicted, {self.apart:.2g} apart "
            f"(noise {self.noise:.2g})"
        )


def noise(expected: Sequence[float], reported: Sequence[float]) -> float:
    """Return the root mean square difference, in nats, of a server's logprobs from the expected ones.

    >>> noise([-1.0, -2.0], [-1.5, -1.5])
    0.5
    """
    return _rms(_differences(reported, expected))


def change(
    *, predicted: Sequence[float], predicted_base: Sequence[float], seen: Sequence[float], seen_base: Sequence[float]
) -> WeightChange:
    """Return the observed change against the predicted one; all logprobs of the same tokens, nats."""
    predicted_change = _differences(predicted, predicted_base)
    seen_change = _differences(seen, seen_base)
    return WeightChange(
        size=_rms(predicted_change),
        moved=_rms(seen_change),
        apart=noise(predicted_change, seen_change),
        noise=max(NOISE_FLOOR, noise(predicted_base, seen_base)),
    )


def _differences(values: Sequence[float], subtracted: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(values, subtracted, strict=True)]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(x * x for x in values) / len(values))
