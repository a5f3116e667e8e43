"""The base model with the adapter in training, and the adapter's files.

    Base ──► wrap: LoRA, seeded ──► PeftModel ──► save_adapter ──► adapter_config.json, adapter_model.safetensors
                                       ▲                                     │
                                       └──────────── load_adapter ◄──────────┘

The same weights always give the same bytes: the files have no time, no path and no order of a set. Otherwise they are
as peft writes them, so peft and vLLM read them.

Not covered: adapters other than LoRA, and LoRA on the embeddings or on the head.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from streams.engines import quantized_base
from streams.errors import SettingsError
from streams.references import is_reference, source_digest
from streams.settings.load import flatten
from streams.settings.model import NOT_RECIPE, Settings, Trainer
from trainer.step.totals import STEP_VERSION

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
LIBRARIES = ("torch", "transformers", "peft", "trl", "safetensors")
"""Libraries with versions that affect the bytes."""
SETTING_OF = {"r": "lora_rank", "lora_alpha": "lora_alpha", "target_modules": "lora_targets"}
"""The settings for the config entries that determine an adapter's shape."""
LOSS_SOURCE = "sha256.trainer.loss"
"""Recipe entry for the file with a user's own loss."""


def pin(settings: Settings) -> None:
    """Make this process compute the same bytes each time: thread count, deterministic kernels, no TF32."""
    cores = max(1, (os.cpu_count() or 1) // settings.trainer.processes)
    torch.set_num_threads(settings.trainer.threads or cores)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it first runs
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a check that costs a pass over every new tensor
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def wrap(model: PreTrainedModel, settings: Trainer) -> PeftModel:
    """Return `model` with a fresh adapter: A drawn from the seed, B zero, so it still answers like the base.

    Raises SettingsError if lora_targets names no linear module of the model, or its head.
    """
    targets: str | list[str] = settings.lora_targets
    if targets != "all-linear":
        targets = sorted(name.strip() for name in settings.lora_targets.split(",") if name.strip())
        if "lm_head" in targets:
            raise SettingsError(
                "trainer.lora_targets names lm_head, but logprobs are computed from the head's own weight, so an "
                "adapter there would never be trained; leave lm_head out"
            )
        embeddings = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
        if named := {name.rpartition(".")[2] for name in embeddings} & set(targets):
            raise SettingsError(
                f"trainer.lora_targets names the embeddings, {named.pop()}, and no engine applies an adapter there; "
                "leave them out"
            )
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            return get_peft_model(model, config)
        except ValueError as exc:
            raise SettingsError(
                f"trainer.lora_targets={settings.lora_targets}: {str(exc).splitlines()[0]}; "
                "name modules of the model, comma separated, or use all-linear"
            ) from exc


def save_adapter(model: PeftModel, folder: Path, base: str) -> None:
    """Write the adapter to `folder`, which exists. `base` is the value of model.base, for its config."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()},
        folder / WEIGHTS_FILE,
        metadata={"format": "pt"},
    )
    (folder / CONFIG_FILE).write_text(config_text(model, base))


def config_text(model: PeftModel, base: str, adapter: str = "default") -> str:
    """Return the content of the adapter's config file. `base` is the value of model.base."""
    config = model.peft_config[adapter].to_dict() | {"base_model_name_or_path": base, "inference_mode": True}
    return json.dumps(config, indent=2, sort_keys=True, default=_plain) + "\n"


def plain(value: Any) -> Any:
    """Return a value in the form of an adapter's config file."""
    return json.loads(json.dumps(value, default=_plain))


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Read the adapter in `folder` into `model`.

    Raises SettingsError if it is of another shape than the settings make.
    """
    saved = json.loads((folder / CONFIG_FILE).read_text())
    config = model.peft_config["default"].to_dict()
    for name, setting in SETTING_OF.items():
        expected = plain(config[name])
        if saved[name] != expected:
            raise SettingsError(
                f"{folder}: this adapter has {name}={saved[name]}, but the settings make {expected} (trainer.{setting})"
                "; restore the setting, or train a new policy (policy.name) from the start"
            )
    loaded = set_peft_model_state_dict(model, load_file(folder / WEIGHTS_FILE))
    if loaded.unexpected_keys:
        raise SettingsError(f"{folder}: {loaded.unexpected_keys[0]} does not exist in the model; is model.base right?")


def recipe(settings: Settings) -> dict[str, str]:
    """Return everything except the batches that determines the bytes of an adapter. Call `pin` first: the thread count
    is read.
    """
    chosen = {
        key: str(value)
        for key, value in flatten(settings)
        if key.split(".")[0] in ("trainer", "model") and key not in NOT_RECIPE
    }
    used = LIBRARIES if settings.model.quantization == "none" else (*LIBRARIES, quantized_base.LIBRARY)
    libraries = {f"version.{name}": version(name) for name in used}
    loss = settings.trainer.loss
    sources = {LOSS_SOURCE: source_digest("trainer.loss", loss)} if is_reference(loss) else {}
    return {
        **chosen,
        **libraries,
        **sources,
        "version.python": platform.python_version(),
        "version.step": STEP_VERSION,
        "threads": str(torch.get_num_threads()),
        "device": device_kind(settings.model.device),
    }


def device_kind(device: str) -> str:
    """Return the kind of device: the instruction set of a CPU, or the name of a GPU."""
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _plain(value: Any) -> Any:
    """Return a set as a sorted list, and an enum as its value."""
    return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "value", str(value))
