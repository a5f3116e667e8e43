"""What a call of the Tinker API may ask for, and what is refused, by name. Without torch: gateway and worker share it.

    create_model    ──► lora_of            LoRA's rank and layers; an order that trains nothing is refused
    forward(_backward) ──► check_loss      a loss, its config's keys, the inputs of each example and their shapes
    optim_step      ──► adam_of            AdamW's parameters

Each raises CallError with the path of what is wrong, what is there and what is taken. Nothing is ignored: an input or a
key that the loss does not read is refused, since its sender expects an effect.

The unembedding is never trained, though `train_unembed` is the SDK's default and is taken: logprobs are computed from
the head's own weight, and no engine applies an adapter there. `trained_layers` says what is trained, and so does
the answer of weights_info.

Not covered: token ids beyond the vocabulary and rows beyond the context, which only the worker, with its
model, can judge (plugins/tinker/worker/called_model.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.events import CallAdam, CallLora
from streams.errors import CallError

LORA_ALPHA = 32
"""Tinker's, for every rank; the update is scaled by LORA_ALPHA / rank."""
MAX_RANK = 512
PROVENANCE = "stable_reinforce"
"""The loss that needs to know which tokens were sampled."""
CUSTOM = "custom"
LOSS_ID = "loss_id"
"""Of a custom loss, in its config."""


class TensorShape(NamedTuple):
    """An input of a loss as it was sent."""

    dtype: str
    shape: tuple[int, ...]


class ExampleShape(NamedTuple):
    """What of an example can be judged without its numbers."""

    tokens: int
    inputs: Mapping[str, TensorShape]
    has_provenance: bool = False


@dataclass(frozen=True, slots=True)
class LossForm:
    """What a loss reads."""

    inputs: tuple[str, ...]
    """In addition to target_tokens. Each has its shape."""
    optional: tuple[str, ...] = ()
    config: Mapping[str, float] = field(default_factory=dict)
    """Keys and their defaults."""


_SAMPLED = ("logprobs", "advantages")
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

LOSSES: Mapping[str, LossForm] = {
    "cross_entropy": LossForm((), ("weights",)),
    "importance_sampling": LossForm(_SAMPLED),
    "ppo": LossForm(_SAMPLED, tuple(_CLIP), _CLIP),
    "cispo": LossForm(_SAMPLED, tuple(_CLIP), _CLIP),
    "gspo": LossForm((*_SAMPLED, "sequence_ratio_mask"), tuple(_CLIP), _CLIP),
    "dro": LossForm(_SAMPLED, (), {"beta": 0.05}),
    "stable_reinforce": LossForm(_SAMPLED, (), {"kl_coeff": 0.05}),
}
"""`custom` is not one of them: its inputs are those that its graph names."""


_ADAM = {
    "learning_rate": 1e-4,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}
"""The SDK's defaults."""


def trained_layers(lora: CallLora) -> dict[str, bool]:
    """Return the kinds of layers that are trained, by the names of Tinker's weights_info."""
    return {"train_attn": lora.train_attn, "train_mlp": lora.train_mlp, "train_unembed": False}


def lora_of(lora: Mapping[str, Any] | None) -> CallLora:
    """Return the adapter that a lora_config of create_model asks for."""
    if lora is None:
        raise CallError(
            "unsupported",
            "lora_config is missing: only LoRA is trained here, not all weights",
            "lora_config",
            way_out="send lora_config, as create_lora_training_client does",
        )
    _check_keys(lora, ("rank", "seed", "train_attn", "train_mlp", "train_unembed"), "lora_config", "it")
    rank = lora.get("rank")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise CallError("invalid", f"the rank is {rank!r}, expected 1 to {MAX_RANK}", "lora_config.rank")
    attn, mlp = (bool(lora.get(name, True)) for name in ("train_attn", "train_mlp"))
    if not (attn or mlp):
        raise CallError(
            "unsupported",
            "train_attn and train_mlp are false, and the unembedding is not trained here, so nothing would be",
            "lora_config",
            way_out="set train_attn or train_mlp to true",
        )
    seed = lora.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise CallError("invalid", f"the seed is {seed!r}, expected 0 to 2^63 - 1", "lora_config.seed")
    unembed = bool(lora.get("train_unembed", True))
    return CallLora(rank=rank, seed=seed, train_attn=attn, train_mlp=mlp, train_unembed=unembed)


