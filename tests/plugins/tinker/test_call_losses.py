"""The losses of training calls against a second implementation: a token at a time, with the derivative by hand.

Each loss is a sum over tokens of a function of the token's logprob, so its derivative is written beside it, and no
autograd is in the second implementation. A whole model is trained by it, too: a loss moves the weights as cross_entropy
does whose weights are the negative derivatives, which is how the SDK runs a client's own loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins.tinker.calls.call_forms import (
    LOSSES,
    ExampleShape,
    TensorShape,
    adam_of,
    check_chunk,
    check_examples,
    check_optimizer,
    custom_loss_id,
    lora_of,
    loss_config,
    trained_layers,
)
from plugins.tinker.worker.call_losses import LOSS_OF, moving
from plugins.tinker.worker.called_model import CalledModel, LossExample
from schemas.events import CallLora
from streams.errors import CallError
from streams.settings.model import Settings
from tests.support.models.chat_tiny import chat_base

pytestmark = pytest.mark.usefixtures("torch_as_before")

Token = dict[str, float]
"""logp, the inputs at the token, `mean` of the log-ratio over the mask, and whether it was sampled."""
ByHand = Callable[[Token, Mapping[str, float]], tuple[float, float]]
"""Returns the loss of the token and its derivative by logp."""


def ratio(token: Token) -> float:
    return math.exp(token["logp"] - token["logprobs"])


def bound(number: float, token: Token, config: Mapping[str, float]) -> float:
    low = token.get("clip_low_threshold", config["clip_low_threshold"])
    high = token.get("clip_high_threshold", config["clip_high_threshold"])
    return low if number < low else min(number, high)


def clipped_by_hand(number: float, token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    """PPO: where the clipped side is the smaller one there is no derivative."""
    advantage = token["advantages"]
    inside, outside = number * advantage, bound(number, token, config) * advantage
    return (-inside, -inside) if inside <= outside else (-outside, 0.0)


def cross_entropy(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return -token["logp"] * token["weights"], -token["weights"]


def importance_sampling(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return (-ratio(token) * token["advantages"],) * 2


def ppo(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return clipped_by_hand(ratio(token), token, config)


def cispo(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    weight = bound(ratio(token), token, config) * token["advantages"]
    return -weight * token["logp"], -weight


def gspo(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    return clipped_by_hand(math.exp(token["mean"]), token, config)


def dro(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    away = token["logp"] - token["logprobs"]
    value = -token["logp"] * token["advantages"] + config["beta"] * away * away / 2
    return value, -token["advantages"] + config["beta"] * away


def stable_reinforce(token: Token, config: Mapping[str, float]) -> tuple[float, float]:
    if not token["sampled"]:
        return 0.0, 0.0
    away = token["logp"] - token["logprobs"]
    weight = min(1.0, ratio(token)) * token["advantages"]
    value = -weight * token["logp"] + config["kl_coeff"] * away * away / 2
    return value, -weight + config["kl_coeff"] * away


BY_HAND: dict[str, ByHand] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "dro": dro,
    "stable_reinforce": stable_reinforce,
}
CONFIGS: dict[str, dict[str, float]] = {
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05},
    "cispo": {"clip_high_threshold": 3.0},
    "gspo": {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01},
    "dro": {"beta": 0.3},
    "stable_reinforce": {"kl_coeff": 0.7},
}
"""Other than the defaults, for a second run."""


def after_prompt(shape: tuple[int, ...]) -> Tensor:
    places = torch.ones(shape, dtype=torch.bool)
    places[:3] = False
    return places


def inputs_of(loss: str, shape: tuple[int, ...], seed: int, *, bounds: bool = False) -> dict[str, Tensor]:
    """Inputs with a prompt of three tokens, whose logprobs and advantages are 0 as the cookbook pads them."""
    draw = torch.Generator().manual_seed(seed)
    form = LOSSES[loss]
    inputs = {name: torch.randn(shape, generator=draw) for name in form.inputs}
    if loss == "cross_entropy":
        inputs["weights"] = torch.rand(shape, generator=draw) * 2
    if "logprobs" in inputs:
        inputs["logprobs"] = -2.5 + inputs["logprobs"] / 2
    for name in inputs:
        inputs[name][:3] = 0.0
    if "sequence_ratio_mask" in inputs:
        inputs["sequence_ratio_mask"] = after_prompt(shape).float()
    if bounds:
        inputs["clip_low_threshold"] = 1 - torch.rand(shape, generator=draw) / 2
        inputs["clip_high_threshold"] = 1 + torch.rand(shape, generator=draw) / 2
    return inputs


def by_hand(loss: str, logp: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> tuple[float, Tensor]:
    """Return the sum of the tokens' losses, and the derivative of each, in float64."""
    flat = {name: value.double().flatten().tolist() for name, value in {**inputs, "logp": logp.detach()}.items()}
    mean = 0.0
    if "sequence_ratio_mask" in flat:
        inside = [at for at, marked in enumerate(flat["sequence_ratio_mask"]) if marked]
        mean = sum(flat["logp"][at] - flat["logprobs"][at] for at in inside) / len(inside)
    pairs = [
        BY_HAND[loss]({**{name: values[at] for name, values in flat.items()}, "mean": mean}, config)
        for at in range(logp.numel())
    ]
    return sum(value for value, _ in pairs), torch.tensor([slope for _, slope in pairs]).view(logp.shape)


