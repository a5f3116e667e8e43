"""What a training call does to its model: a function of the state before it and the call.

    state at place n, call n + 1 ──► apply ──► state at place n + 1, CallOutcome

The worker, a worker that continues after a crash, and `reproduce` all use it, so the same calls give the same bytes. A
call that fails changes nothing, and so does one that only looks (forward) or saves.

Not here: what is saved where (saved_weights.py), and sampling, which changes no model (sample_call.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from plugins.tinker.calls.call_names import number_of
from plugins.tinker.calls.call_state import request_of
from plugins.tinker.calls.loss_graph import loss_graph_of
from plugins.tinker.worker.call_tensors import examples_of, tensors_of
from plugins.tinker.worker.called_model import CalledModel, CalledState
from plugins.tinker.worker.custom_loss import CustomLoss
from schemas import json_text
from schemas.events import TrainingCall
from streams.errors import CallError

CUSTOM = "custom"
OUTPUT_TYPE = "ArrayRecord"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """The outcome of a call that did not fail."""

    response: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_training: bool = False
    """Whether its time is time of training."""
    changes_weights: bool = False


class CallFiles(Protocol):
    """Where calls have what is not in their record."""

    def data(self, call: TrainingCall) -> bytes:
        """Return the data of a call, wherever they are. Raises CallError, EventError."""

    def weights(self, call: TrainingCall) -> Path:
        """Return the folder of the weights that a call loads. Raises CallError, EventError."""


def fresh_state(model: CalledModel, call: TrainingCall) -> CalledState:
    """Return the state of the model that a call creates, before anything is loaded into it."""
    if call.lora is None:
        raise CallError("invalid", "there is no lora_config", "lora_config")
    return model.fresh(call.lora, number_of(call.model) if call.lora.seed is None else call.lora.seed)


def apply(model: CalledModel, call: TrainingCall, files: CallFiles) -> CallOutcome:
    """Change the state that is entered as a call says. Raises CallError, and then nothing has changed."""
    match call.kind:
        case "create_model":
            return CallOutcome(response={"model_id": call.model}, changes_weights=True)
        case "forward" | "forward_backward":
            return _pass(model, call, files)
        case "optim_step":
            assert call.optimizer is not None  # noqa: S101 - schemas.events.problems
            metrics = model.optim_step(call.optimizer)
            return CallOutcome(metrics=_finite(metrics), is_training=True, changes_weights=True)
        case "load_weights":
            model.load(files.weights(call), optimizer=bool(request_of(call).get("optimizer")))
            return CallOutcome(response={"path": call.path, "model_id": call.model}, changes_weights=True)
    return CallOutcome()


def _pass(model: CalledModel, call: TrainingCall, files: CallFiles) -> CallOutcome:
    examples = examples_of(call, tensors_of(files.data(call)))
    backward = call.kind == "forward_backward"
    loss, config = _loss_of(call)
    passed = model.forward_backward(examples, loss, config, backward=backward)
    outputs = {
        f"{number}.{name}": tensor.numpy()
        for number, output in enumerate(passed.outputs)
        for name, tensor in output.items()
    }
    return CallOutcome(
        response={"loss_fn_output_type": OUTPUT_TYPE},
        metrics=_finite(passed.metrics),
        outputs=outputs,
        prompt_tokens=sum(len(example.tokens) for example in examples),
        is_training=True,
    )


def _loss_of(call: TrainingCall) -> tuple[str | CustomLoss, Mapping[str, float]]:
    """Return the loss of a pass and its settings. Raises CallError."""
    name = call.loss or ""
    if name != CUSTOM:
        try:
            config = json_text.parse(call.loss_config)
        except ValueError as exc:
            raise CallError("invalid", f"it is no JSON: {exc}", "loss_fn_config") from exc
        return name, config
    sent = request_of(call).get("custom_loss")
    if not isinstance(sent, dict):
        raise CallError("invalid", "the call does not have the custom loss that it names", "loss_fn_config.loss_id")
    return CustomLoss(loss_graph_of(str(sent.get("name")), sent.get("inputs") or (), sent.get("graph") or {})), {}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers: a record has no other."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
