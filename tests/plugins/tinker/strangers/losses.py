"""Each loss of the server against the SDK's own client: one step by its name, and one by a loss that the client runs.

    python losses.py            a line of JSON: of each loss how far apart loss, logprobs and weights after a step are

Needs TINKER_BASE_URL, TINKER_API_KEY and a server. The client's side is forward_backward_custom with a plain function:
the SDK runs it on logprobs of a forward pass, differentiates it here, and sends weights for cross_entropy. A custom one
is sent as a graph, and run on the client as a function. Weights after the step are compared by the logprobs that they
give, as a share of the nats by which the step moved them, where those are more than one. Adam's eps is large, so that a
step is about as large as its gradient, and noise is not blown up to a whole step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import tinker
import torch
from tinker import types
from torch import Tensor

PROMPT, STEP = [10, 11, 12, 13], types.AdamParams(learning_rate=0.05, eps=1.0)
PerToken = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


def ratio(logp: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    return (logp - inputs["logprobs"]).exp()


def pessimistic(number: Tensor, advantages: Tensor) -> Tensor:
    """PPO's minimum, written as cases."""
    gain = torch.where(advantages >= 0, number.clamp(max=1.2), number.clamp(min=0.8))
    return -(gain * advantages)


def gspo(logp: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    marked = inputs["sequence_ratio_mask"] == 1
    mean = (logp - inputs["logprobs"])[marked].detach().mean()
    return pessimistic(mean.exp() * (logp - logp.detach()).exp(), inputs["advantages"])


def stable(logp: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    away = logp - inputs["logprobs"]
    weight = torch.minimum(away.detach().exp(), torch.ones_like(away))
    return (inputs["sampled"] != 0) * (0.025 * away * away - weight * inputs["advantages"] * logp)


CLIENT: dict[str, PerToken] = {
    "cross_entropy": lambda logp, inputs: -inputs["weights"] * logp,
    "importance_sampling": lambda logp, inputs: -inputs["advantages"] * ratio(logp, inputs),
    "ppo": lambda logp, inputs: pessimistic(ratio(logp, inputs), inputs["advantages"]),
    "cispo": lambda logp, inputs: -(ratio(logp, inputs).detach().clamp(0.8, 1.2) * inputs["advantages"] * logp),
    "gspo": gspo,
    "dro": lambda logp, inputs: 0.025 * (logp - inputs["logprobs"]) ** 2 - inputs["advantages"] * logp,
    "stable_reinforce": stable,
}


def custom(logprobs, advantages):  # type: ignore[no-untyped-def]
    """A loss that is sent as a graph."""
    best = torch.sigmoid(logprobs + 3.0) * advantages
    return (best.sum() - torch.logsumexp(logprobs, dim=0)), {"custom/best:mean": best.max()}


def data_of(loss: str, sampler: tinker.SamplingClient) -> list[types.Datum]:
    """Return examples as rl_loop of the cookbook makes them, from answers of the server."""
    answers = sampler.sample(
        prompt=types.ModelInput.from_ints(PROMPT),
        num_samples=3,
        sampling_params=types.SamplingParams(max_tokens=6, seed=1),
    ).result()
    data = []
    for number, sequence in enumerate(answers.sequences):
        before, after = len(PROMPT) - 1, len(sequence.tokens)
        marks = [0.0] * before + [1.0] * after
        advantage = [0.0] * before + [(-1.0) ** number * (0.5 + place / 4) for place in range(after)]
        sampled = [0.0] * before + [value + 0.3 * (-1) ** place for place, value in enumerate(sequence.logprobs or [])]
        inputs: dict[str, Any] = {"target_tokens": [0] * before + sequence.tokens}
        if loss == "cross_entropy":
            inputs["weights"] = [mark * 0.7 for mark in marks]
        elif loss != "custom":
            inputs |= {"logprobs": sampled}
        if loss != "cross_entropy":
            inputs |= {"advantages": advantage}
        if loss == "gspo":
            inputs["sequence_ratio_mask"] = marks
        arrays = {name: types.TensorData.from_torch(torch.tensor(value)) for name, value in inputs.items()}
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(PROMPT + sequence.tokens[:-1]), loss_fn_inputs=arrays
        )
        data.append(with_spans(datum, sequence, before) if loss == "stable_reinforce" else datum)
    return data


def with_spans(datum: types.Datum, sequence: types.SampledSequence, before: int) -> types.Datum:
    """Return an example that says which of its tokens were sampled."""
    name, count = sequence.sequence_id, len(sequence.tokens)
    return datum.with_provenance(
        model_input=[
            types.PromptProvenanceSpan(sequence_id=name, length=before + 1),
            types.SampledProvenanceSpan(sequence_id=name, length=count - 1),
        ],
        loss_fn_inputs=[
            types.PromptProvenanceSpan(sequence_id=name, offset=1, length=before),
            types.SampledProvenanceSpan(sequence_id=name, length=count),
        ],
    )


def on_client(loss: str) -> Callable[[list[types.Datum], list[Tensor]], tuple[Tensor, dict[str, float]]]:
    """Return the function that the SDK is to run here."""

    def run(data: list[types.Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        total = torch.zeros(())
        for datum, logp in zip(data, logprobs, strict=True):
            inputs = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
            if loss == "custom":
                total = total + custom(logp, inputs["advantages"])[0]
            else:
                inputs["sampled"] = (torch.arange(len(logp)) >= len(PROMPT) - 1).float()
                total = total + CLIENT[loss](logp, inputs).sum()
        return total, {}

    return run


def compare(service: tinker.ServiceClient, base: str, loss: str) -> dict[str, float]:
    """Return how far apart the server's and the client's step are."""
    models = [service.create_lora_training_client(base_model=base, rank=4, seed=3) for _ in range(2)]
    sampler = models[0].save_weights_and_get_sampling_client(record_stability_info=loss == "stable_reinforce")
    data = data_of(loss, sampler)
    if loss == "custom":
        handle = service.create_custom_loss(custom, {"logprobs": 1, "advantages": 1}).result()
        assert handle.loss_id is not None
        server = models[0].forward_backward_custom(data, handle).result()
    else:
        server = models[0].forward_backward(data, loss).result()
    client = models[1].forward_backward_custom(data, on_client(loss)).result()
    after = []
    for model in models:
        model.optim_step(STEP).result()
        plain = [
            types.Datum(
                model_input=datum.model_input, loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]}
            )
            for datum in data
        ]
        after.append(logprobs_of(model.forward(plain, "cross_entropy").result()))
    before = logprobs_of(server)
    moved = (after[0] - before).abs().max().item()
    return {
        "loss": abs(server.metrics["loss:sum"] - client.metrics["loss:sum"]) / abs(client.metrics["loss:sum"]),
        "logprobs": (before - logprobs_of(client)).abs().max().item(),
        "step": (after[0] - after[1]).abs().max().item() / max(moved, 1.0),
        "moved": moved,
    }


def logprobs_of(output: types.ForwardBackwardOutput) -> Tensor:
    return torch.cat([each["logprobs"].to_torch() for each in output.loss_fn_outputs])


if __name__ == "__main__":
    service = tinker.ServiceClient()
    base = service.get_server_capabilities().supported_models[0].model_name
    print(json.dumps({loss: compare(service, str(base), loss) for loss in [*CLIENT, "custom"]}))
