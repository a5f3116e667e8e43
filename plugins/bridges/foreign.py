"""An adapter of another training framework: its config and weights, checked before anything is written.

    recipe.json ──► ForeignRecipe: author, framework, batches
    folder ──► config as peft writes it, weights ──► the same shape as the policy's own? finite? of this base? ──► the
               files that are published: the weights as they came, under peft's names, and a config as ours is written

Two adapters of one shape are exchangeable, so whatever decides how an adapter computes has to be as the settings make
it: rank, alpha, modules, and every other option of peft. A base is known by the digest of its weights,
which the recipe of an exported batch has; without it by the name in the config.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas import json_text
from schemas.conventions import FRAMEWORK, FRAMEWORK_VERSION, IMPORTED, TRAINED_BY
from streams.adapters.store import LEFT_OUT
from streams.engines.base_model import Base, folder_of
from streams.engines.local.self_check import is_finite
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.settings.model import Settings
from trainer.step.model import CONFIG_FILE, WEIGHTS_FILE, config_text, plain, wrap

NO_EFFECT = (
    "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights", "lora_dropout", "peft_type",
    "peft_version", "revision", "target_modules", "task_type",
)  # fmt: skip
"""Entries of a config that change nothing about an adapter that is trained; its modules are those of its tensors."""
PREFIX = "base_model.model."
"""How peft begins the names of tensors; prime-rl leaves it out."""
SETTING_OF = {"r": "lora_rank", "lora_alpha": "lora_alpha"}
"""Our setting for an entry of a config."""
WAY_OUT = (
    "Train it again in the policy's shape; or merge it into the base, and set model.base to that, under another "
    "policy.name"
)
TEXT = Field(min_length=1, max_length=200)


class ForeignRecipe(BaseModel):
    """The origin of an adapter; `streamward export --format verl` writes the start of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    framework: str = TEXT
    framework_version: str = TEXT
    trained_by: str = TEXT
    policy: str | None = None
    """Compared with the command's, if it is there, as the parent is."""
    parent_version: int | None = None
    batches: list[int] = Field(default_factory=list, max_length=1000)
    """What it was trained on, by sequence."""
    base_digest: str | None = None
    settings: dict[str, str | int | float | bool | None] = Field(default_factory=dict, max_length=200)
    metrics: dict[str, float] = Field(default_factory=dict, max_length=200)

    def plain(self) -> dict[str, str]:
        """Return it as entries of a recipe in the log."""
        return {
            FRAMEWORK: self.framework,
            FRAMEWORK_VERSION: self.framework_version,
            TRAINED_BY: self.trained_by,
            IMPORTED + "batches": ", ".join(map(str, self.batches)),
            **{f"{IMPORTED}settings.{name}": str(value) for name, value in sorted(self.settings.items())},
        }


