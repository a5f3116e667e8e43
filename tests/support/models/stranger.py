"""A trainer that knows nothing of Streamward: verl's file in, one step in plain PyTorch and PEFT, a PEFT folder out.

It has neither verl nor tensordict: what the file names is replaced by the little that is needed of it. That the real
classes read the file is another test's matter (tests/support/verl).
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from streams.settings.model import Trainer


class DataProto:
    """What verl's class of this name reads of a file."""

    batch: dict[str, Tensor]
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]

    def __setstate__(self, state: tuple[bytes, dict[str, Any], dict[str, Any]]) -> None:
        held, self.non_tensor_batch, self.meta_info = state
        module = SimpleNamespace(__name__="named", Unpickler=Unpickler)
        self.batch = torch.load(io.BytesIO(held), weights_only=False, pickle_module=module)


def tensor_dict(source: dict[str, Tensor], batch_size: list[int]) -> dict[str, Tensor]:
    assert all(list(tensor.shape[:1]) == batch_size for tensor in source.values())
    return source


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        ours = {("verl.protocol", "DataProto"): DataProto, ("tensordict", "TensorDict"): tensor_dict}
        return ours.get((module, name)) or super().find_class(module, name)


def load(path: Path) -> DataProto:
    found = Unpickler(io.BytesIO(path.read_bytes())).load()
    assert isinstance(found, DataProto)
    return found


@dataclass(frozen=True)
class Stranger:
    """The numbers that it shares with the trainer here, since the same step is asked of it."""

    base: str
    rank: int = Trainer().lora_rank
    alpha: int = Trainer().lora_alpha
    targets: str | tuple[str, ...] = "all-linear"
    learning_rate: float = Trainer().learning_rate
    seen: dict[str, float] = field(default_factory=dict)
    """Loss and gradient norm of its last step, as a first step of Adam has the gradient's signs and not its size."""

    def model(self, parent: Path | None) -> PeftModel:
        """The parent's adapter on the base; without one, a fresh adapter of the seed that a policy here begins with."""
        plain = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        if parent is not None:
            return PeftModel.from_pretrained(plain, parent, is_trainable=True)
        targets = self.targets if isinstance(self.targets, str) else list(self.targets)
        torch.manual_seed(Trainer().seed)
        return get_peft_model(
            plain, LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets, task_type="CAUSAL_LM")
        )

    def step(self, file: Path, into: Path, parent: Path | None = None) -> Path:
        """Take one step of PPO's clipped loss on a batch, a mean over its tokens, and write the adapter to `into`."""
        proto, model = load(file), self.model(parent)
        batch = proto.batch
        weights = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=self.learning_rate, weight_decay=0.0)
        ratio = (logprobs(model, batch, proto.meta_info["temperature"]) - batch["old_log_probs"]).exp()
        clipped = ratio.clamp(1 - Trainer().epsilon_low, 1 + Trainer().epsilon_high)
        mask = batch["response_mask"]
        loss = -torch.min(ratio * batch["advantages"], clipped * batch["advantages"])
        mean = (loss * mask).sum() / mask.sum()
        mean.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, Trainer().max_grad_norm)
        self.seen.update(loss=mean.item(), grad_norm=norm.item())
        optimizer.step()
        model.save_pretrained(into)
        return into


def logprobs(model: PeftModel, batch: dict[str, Tensor], temperature: float) -> Tensor:  # [C, W] nats
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"]
    ).logits[:, -batch["responses"].shape[1] - 1 : -1]
    return (logits.float() / temperature).log_softmax(-1).gather(-1, batch["responses"][..., None])[..., 0]