def check_optimizer(config: Mapping[str, Any] | None, parameter: str = "optimizer_config") -> None:
    """Refuse an optimizer other than AdamW, which create_model chooses."""
    kind = (config or {}).get("type", "adamw")
    if kind != "adamw":
        raise CallError(
            "unsupported",
            f"the optimizer {kind!r} is not offered here, only 'adamw'",
            f"{parameter}.type",
            way_out="create the model with AdamOptimizerConfig() and step with AdamParams",
        )
    _check_keys(config or {}, ("type",), parameter, "'adamw'")


def adam_of(parameters: Mapping[str, Any], parameter: str = "adam_params") -> CallAdam:
    """Return the step that an optim_step's parameters ask for."""
    if parameters.get("type", "adamw") != "adamw":
        check_optimizer({"type": parameters["type"]}, parameter)
    sent = {name: value for name, value in parameters.items() if name != "type"}
    _check_keys(sent, tuple(_ADAM), parameter, "AdamW")
    for name, value in sent.items():
        if not _is_finite(value):
            raise CallError("invalid", f"{name} is {value!r}, expected a finite number", f"{parameter}.{name}")
    step = CallAdam(**{name: float(sent.get(name, default)) for name, default in _ADAM.items()})
    for name, value, is_good, expected in (
        ("learning_rate", step.learning_rate, step.learning_rate >= 0, "0 or more"),
        ("beta1", step.beta1, 0 <= step.beta1 < 1, "at least 0 and less than 1"),
        ("beta2", step.beta2, 0 <= step.beta2 < 1, "at least 0 and less than 1"),
        ("eps", step.eps, step.eps >= 0, "0 or more"),
        ("weight_decay", step.weight_decay, step.weight_decay >= 0, "0 or more"),
    ):
        if not is_good:
            raise CallError("invalid", f"{name} is {value:g}, expected {expected}", f"{parameter}.{name}")
    return step


