"""Custom losses as Tinker's SDK traces, encodes and runs them, for a test to run the same graphs here.

    python tests/plugins/tinker/strangers/custom_losses.py > tests/plugins/tinker/strangers/custom_losses.json

Needs tinker and torch in one environment. Each loss is written as a user would write it. The file has its graph as the
SDK sends it, examples, and what the SDK's own run on the client gives: loss, metrics, the derivative by the logprobs.
tests/plugins/tinker/test_custom_loss.py repeats it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[..., tuple[Tensor, Mapping[str, Tensor]]]
TOKENS, WIDTH = (7, 5), 4


def squared(logprobs):  # type: ignore[no-untyped-def]
    return (logprobs**2).sum(), {}


def clipped_policy(logprobs, old, advantages, mask):  # type: ignore[no-untyped-def]
    ratio = torch.exp(logprobs - old)
    bounded = torch.clamp(ratio, 0.8, 1.2)
    losses = -torch.min(ratio * advantages, bounded * advantages)
    share = ((ratio - bounded).abs() > 0).float().mean()
    return (losses * mask).sum() / mask.sum().clamp(min=1.0), {
        "custom/clipped:mean": share,
        "custom/tokens:sum": mask.sum(),
    }


def k3_penalty(logprobs, reference, advantages):  # type: ignore[no-untyped-def]
    away = reference - logprobs
    kl = away.exp() - away - 1
    return (0.1 * kl - advantages * logprobs).sum(), {"custom/kl:mean": kl.mean()}


def sequence_ratio(logprobs, old, advantages, mask):  # type: ignore[no-untyped-def]
    picked = mask > 0
    mean = (logprobs.detach() - old)[picked].mean()
    ratio = torch.exp(mean + logprobs - logprobs.detach())
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantages)
    return -objective.masked_select(picked).sum(), {"custom/ratio:mean": ratio.max()}


def soft_targets(logprobs, target_distribution):  # type: ignore[no-untyped-def]
    student = torch.log_softmax(logprobs, dim=-1)
    forward = F.kl_div(student, target_distribution, reduction="sum")
    entropy = -(student.exp() * student).sum(-1).mean()
    return forward + 0.01 * entropy, {"custom/entropy:mean": entropy}


def shaped(logprobs, advantages):  # type: ignore[no-untyped-def]
    count = logprobs.shape[0]
    discount = torch.arange(count, dtype=torch.float32).flip(0) * -0.01
    weights = torch.exp(discount) / count
    best = torch.topk(logprobs, 2)[0].sum()
    padded = torch.cat([logprobs[1:], torch.zeros_like(logprobs[:1])])
    smooth = F.smooth_l1_loss(logprobs, padded, reduction="sum")
    return -(weights * advantages * logprobs).sum() + 0.1 * smooth - 0.01 * best, {"custom/length:sum": weights.sum()}


def margins(logprobs, chosen, beta):  # type: ignore[no-untyped-def]
    total = (logprobs * chosen).sum()
    rest = torch.where(chosen > 0, torch.zeros_like(logprobs), logprobs).sum()
    margin = beta * (total - rest)
    return -F.logsigmoid(margin) + F.softplus(-margin) * 0.5, {"custom/margin:mean": margin}


def running(logprobs, advantages):  # type: ignore[no-untyped-def]
    total = logprobs * 0.0
    total += logprobs.cumsum(0) * advantages
    total = total.unsqueeze(-1).expand(-1, 2).reshape(-1)
    pieces = torch.stack([total.sum(), total.std(), total.abs().mean()])
    return pieces.sum() + math.log(2.0), {"custom/spread:mean": pieces[1]}


def huge_values(logprobs, old):  # type: ignore[no-untyped-def]
    ratio = torch.nan_to_num((logprobs - old).exp(), posinf=10.0)
    worst = ratio.masked_fill(ratio < float("-inf"), 0.0)
    return worst.clamp(max=10.0).sum().log1p(), {"custom/worst:mean": worst.amax(dim=0)}


LOSSES: dict[str, tuple[Loss, dict[str, int]]] = {
    "squared": (squared, {"logprobs": 1}),
    "squared_wide": (squared, {"logprobs": 2}),
    "clipped_policy": (clipped_policy, {"logprobs": 1, "old": 1, "advantages": 1, "mask": 1}),
    "k3_penalty": (k3_penalty, {"logprobs": 1, "reference": 1, "advantages": 1}),
    "sequence_ratio": (sequence_ratio, {"logprobs": 1, "old": 1, "advantages": 1, "mask": 1}),
    "soft_targets": (soft_targets, {"logprobs": 2, "target_distribution": 2}),
    "shaped": (shaped, {"logprobs": 1, "advantages": 1}),
    "margins": (margins, {"logprobs": 1, "chosen": 1, "beta": 0}),
    "running": (running, {"logprobs": 1, "advantages": 1}),
    "huge_values": (huge_values, {"logprobs": 1, "old": 1}),
}


def draw(name: str, rank: int, tokens: int, generator: torch.Generator) -> Tensor:
    """Return an input that its name makes sense of."""
    shape = ((), (tokens,), (tokens, WIDTH))[rank]
    numbers = torch.randn(shape, generator=generator)
    if name in ("mask", "chosen"):
        return (torch.arange(tokens) >= 2).float()
    if name == "target_distribution":
        return numbers.softmax(-1)
    if name == "beta":
        return torch.tensor(0.3)
    return -2.0 + numbers / 2 if name in ("logprobs", "old", "reference") else numbers


def record(name: str, loss: Loss, ranks: dict[str, int]) -> dict[str, Any]:
    """Return what the SDK makes of a loss, and of two examples by it."""
    from tinker import types
    from tinker.lib.public_interfaces.custom_loss import check_loss_inputs, encode_graph, run_loss_handle, trace_loss

    handle = trace_loss(loss, ranks, "session")
    generator = torch.Generator().manual_seed(len(name))
    examples = [{key: draw(key, rank, tokens, generator) for key, rank in ranks.items()} for tokens in TOKENS]
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints([1] * len(example["logprobs"])),
            loss_fn_inputs={
                "target_tokens": types.TensorData.from_torch(torch.zeros(example["logprobs"].shape, dtype=torch.int64)),
                **{key: types.TensorData.from_torch(value) for key, value in example.items() if key != "logprobs"},
            },
        )
        for example in examples
    ]
    check_loss_inputs(handle, data)
    logprobs = [example["logprobs"].clone().requires_grad_() for example in examples]
    value, metrics = run_loss_handle(handle, data, logprobs)
    value.backward()
    return {
        "name": name,
        "inputs": [loss_input.model_dump(mode="json") for loss_input in handle.inputs],
        "graph": encode_graph(handle).model_dump(mode="json"),
        "examples": [{key: tensor.tolist() for key, tensor in example.items()} for example in examples],
        "loss": value.item(),
        "metrics": metrics,
        "gradients": [logp.grad.tolist() for logp in logprobs if logp.grad is not None],
    }


def main() -> None:
    """Print every loss, a line each."""
    json.dump([record(name, loss, ranks) for name, (loss, ranks) in LOSSES.items()], sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