def read_recipe(path: Path) -> ForeignRecipe:
    """Return the recipe in a file. Raises NotFoundError if it is missing, SettingsError if it is none, saying where."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise NotFoundError(f"--recipe {path}: {exc.strerror}; name a file of JSON") from exc
    try:
        return ForeignRecipe.model_validate(json_text.parse(content))
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise SettingsError(
            f"--recipe {path}: {place}: {first['msg']}, got {str(first['input'])[:80]!r}; expected framework, "
            "framework_version and trained_by, and if known policy, parent_version, batches, base_digest, settings, "
            "metrics"
        ) from exc
    except ValueError as exc:
        raise SettingsError(f"--recipe {path}: no JSON: {exc}") from exc


class ForeignAdapter(NamedTuple):
    """The files of an adapter, read."""

    folder: Path
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    """By name, as peft names them."""
    renamed: bool
    """Whether they have other names in the file."""

    @property
    def other_files(self) -> list[str]:
        """Names of the other files in its folder."""
        adapter_files = {CONFIG_FILE, WEIGHTS_FILE, *LEFT_OUT}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in adapter_files)


def read(folder: Path) -> ForeignAdapter:
    """Return the adapter in a folder. Raises NotFoundError for missing files, RefusedError for what is no LoRA adapter,
    or not finite."""
    config, stored = _config(folder), _weights(folder)
    weights = {name if name.startswith(PREFIX) else PREFIX + name: tensor for name, tensor in stored.items()}
    if config.get("peft_type") != "LORA":
        raise RefusedError(f"{folder}: peft_type is {config.get('peft_type')}, expected LORA, which policies here have")
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            fault = f"of type {tensor.dtype}" if not tensor.is_floating_point() else "not finite in every number"
            raise RefusedError(
                f"{folder / WEIGHTS_FILE}: {name} is {fault}; such an adapter answers nothing. Bring an earlier step"
            )
    return ForeignAdapter(folder, config, weights, weights.keys() != stored.keys())


def check_base(settings: Settings, base: Base, adapter: ForeignAdapter, recipe: ForeignRecipe) -> None:
    """Raise RefusedError if the adapter was trained on another base model than this, or nothing says on which."""
    base_name = settings.model.base
    if recipe.base_digest is not None:
        if recipe.base_digest != base.base_digest:
            raise RefusedError(
                f"{adapter.folder}: its recipe says base_digest {recipe.base_digest[:12]}, and model.base={base_name} "
                f"in {settings.model.dtype} has {base.base_digest[:12]}: it is an adapter of another base model. Set "
                "model.base and model.dtype to what it was trained on, if that is what the policy has"
            )
        return
    name = str(adapter.config.get("base_model_name_or_path") or "")
    if name == base_name or (os.path.isdir(name) and Path(name).resolve() == folder_of(base_name)):
        return
    raise RefusedError(
        f"{adapter.folder}: its config names {name or 'no base model'} as its base, and model.base is {base_name}. If "
        f"these are the same weights, say so in the recipe: base_digest {base.base_digest}"
    )


def write(settings: Settings, base: Base, adapter: ForeignAdapter, target: Path) -> None:
    """Write to `target`, which is created, what is published of an adapter. `base.model` gets an adapter, too.

    Raises RefusedError for an adapter that cannot take the place of the policy's own, saying what differs.
    """
    model = wrap(base.model, settings.trainer)
    check_shape(adapter, model)
    _check_answers(adapter, model)
    target.mkdir()
    if adapter.renamed:
        save_file(dict(adapter.weights), target / WEIGHTS_FILE, metadata={"format": "pt"})
    else:
        shutil.copyfile(adapter.folder / WEIGHTS_FILE, target / WEIGHTS_FILE)
    (target / CONFIG_FILE).write_text(config_text(model, settings.model.base))


def check_shape(adapter: ForeignAdapter, model: PeftModel) -> None:
    """Raise RefusedError if the adapter is of another shape than that of `model`, saying what differs."""
    _same_config(adapter, model)
    _same_weights(adapter, get_peft_model_state_dict(model, save_embedding_layers=False))


def _check_answers(adapter: ForeignAdapter, model: PeftModel) -> None:
    """Raise RefusedError if the model answers nothing with the adapter."""
    set_peft_model_state_dict(model, dict(adapter.weights))
    if not is_finite(model, lambda ids: model(input_ids=ids[None]).logits):
        raise RefusedError(
            f"{adapter.folder / WEIGHTS_FILE}: the model's logits with it are not finite, though its numbers are; such "
            "an adapter answers nothing. Bring an earlier step"
        )


def _config(folder: Path) -> Mapping[str, Any]:
    content = _file(folder, CONFIG_FILE)
    try:
        config = json_text.parse(content.read_bytes())
    except (OSError, ValueError) as exc:
        raise RefusedError(f"{content}: no JSON: {exc}; save the adapter again") from exc
    if not isinstance(config, dict):
        raise RefusedError(f"{content}: expected an object, as peft writes it; save the adapter again")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    file = _file(folder, WEIGHTS_FILE)
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as exc:
        raise RefusedError(f"{file}: cannot be read: {exc}; save the adapter again") from exc


def _file(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    names = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) if folder.is_dir() else "no such folder"
    raise NotFoundError(
        f"{folder}: has no {name}; there: {names or 'nothing'}. Expected what peft's save_pretrained writes "
        "(safe_serialization=True, since reading a pickle runs code)"
    )


def _same_config(adapter: ForeignAdapter, model: PeftModel) -> None:
    """Raise RefusedError if the adapter's config makes another one than the settings do."""
    expected_config = {name: plain(value) for name, value in model.peft_config["default"].to_dict().items()}
    config = {name: plain(value) for name, value in (LoraConfig().to_dict() | dict(adapter.config)).items()}
    names = (expected_config.keys() | config.keys()) - set(NO_EFFECT)
    for name in sorted(names, key=lambda name: (name not in SETTING_OF, name)):
        value, expected_value = config.get(name), expected_config.get(name)
        if _loose(value) != _loose(expected_value):
            setting = f" (trainer.{SETTING_OF[name]})" if name in SETTING_OF else ""
            raise RefusedError(
                f"{adapter.folder}: its config has {name}={value}, and the policy's adapters have "
                f"{expected_value}{setting}; an adapter of another shape cannot be continued here. {WAY_OUT}"
            )


def _loose(value: Any) -> Any:
    """Return a value in which all that says nothing is equal."""
    return None if value in ([], {}, False) else value


def _same_weights(adapter: ForeignAdapter, expected: Mapping[str, Tensor]) -> None:
    """Raise RefusedError if the tensors are not those of such an adapter."""
    path, weights = adapter.folder / WEIGHTS_FILE, adapter.weights
    if odd := sorted(weights.keys() ^ expected.keys()):
        raise RefusedError(
            f"{path}: it is for {_modules(weights)}, and the policy's adapters are for {_modules(expected)} "
            f"(trainer.lora_targets); the first tensor that only one of them has is {odd[0]}. {WAY_OUT}"
        )
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise RefusedError(
                f"{path}: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)}; it has another rank "
                f"than its config says, or of another base model. {WAY_OUT}"
            )


def _modules(names: Collection[str]) -> str:
    """Return which modules tensors are of, and how many tensors there are.

    >>> _modules(["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"])
    'q_proj (1 tensors)'
    """
    modules = {name.split(".lora_")[0].rpartition(".")[2] for name in names}
    return f"{', '.join(sorted(modules)[:20]) or 'none'} ({len(names)} tensors)"