def loss_config(loss: str, config: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the numbers of a built-in loss, defaults included."""
    if loss == CUSTOM or loss not in LOSSES:
        names = ", ".join([*LOSSES, CUSTOM])
        raise CallError("unsupported", f"there is no loss {loss!r} here; there are {names}", "loss_fn")
    form = LOSSES[loss]
    sent = dict(config or {})
    _check_keys(sent, tuple(form.config), "loss_fn_config", f"loss {loss!r}")
    for key, value in sent.items():
        if not _is_finite(value):
            raise CallError("invalid", f"{key} is {value!r}, expected a finite number", f"loss_fn_config.{key}")
    numbers = {key: float(sent.get(key, default)) for key, default in form.config.items()}
    if "clip_low_threshold" in numbers and numbers["clip_low_threshold"] > numbers["clip_high_threshold"]:
        raise CallError(
            "invalid",
            f"clip_low_threshold is {numbers['clip_low_threshold']:g}, above clip_high_threshold "
            f"{numbers['clip_high_threshold']:g}; both are bounds of the ratio, 0.8 and 1.2 if not sent",
            "loss_fn_config.clip_low_threshold",
        )
    return numbers


def custom_loss_id(config: Mapping[str, Any] | None) -> str:
    """Return the id of the custom loss that a call with loss `custom` names."""
    sent = dict(config or {})
    _check_keys(sent, (LOSS_ID,), "loss_fn_config", f"loss {CUSTOM!r}")
    loss_id = sent.get(LOSS_ID)
    if not isinstance(loss_id, str) or not loss_id:
        raise CallError(
            "invalid",
            f"{LOSS_ID} is {loss_id!r}, expected the id of a custom loss of this session",
            f"loss_fn_config.{LOSS_ID}",
            way_out="create it with ServiceClient.create_custom_loss, and pass its handle",
        )
    return loss_id


def check_examples(
    loss: str, examples: Sequence[ExampleShape], ranks: Mapping[str, int] | None = None, path: str = "data"
) -> None:
    """Refuse examples that `loss` cannot read, the first by its place. `ranks`: of the inputs of a custom loss."""
    if not examples:
        raise CallError("invalid", "there are no examples", path)
    for number, example in enumerate(examples):
        _check_example(loss, example, ranks, f"{path}[{number}]")


def _check_example(loss: str, example: ExampleShape, ranks: Mapping[str, int] | None, path: str) -> None:
    inputs_path = f"{path}.loss_fn_inputs"
    targets = example.inputs.get("target_tokens")
    if targets is None:
        raise CallError("invalid", f"target_tokens is missing, which loss {loss!r} reads", inputs_path)
    if example.tokens < 1:
        raise CallError("invalid", "the model input has no tokens", f"{path}.model_input")
    if targets.dtype != "int64":
        raise CallError("invalid", f"target_tokens are {targets.dtype}, expected int64", f"{inputs_path}.target_tokens")
    shape = targets.shape
    if len(shape) not in (1, 2) or shape[0] != example.tokens or 0 in shape:
        raise CallError(
            "invalid",
            f"target_tokens has shape {list(shape)}, expected [{example.tokens}] or [{example.tokens}, K]: a row for "
            "each token of the model input",
            f"{inputs_path}.target_tokens",
        )
    if ranks is None:
        form = LOSSES[loss]
        _check_names(loss, example, form.inputs, form.optional, inputs_path)
        for name, tensor in example.inputs.items():
            _check_same_shape(name, tensor, shape, inputs_path)
        if loss == PROVENANCE:
            _check_provenance(example, shape, path)
    else:
        _check_ranks(example, ranks, inputs_path)


def _check_ranks(example: ExampleShape, ranks: Mapping[str, int], inputs_path: str) -> None:
    """Refuse an example of a custom loss whose inputs have other ranks than it declared.

    It may have more inputs than the loss reads: the SDK sends examples as they are.
    """
    for name, rank in ranks.items():
        key = "target_tokens" if name == "logprobs" else name
        if key not in example.inputs:
            raise CallError("invalid", f"{key} is missing, which the custom loss reads", inputs_path)
        if (sent := len(example.inputs[key].shape)) != rank:
            raise CallError(
                "invalid", f"{key} has rank {sent}, but the loss declared {name} with {rank}", f"{inputs_path}.{key}"
            )


def _check_names(
    loss: str, example: ExampleShape, names: Sequence[str], optional: Sequence[str], inputs_path: str
) -> None:
    if missing := [name for name in names if name not in example.inputs]:
        raise CallError("invalid", f"{missing[0]} is missing, which loss {loss!r} reads", inputs_path)
    readable = {"target_tokens", *names, *optional}
    if unread := sorted(set(example.inputs) - readable):
        raise CallError(
            "invalid",
            f"loss {loss!r} does not read {unread[0]!r}; it reads {', '.join(sorted(readable))}",
            f"{inputs_path}.{unread[0]}",
            way_out="leave it out, or use a loss that reads it",
        )


def _check_same_shape(name: str, tensor: TensorShape, shape: tuple[int, ...], inputs_path: str) -> None:
    if tensor.shape != shape:
        raise CallError(
            "invalid",
            f"{name} has shape {list(tensor.shape)}, expected {list(shape)}, the shape of target_tokens",
            f"{inputs_path}.{name}",
        )


def _check_provenance(example: ExampleShape, shape: tuple[int, ...], path: str) -> None:
    if len(shape) != 1:
        raise CallError(
            "unsupported",
            f"target_tokens has shape {list(shape)}, but loss {PROVENANCE!r} takes one target for each token",
            f"{path}.loss_fn_inputs.target_tokens",
        )
    if not example.has_provenance:
        raise CallError(
            "invalid",
            f"loss {PROVENANCE!r} needs to know which tokens were sampled, and this example does not say it",
            f"{path}.loss_fn_input_spans",
            way_out="sample with record_stability_info=True, and attach spans with Datum.with_provenance",
        )


def check_chunk(kind: str, path: str) -> None:
    """Refuse a chunk of a model input that is not text: the base models here read tokens alone."""
    if kind != "encoded_text":
        raise CallError(
            "unsupported",
            f"a chunk of type {kind!r} is not offered here, only 'encoded_text': the models read tokens alone",
            f"{path}.type",
        )


def _check_keys(sent: Mapping[str, Any], readable: Sequence[str], path: str, reader: str) -> None:
    if unknown := sorted(set(sent) - set(readable)):
        takes = f"takes {', '.join(readable)}" if readable else "takes none"
        raise CallError("unknown_parameter", f"{reader} has no {unknown[0]!r}; it {takes}", f"{path}.{unknown[0]}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