def logprobs(shape: tuple[int, ...], seed: int) -> Tensor:
    return (-2.5 + torch.randn(shape, generator=torch.Generator().manual_seed(100 + seed)) / 2).requires_grad_()


@pytest.mark.parametrize("own_config", [False, True])
@pytest.mark.parametrize("shape", [(11,), (7, 3)])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_loss_and_its_derivative_are_those_by_hand(loss: str, shape: tuple[int, ...], own_config: bool) -> None:
    config = loss_config(loss, CONFIGS.get(loss, {}) if own_config else None)
    for seed in range(5):
        logp, inputs = logprobs(shape, seed), inputs_of(loss, shape, seed)
        if loss == "stable_reinforce":
            inputs["sampled"] = after_prompt(shape)
        value = LOSS_OF[loss](logp, inputs, config)
        value.backward()
        expected, slopes = by_hand(loss, logp, inputs, config)
        assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert logp.grad is not None
        assert torch.allclose(logp.grad, slopes, rtol=1e-5, atol=1e-5)
        may_move = moving(loss, inputs)
        assert may_move is None or not slopes[~may_move].any()


@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo"])
def test_bounds_of_the_ratio_may_be_of_each_token(loss: str) -> None:
    logp, inputs = logprobs((9,), 0), inputs_of(loss, (9,), 0, bounds=True)
    config = loss_config(loss, None)
    value = LOSS_OF[loss](logp, inputs, config)
    value.backward()
    expected, slopes = by_hand(loss, logp, inputs, config)
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert logp.grad is not None and torch.allclose(logp.grad, slopes, atol=1e-5)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "gspo"])
def test_a_token_without_advantage_adds_nothing_however_far_it_is_from_the_sampler(loss: str) -> None:
    logp = torch.tensor([-0.1, -1.0, -2.0], requires_grad=True)
    inputs = {"logprobs": torch.tensor([-500.0, -1.1, -1.9]), "advantages": torch.tensor([0.0, 1.0, -1.0])}
    if loss == "gspo":
        inputs["sequence_ratio_mask"] = torch.tensor([0.0, 1.0, 1.0])
    value = LOSS_OF[loss](logp, inputs, loss_config(loss, None))
    value.backward()
    assert logp.grad is not None and math.isfinite(value.item())
    assert logp.grad[0] == 0 and logp.grad[1] < 0


def test_on_policy_stable_reinforce_is_reinforce() -> None:
    logp = logprobs((6,), 0)
    inputs = {**inputs_of("stable_reinforce", (6,), 0), "logprobs": logp.detach(), "sampled": torch.ones(6) > 0}
    LOSS_OF["stable_reinforce"](logp, inputs, loss_config("stable_reinforce", None)).backward()
    assert logp.grad is not None and torch.allclose(logp.grad, -inputs["advantages"], atol=1e-6)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "cross_entropy"])
def test_a_loss_moves_a_model_as_its_own_linear_loss_does(loss: str) -> None:
    called = CalledModel(Settings(), chat_base())
    state = called.fresh(CallLora(rank=4), 1)
    called.enter(state)
    with torch.no_grad():
        for parameter in state.parameters.values():
            parameter.add_(0.05)
    draw = torch.Generator().manual_seed(2)
    examples = []
    for seed, tokens in enumerate((10, 7)):
        ids = torch.randint(4, 60, (tokens + 1,), generator=draw)
        inputs = {**inputs_of(loss, (tokens,), seed), "target_tokens": ids[1:]}
        examples.append(LossExample(ids[:-1], inputs, torch.arange(tokens) >= 3))
    config = loss_config(loss, None)
    passed = called.forward_backward(examples, loss, config)
    gradients = {name: parameter.grad for name, parameter in state.parameters.items()}
    called.optim_step(adam_of({"learning_rate": 0.0}))
    linear, total = [], 0.0
    for example, output in zip(examples, passed.outputs, strict=True):
        inputs = {name: value for name, value in example.inputs.items() if name != "target_tokens"}
        value, slopes = by_hand(loss, output["logprobs"], {**inputs, "sampled": example.sampled}, config)
        total += value
        weights = {"target_tokens": example.inputs["target_tokens"], "weights": -slopes.float()}
        linear.append(LossExample(example.tokens, weights))
    assert passed.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    called.forward_backward(linear, "cross_entropy")
    for name, parameter in state.parameters.items():
        gradient = gradients[name]
        assert gradient is not None and parameter.grad is not None
        assert (gradient - parameter.grad).abs().max() <= 1e-5 * max(1.0, gradient.abs().max().item()), name


# --- what is refused --------------------------------------------------------------------------------------------------


