"""The models that calls of the Tinker API train: many of them on one base, each call a function of state and call.

    lora ──► fresh ──► CalledState: weights, gradient, AdamW's moments ──► enter ──► forward_backward: gradient += …
                              ▲                                                      optim_step: weights, gradient = 0
                              └── load ◄── folder: adapter_config.json, adapter_model.safetensors, … ◄── save

A state owns its tensors, and `enter` puts them into the base's LoRA layers without a copy, so states change places in a
millisecond and a step has the bytes that it would have had alone. A call that fails changes nothing: its gradient is
added when the whole call has been computed. Each call's sum is made of parts of about MICRO_TOKENS tokens, cut by the
call alone, in which each distinct prefix is run once (trainer/step/prefix_tree.py); nothing is drawn, so the same calls
give the same bytes. A batch that is cut into several calls is summed in that order, and has other last digits.

Logprobs come back for every target, also where weight or advantage is 0; there the head's backward work is left out.

Files are those of every other adapter here (trainer/step/model.py): peft and the engines read them.

Not covered: the unembedding (call_forms.py says why), the load-balancing loss of mixtures of experts, gradient
checkpointing, several processes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plugins.tinker.calls.call_forms import (
    CUSTOM,
    LORA_ALPHA,
    PROVENANCE,
    ExampleShape,
    TensorShape,
    check_examples,
    loss_config,
)
from plugins.tinker.worker.call_losses import LOSS_OF, moving
from plugins.tinker.worker.custom_loss import CustomLoss
from schemas.events import CallAdam, CallLora
from streams.engines.base_model import Base
from streams.errors import CallError
from streams.settings.model import Settings
from trainer.step import plain_pass, prefix_tree
from trainer.step.collate import MICRO_TOKENS
from trainer.step.model import CONFIG_FILE, WEIGHTS_FILE, config_text
from trainer.step.prefix_tree import NeededToken

OPTIMIZER_FILE = "optimizer.safetensors"
GRADIENT_FILE = "gradient.safetensors"
TARGETS = 8 * MICRO_TOKENS
"""Most logprobs of a part, where a token has several targets."""
MLP = ("mlp", "feed_forward", "ffn", "moe", "expert")
ATTENTION = ("attn", "attention")
"""How the modules are called that layers of each kind are in."""


@dataclass(frozen=True, slots=True)
class LossExample:
    """An example of a call: T tokens, and inputs of its loss."""

    tokens: Tensor  # [T] int64
    inputs: Mapping[str, Tensor]
    """target_tokens int64, [T] or [T, K]; the others as the loss reads them, float32 or int64."""
    sampled: Tensor | None = None  # [T] bool: which targets were sampled, where the example says it

    @property
    def width(self) -> int:
        """How many targets each token has."""
        targets = self.inputs["target_tokens"]
        return 1 if targets.ndim == 1 else targets.shape[1]

    @property
    def shape(self) -> ExampleShape:
        """Its sizes, by which most mistakes are found."""
        shapes = {
            name: TensorShape(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in self.inputs.items()
        }
        return ExampleShape(len(self.tokens), shapes, self.sampled is not None)


class Passed(NamedTuple):
    """What a pass gives."""

    outputs: list[dict[str, Tensor]]
    """Of each example: logprobs, float32, nats, in the shape of its target_tokens, on the CPU."""
    metrics: dict[str, float]
    """loss:sum, and those of a custom loss."""


@dataclass(slots=True)
class CalledState:
    """One model between two of its calls."""

    lora: CallLora
    parameters: dict[str, nn.Parameter]
    """By the name that its weights have in the file; their `grad` is what was accumulated since the last step."""
    optimizer: torch.optim.AdamW

    def digest(self) -> str:
        """Return the sha256 of the file of weights."""
        return hashlib.sha256(save(_plain_tensors(self.parameters), metadata={"format": "pt"})).hexdigest()

    def has_gradient(self) -> bool:
        """Return whether something was accumulated since the last step."""
        return any(parameter.grad is not None for parameter in self.parameters.values())

    def numbers(self) -> int:
        """Return how many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters.values())


