"""Export a version as a folder that transformers, peft and vLLM load directly.

    store ──► the adapter's files, verified ──┬──► the same weights, and a config that names the base where it is
    model.base, compared with the log ────────┼──► its tokenizer, with the chat template
                                              └──► with `merge`: base and adapter as one model

In a config a hub id stays a hub id. Any other base has no name outside Streamward, so the config has its absolute path,
and the folder works only on this machine; a merged model can be moved anywhere.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel

from schemas.events import AdapterEvent
from streams.adapters import signing, store
from streams.engines import quantized_base
from streams.engines.base_model import Base, folder_of, is_hub_id, load_base, load_tokenizer
from streams.errors import NotFoundError, RefusedError
from streams.files import half_written
from streams.settings.model import Settings
from trainer.step.model import CONFIG_FILE


@dataclass(frozen=True, slots=True)
class ExportedAdapter:
    """The exported adapter."""

    policy: str
    version: int
    folder: str
    base: str
    """The base that loading the folder needs: a hub id or an absolute path; empty if it is merged."""
    files: tuple[str, ...]


def export(settings: Settings, trained: AdapterEvent, folder: Path, *, merge: bool) -> ExportedAdapter:
    """Write the version of this event to `folder`, which is created; an empty one is used.

    Raises RefusedError if it holds anything, or if the version was trained on another base than model.base; EventError
    if the store differs from the log; NotFoundError if the version has no files; SettingsError if the base cannot be
    loaded or the folder not be written.
    """
    with half_written(folder) as half:
        if trained.outside is not None:
            raise NotFoundError(
                f"version {trained.version} of {trained.policy} is {trained.outside.model} at {trained.outside.url}, "
                "and has no weights here to export"
            )
        if trained.uri is None:
            raise NotFoundError(f"version {trained.version} of {trained.policy} has no files in a store")
        signed = signing.expected_signer(settings.adapters, trained.policy, trained.version)
        adapter = store.fetch(settings.adapters.store, trained.uri, trained.files, half, signed)
        whole = half / "whole"
        base = (
            _merge(settings, trained, adapter, whole) if merge else _with_tokenizer(settings, trained, adapter, whole)
        )
        whole.replace(folder)
    names = tuple(sorted(file.name for file in folder.iterdir()))
    return ExportedAdapter(trained.policy, trained.version, str(folder), base, names)


def _with_tokenizer(settings: Settings, trained: AdapterEvent, adapter: Path, folder: Path) -> str:
    """Make `folder` the adapter with the tokenizer and a config that names its base, and return that name."""
    name = settings.model.base
    unchanged = is_hub_id(name) and name == trained.recipe.get("model.base")
    tokenizer = load_tokenizer(name) if unchanged else _base_of(settings, trained).tokenizer
    base = name if is_hub_id(name) else str(folder_of(name))
    adapter.rename(folder)
    config = json.loads((folder / CONFIG_FILE).read_text()) | {"base_model_name_or_path": base}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)
    return base


def _merge(settings: Settings, trained: AdapterEvent, adapter: Path, folder: Path) -> str:
    """Make `folder` a complete model, in the dtype of its base."""
    quantized_base.refuse(settings.model, "a complete model")
    base = _base_of(settings, trained)
    model = PeftModel.from_pretrained(base.model, os.fspath(adapter)).merge_and_unload()
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return ""


def _base_of(settings: Settings, trained: AdapterEvent) -> Base:
    """Return the base in the settings. Raises RefusedError if the version was trained on another."""
    base = load_base(settings.model)
    if trained.base_digest not in (None, base.base_digest):
        recipe = trained.recipe
        recorded_base = f"{recipe.get('model.base', 'another base')} in {recipe.get('model.dtype', 'another dtype')}"
        raise RefusedError(
            f"version {trained.version} of {trained.policy} was trained on {recorded_base} (weights "
            f"{trained.base_digest[:12]}), and model.base={settings.model.base} in {settings.model.dtype} has weights "
            f"{base.base_digest[:12]}; set model.base and model.dtype to what it was trained on"
        )
    return base
