"""What is read beside the weights: checkpoints, adapters, and the answers of vLLM."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.fuzz.target import Check, target


@target("checkpoints", "json", light=100)
def checkpoints(folder: Path) -> Check:
    """A state is that of its version, or the checkpoint is skipped; so is one with another manifest."""
    from trainer.versions.checkpoint import MANIFEST_FILE, STATE_FILE, latest, of_version

    there = folder / "v00000003"
    there.mkdir()

    def check(data: bytes) -> str | None:
        (there / STATE_FILE).write_bytes(data)
        (there / MANIFEST_FILE).write_text(json.dumps({STATE_FILE: hashlib.sha256(data).hexdigest()}))
        sealed = latest(folder)
        if sealed is not None:
            assert of_version(folder, 3) == sealed
            return None
        (there / MANIFEST_FILE).write_bytes(data)
        assert latest(folder) is None
        of_version(folder, 3)
        return "not reached"

    return check


@target("adapters", "json", light=100)
def adapters(folder: Path) -> Check:
    """The settings of an adapter are those of a plain LoRA, or it is a bad adapter."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    from streams.engines.local.lora import CONFIG, WEIGHTS, read_lora

    save_file(
        {"base_model.model.a.lora_A.weight": torch.ones(2, 4), "base_model.model.a.lora_B.weight": torch.ones(4, 2)},
        folder / WEIGHTS,
    )
    model = nn.ModuleDict({"a": nn.Linear(4, 4)})

    def check(data: bytes) -> str | None:
        (folder / CONFIG).write_bytes(data)
        read_lora(folder, model)
        return None

    return check


@target("fetches", "json", light=200)
def fetches(folder: Path) -> Check:
    """What an event says about an adapter leads to files with these digests, or to an EventError; never elsewhere."""
    from schemas.events import AdapterFile
    from streams.adapters.store import fetch, publish
    from streams.errors import EventError

    store, into, local = folder / "store", folder / "into", folder / "local"
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(b"weights")
    (local / "adapter_config.json").write_bytes(b"{}")
    publish(local, str(store), "p", 1)

    def check(data: bytes) -> str | None:
        try:
            given = json.loads(data.replace(b"STORE", str(store).encode()))
            uri, files = given["uri"], tuple(AdapterFile(**file) for file in given["files"])
            assert isinstance(uri, str)
            assert all(isinstance(f.path + f.sha256, str) and isinstance(f.bytes, int) for f in files)
        except (ValueError, TypeError, LookupError, RecursionError, AssertionError):
            return "no event"
        try:
            found = fetch(str(store), uri, files, into)
        except EventError as exc:
            return str(exc)
        assert found.parent == into
        assert {path.name: path.read_bytes() for path in found.iterdir()} == {
            path.name: path.read_bytes() for path in local.iterdir()
        }
        return None

    return check


@target("weights", light=100)
def weights(folder: Path) -> Check:
    """The weights of an adapter fit the model, or it is a bad adapter."""
    from torch import nn

    from streams.engines.local.lora import CONFIG, WEIGHTS, read_lora

    (folder / CONFIG).write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    model = nn.ModuleDict({"a": nn.Linear(4, 4)})

    def check(data: bytes) -> str | None:
        (folder / WEIGHTS).write_bytes(data)
        read_lora(folder, model)
        return None

    return check