@dataclass(frozen=True, slots=True)
class _CallRow:
    """An example as the model runs it."""

    run: list[int]
    ids: list[int]
    """All targets, those of a token one after another."""
    width: int
    moves: list[bool]
    place: int

    @property
    def targets(self) -> Iterator[NeededToken]:
        for number, (token, moves) in enumerate(zip(self.ids, self.moves, strict=True)):
            yield NeededToken(number // self.width, token, self.place + number, moves)


@dataclass(slots=True)
class _Slot:
    """A LoRA shape in the base: where each weight goes."""

    name: str
    modules: dict[str, nn.Module] = field(default_factory=dict)
    """Linear maps of the LoRA layers, by the name of their weight in the file."""


class CalledModel:
    """One base, and the state that is trained now. Call `trainer.step.model.pin` first."""

    def __init__(self, settings: Settings, base: Base) -> None:
        """Train states on `base`, whose layers are wrapped for LoRA from then on."""
        self._settings, self._base = settings, base
        self._model: PeftModel | None = None
        self._slots: dict[tuple[int, bool, bool], _Slot] = {}
        self._state: CalledState | None = None
        self._linear = _linear_layers(base.model)
        base.model.eval()  # without dropout
        self.plain_because = prefix_tree.unshareable(base.model)
        """Why prefixes are not shared; None when they are."""

    # --- states -------------------------------------------------------------------------------------------------------

    def fresh(self, lora: CallLora, seed: int) -> CalledState:
        """Return a model that answers as the base does: A drawn from `seed`, B zero. It is not entered."""
        slot = self._slot(lora)
        parameters = {}
        generator = torch.Generator().manual_seed(seed)
        for name, module in slot.modules.items():
            weight = module.get_parameter("weight")
            drawn = torch.zeros(weight.shape, dtype=torch.float32)
            if ".lora_A." in name:  # as peft: kaiming_uniform with a = sqrt(5)
                drawn.uniform_(-1, 1, generator=generator).div_(math.sqrt(weight.shape[1]))
            parameters[name] = nn.Parameter(drawn.to(weight.device))
        return CalledState(lora, parameters, torch.optim.AdamW(parameters.values()))

    def enter(self, state: CalledState) -> None:
        """Compute with `state` from now on, in its own tensors; the one before keeps its own."""
        if state is self._state:
            return
        slot = self._slot(state.lora)
        assert self._model is not None  # noqa: S101 - there is a slot
        for name, parameter in state.parameters.items():
            slot.modules[name].register_parameter("weight", parameter)
        self._model.set_adapter(slot.name)
        for parameter in state.parameters.values():
            parameter.requires_grad_(True)  # another slot in between has switched it off
        self._state = state

    def save(self, folder: Path, *, optimizer: bool, gradient: bool = False) -> None:
        """Write the state to `folder`, which exists: weights, and the optimizer's state and the gradient if named."""
        state = self._current()
        save_file(_plain_tensors(state.parameters), folder / WEIGHTS_FILE, metadata={"format": "pt"})
        assert self._model is not None  # noqa: S101 - there is a state
        slot = self._slot(state.lora)
        (folder / CONFIG_FILE).write_text(config_text(self._model, self._settings.model.base, slot.name))
        if optimizer:
            moments = {
                f"{kind}/{name}": _plain_tensor(value)
                for name, parameter in state.parameters.items()
                for kind, value in state.optimizer.state.get(parameter, {}).items()
            }
            save_file(moments, folder / OPTIMIZER_FILE)
        if gradient:
            grads = {name: weights.grad for name, weights in state.parameters.items() if weights.grad is not None}
            save_file({name: _plain_tensor(grad) for name, grad in grads.items()}, folder / GRADIENT_FILE)

    def load(self, folder: Path, *, optimizer: bool, gradient: bool = False) -> None:
        """Read what `save` wrote into the state. Without a flag, that part is as in a fresh model.

        Raises CallError if the weights are of another shape, or if there is no state of an optimizer.
        """
        state = self._current()
        weights = load_file(folder / WEIGHTS_FILE)
        self._check_shape(folder, state, weights)
        if optimizer and not (folder / OPTIMIZER_FILE).exists():
            raise CallError("invalid", "these weights were saved without the optimizer's state", "path")
        moments = load_file(folder / OPTIMIZER_FILE) if optimizer else {}
        grads = load_file(folder / GRADIENT_FILE) if gradient else {}
        state.optimizer.state.clear()
        with torch.no_grad():
            for name, parameter in state.parameters.items():
                parameter.copy_(weights[name])
                parameter.grad = grads[name].to(parameter.device) if name in grads else None
        for key, tensor in moments.items():
            kind, _, name = key.partition("/")
            parameter = state.parameters[name]
            on_device = tensor if kind == "step" else tensor.to(parameter.device)
            state.optimizer.state[parameter][kind] = on_device

    # --- calls --------------------------------------------------------------------------------------------------------

    def forward_backward(
        self,
        examples: Sequence[LossExample],
        loss: str | CustomLoss,
        config: Mapping[str, float] | None = None,
        *,
        backward: bool = True,
    ) -> Passed:
        """Return the logprobs of every target and the loss; add its gradient to the state's, unless `backward` is off.

        Raises CallError, with the place of what is wrong, and then nothing has changed.
        """
        state = self._current()
        numbers = loss_config(loss, config) if isinstance(loss, str) else {}
        name, ranks = (loss, None) if isinstance(loss, str) else (CUSTOM, loss.ranks)
        check_examples(name, [example.shape for example in examples], ranks)
        for number, example in enumerate(examples):
            self._check_tokens(example, f"data[{number}]")
            _check_numbers(name, example, f"data[{number}].loss_fn_inputs")
        before = {name: parameter.grad for name, parameter in state.parameters.items()}
        outputs: list[dict[str, Tensor]] = []
        metrics = _Sums(len(examples))
        with ExitStack() as failure, torch.set_grad_enabled(backward):
            failure.callback(_set_gradient, state, before)
            _set_gradient(state, {})
            for part in self._parts(examples, loss, backward):
                self._run_part(part, loss, numbers, outputs, metrics)
            failure.pop_all()
        for name, parameter in state.parameters.items():
            if (sum_before := before[name]) is not None:
                parameter.grad = sum_before if parameter.grad is None else sum_before.add_(parameter.grad)
        return Passed(outputs, metrics.by_name())

    def optim_step(self, step: CallAdam) -> dict[str, float]:
        """Take one step of AdamW with the gradient accumulated since the last, and clear it; return its metrics.

        Without a gradient it is 0, as for any step. One that is not finite changes nothing, and shows as skipped.
        """
        state = self._current()
        for parameter in state.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = step.grad_clip_norm if step.grad_clip_norm > 0 else math.inf
        norm = nn.utils.clip_grad_norm_(state.parameters.values(), limit).item()
        if math.isfinite(norm):
            for group in state.optimizer.param_groups:
                group |= {
                    "lr": step.learning_rate,
                    "betas": (step.beta1, step.beta2),
                    "eps": step.eps,
                    "weight_decay": step.weight_decay,
                }
            state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        return {
            "grad_norm": norm if math.isfinite(norm) else 0.0,
            "skipped": float(not math.isfinite(norm)),
            "learning_rate": step.learning_rate,
        }

    # --- parts --------------------------------------------------------------------------------------------------------

    def _run_part(
        self,
        part: Sequence[tuple[LossExample, _CallRow]],
        loss: str | CustomLoss,
        config: Mapping[str, float],
        outputs: list[dict[str, Tensor]],
        metrics: _Sums,
    ) -> None:
        """Run a part of the call, and add its gradient."""
        logps = self._logprobs([row for _, row in part])
        total = logps.new_zeros(())
        lengths = [len(row.ids) for _, row in part]
        for (example, _), flat in zip(part, logps.split(lengths), strict=True):
            logp = flat.view(example.inputs["target_tokens"].shape)
            inputs = {name: value.to(logp.device) for name, value in example.inputs.items()}
            if isinstance(loss, CustomLoss):
                added, custom = loss(logp, inputs)
                metrics.observe(custom)
            else:
                if example.sampled is not None:
                    inputs["sampled"] = example.sampled.to(logp.device)
                added = LOSS_OF[loss](logp, inputs, config)
            total = total + added
            outputs.append({"logprobs": logp.detach().float().cpu().contiguous()})
        metrics.loss += total.item()
        if total.requires_grad:
            total.backward()

    def _logprobs(self, rows: Sequence[_CallRow]) -> Tensor:  # [M] float32, nats
        """Return the logprobs of all targets of `rows`, whose places follow each other."""
        places = sum(len(row.ids) for row in rows)
        if self.plain_because is None:
            return prefix_tree.logprobs(self._base.model, rows, (1, places), 1.0)[0][0]
        pad = self._base.token_table.pad
        return plain_pass.logprobs(self._base.model, rows, [row.run for row in rows], places, pad)

    def _parts(
        self, examples: Sequence[LossExample], loss: str | CustomLoss, backward: bool
    ) -> Iterator[list[tuple[LossExample, _CallRow]]]:
        """Yield the examples in runs of neighbours that fit one pass, with the rows that the model runs."""
        widest = max(example.width for example in examples)
        rows = [_row_of(example, loss, backward) for example in examples]
        begin = 0
        for run in prefix_tree.cut(rows, max(1, min(MICRO_TOKENS, TARGETS // widest))):
            placed, place = [], 0
            for example, row in zip(examples[begin : begin + len(run)], run, strict=True):
                placed.append((example, _CallRow(row.run, row.ids, row.width, row.moves, place)))
                place += len(row.ids)
            begin += len(run)
            yield placed

    def _check_tokens(self, example: LossExample, path: str) -> None:
        """Refuse an example that this base cannot run."""
        table = self._base.token_table
        for name, tokens in (("model_input", example.tokens), ("target_tokens", example.inputs["target_tokens"])):
            bad = (tokens < 0) | (tokens >= table.size)
            if table.unassigned:
                bad |= torch.isin(tokens, torch.tensor(sorted(table.unassigned)))
            if bad.any():
                raise CallError(
                    "invalid",
                    f"token {int(tokens[bad][0])} is not in the vocabulary of {table.size}",
                    f"{path}.{name}",
                )
        context = getattr(self._base.model.config.get_text_config(), "max_position_embeddings", None)
        if context is not None and len(example.tokens) > context:
            raise CallError(
                "context_length_exceeded",
                f"the model input has {len(example.tokens)} tokens, and the model takes at most {context}",
                f"{path}.model_input",
            )

    # --- LoRA layers --------------------------------------------------------------------------------------------------

    def _current(self) -> CalledState:
        assert self._state is not None, "enter a state first"  # noqa: S101
        return self._state

    def _slot(self, lora: CallLora) -> _Slot:
        """Return the LoRA layers of this shape, which are added to the base if it has none yet."""
        shape = (lora.rank, lora.train_attn, lora.train_mlp)
        if (slot := self._slots.get(shape)) is not None:
            return slot
        slot = _Slot(f"rank{lora.rank}" + "_attn" * lora.train_attn + "_mlp" * lora.train_mlp)
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=LORA_ALPHA,
            target_modules=_target_modules(self._linear, lora),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            if self._model is None:
                self._model = get_peft_model(self._base.model, config, adapter_name=slot.name)
            else:
                self._model.add_adapter(slot.name, config)
        self._model.eval()
        for path, module in self._model.named_modules():
            if isinstance(module, LoraLayer) and slot.name in module.lora_A:
                slot.modules[f"{path}.lora_A.weight"] = module.lora_A[slot.name]
                slot.modules[f"{path}.lora_B.weight"] = module.lora_B[slot.name]
        self._slots[shape] = slot
        return slot

    def _check_shape(self, folder: Path, state: CalledState, weights: Mapping[str, Tensor]) -> None:
        config = json.loads((folder / CONFIG_FILE).read_text())
        expected = {"r": state.lora.rank, "lora_alpha": LORA_ALPHA}
        for name, value in expected.items():
            if config[name] != value:
                raise CallError(
                    "invalid",
                    f"these weights have {name}={config[name]}, but this model was created with {value}",
                    "path",
                    way_out="create the model with the lora_config that weights_info tells",
                )
        if weights.keys() != state.parameters.keys():
            name = sorted(weights.keys() ^ state.parameters.keys())[0]
            raise CallError(
                "invalid",
                f"these weights are of other layers than this model trains: {name} is in only one of the two",
                "path",
                way_out="create the model with the train_attn and train_mlp that weights_info tells",
            )


class _Sums:
    """The metrics of a call, by the suffix of their names."""

    def __init__(self, examples: int) -> None:
        self.loss = 0.0
        self._examples = examples
        self._custom: dict[str, float] = {}

    def observe(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._custom[name] = self._custom.get(name, 0.0) + value

    def by_name(self) -> dict[str, float]:
        means = {
            name: value / (self._examples if name.endswith(":mean") else 1) for name, value in self._custom.items()
        }
        return {"loss:sum": self.loss, **means}


def _check_numbers(loss: str, example: LossExample, path: str) -> None:
    """Refuse inputs whose numbers contradict each other."""
    if loss == "gspo" and not example.inputs["sequence_ratio_mask"].any():
        raise CallError("invalid", "sequence_ratio_mask marks no token", f"{path}.sequence_ratio_mask")
    if loss == PROVENANCE and example.sampled is not None and example.inputs["advantages"][~example.sampled].any():
        raise CallError(
            "invalid",
            f"a token that was not sampled has an advantage, and loss {loss!r} is of the sampled tokens alone",
            f"{path}.advantages",
            way_out="set the advantage of prompt tokens to 0",
        )


def _row_of(example: LossExample, loss: str | CustomLoss, backward: bool) -> _CallRow:
    ids = example.inputs["target_tokens"].flatten().tolist()
    places: Tensor | None = None
    if not backward:
        places = torch.zeros(len(ids), dtype=torch.bool)
    elif isinstance(loss, str):
        extra = {"sampled": example.sampled} if loss == PROVENANCE and example.sampled is not None else {}
        places = moving(loss, {**example.inputs, **extra})
    moves = [True] * len(ids) if places is None else places.flatten().tolist()
    return _CallRow(example.tokens.tolist(), ids, example.width, moves, 0)


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Return the paths of the linear maps of a model without LoRA, but its head: what peft calls all-linear."""
    head = model.get_output_embeddings()
    return [
        path for path, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def _target_modules(linear: Sequence[str], lora: CallLora) -> list[str]:
    """Return which of the linear maps are trained, as peft takes it.

    Raises CallError if the names of the layers do not say their kind.
    """
    chosen = list(linear)
    if not (lora.train_attn and lora.train_mlp):
        kinds, name = (ATTENTION, "train_attn") if lora.train_attn else (MLP, "train_mlp")
        chosen = [path for path in linear if any(kind in path.rpartition(".")[0].lower() for kind in kinds)]
        if not chosen:
            raise CallError(
                "unsupported",
                f"no layer of this base is called like one of {', '.join(kinds)}, so {name} alone names none",
                "lora_config",
                way_out="leave train_attn and train_mlp true",
            )
    leaves = {path.rpartition(".")[2] for path in chosen}
    frozen = {path.rpartition(".")[2] for path in linear if path not in chosen}
    return sorted(chosen) if leaves & frozen else sorted(leaves)


def _set_gradient(state: CalledState, gradient: Mapping[str, Tensor | None]) -> None:
    for name, parameter in state.parameters.items():
        parameter.grad = gradient.get(name)


def _plain_tensors(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: _plain_tensor(parameter) for name, parameter in parameters.items()}


def _plain_tensor(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