def shape_of(tokens: int = 4, **inputs: Any) -> ExampleShape:
    shapes = {"target_tokens": TensorShape("int64", (tokens,))}
    return ExampleShape(tokens, {**shapes, **{name: TensorShape("float32", shape) for name, shape in inputs.items()}})


@pytest.mark.parametrize(
    ("refused", "parameter", "said"),
    [
        (lambda: loss_config("reinforce", {}), "loss_fn", "there is no loss 'reinforce' here; there are cross_entropy"),
        (
            lambda: loss_config("ppo", {"epsilon": 0.2}),
            "loss_fn_config.epsilon",
            "loss 'ppo' has no 'epsilon'; it takes",
        ),
        (lambda: loss_config("cross_entropy", {"beta": 1.0}), "loss_fn_config.beta", "it takes none"),
        (lambda: loss_config("dro", {"beta": "much"}), "loss_fn_config.beta", "expected a finite number"),
        (
            lambda: loss_config("ppo", {"clip_low_threshold": 1.5}),
            "loss_fn_config.clip_low_threshold",
            "1.5, above clip_high_threshold 1.2",
        ),
        (lambda: custom_loss_id({}), "loss_fn_config.loss_id", "expected the id of a custom loss"),
        (lambda: check_examples("cross_entropy", []), "data", "there are no examples"),
        (
            lambda: check_examples("cross_entropy", [shape_of(weights=(4,)), shape_of(mask=(4,))]),
            "data[1].loss_fn_inputs.mask",
            "does not read 'mask'; it reads target_tokens, weights",
        ),
        (
            lambda: check_examples("ppo", [shape_of(logprobs=(4,))]),
            "data[0].loss_fn_inputs",
            "advantages is missing, which loss 'ppo' reads",
        ),
        (
            lambda: check_examples("cross_entropy", [shape_of(weights=(3,))]),
            "data[0].loss_fn_inputs.weights",
            r"shape \[3\], expected \[4\]",
        ),
        (
            lambda: check_examples("cross_entropy", [ExampleShape(3, {"target_tokens": TensorShape("int64", (4,))})]),
            "data[0].loss_fn_inputs.target_tokens",
            r"shape \[4\], expected \[3\] or \[3, K\]",
        ),
        (
            lambda: check_examples("stable_reinforce", [shape_of(logprobs=(4,), advantages=(4,))]),
            "data[0].loss_fn_input_spans",
            "needs to know which tokens were sampled",
        ),
        (
            lambda: check_examples("custom", [shape_of(a=(4, 2))], {"logprobs": 1, "a": 1}),
            "data[0].loss_fn_inputs.a",
            "a has rank 2, but the loss declared a with 1",
        ),
        (
            lambda: check_chunk("image", "data[0].model_input.chunks[0]"),
            "data[0].model_input.chunks[0].type",
            "'image'",
        ),
        (lambda: check_optimizer({"type": "dimuon"}), "optimizer_config.type", "the optimizer 'dimuon' is not offered"),
        (lambda: adam_of({"type": "dimuon"}), "adam_params.type", "the optimizer 'dimuon' is not offered"),
        (lambda: adam_of({"momentum": 0.9}), "adam_params.momentum", "AdamW has no 'momentum'; it takes learning_rate"),
        (lambda: adam_of({"beta2": 1.0}), "adam_params.beta2", "expected at least 0 and less than 1"),
        (lambda: adam_of({"eps": float("nan")}), "adam_params.eps", "expected a finite number"),
        (lambda: lora_of(None), "lora_config", "only LoRA is trained here"),
        (lambda: lora_of({"rank": 0}), "lora_config.rank", "the rank is 0, expected 1 to 512"),
        (lambda: lora_of({"rank": 8, "alpha": 8}), "lora_config.alpha", "it has no 'alpha'"),
        (lambda: lora_of({"rank": 8, "train_attn": False, "train_mlp": False}), "lora_config", "so nothing would be"),
    ],
)
def test_what_has_no_effect_here_is_refused_by_its_name(refused: Callable[[], Any], parameter: str, said: str) -> None:
    with pytest.raises(CallError, match=said) as error:
        refused()
    assert error.value.parameter == parameter


def test_the_defaults_of_the_sdk_are_taken_and_the_unembedding_is_said_not_to_be_trained() -> None:
    """The SDK always sends train_unembed, and true unless its user says otherwise."""
    lora = lora_of({"rank": 32, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True})
    assert lora == CallLora(rank=32)
    assert trained_layers(lora) == {"train_attn": True, "train_mlp": True, "train_unembed": False}
    step = adam_of({})
    assert (step.learning_rate, step.beta1, step.beta2, step.eps, step.weight_decay) == (1e-4, 0.9, 0.95, 1e-12, 0.0)
    check_optimizer({"type": "adamw"})
    check_optimizer(None)
    check_chunk("encoded_text", "")
    check_examples("custom", [shape_of(weights=(4,), more=())], {"logprobs": 1, "weights": 1})
