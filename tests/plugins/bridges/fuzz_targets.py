"""What is read of another trainer: its recipe, and the config and the weights of its adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.target import Check, target


@target("import-recipes", "json", light=200)
def import_recipes(folder: Path) -> Check:
    """A recipe of somebody else is the same when it is read again, or an error that says where."""
    from plugins.bridges.foreign import read_recipe

    path = folder / "recipe.json"

    def check(data: bytes) -> str | None:
        path.write_bytes(data)
        found = read_recipe(path)
        path.write_text(found.model_dump_json())
        assert read_recipe(path).plain() == found.plain()
        return None

    return check


@target("import-configs", "json", light=100)
def import_configs(folder: Path) -> Check:
    """The config of somebody else's adapter makes the same adapter as ours, or it is refused."""
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file

    from plugins.bridges import foreign
    from tests.support.models.tiny import tiny_model
    from trainer.step.model import CONFIG_FILE, WEIGHTS_FILE

    model = get_peft_model(tiny_model(), LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]))
    assert isinstance(model, PeftModel)
    state = get_peft_model_state_dict(model)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS_FILE)

    def check(data: bytes) -> str | None:
        (folder / CONFIG_FILE).write_bytes(data)
        adapter = foreign.read(folder)
        foreign.check_shape(adapter, model)
        assert (adapter.config["r"], adapter.config["lora_alpha"]) == (2, 4)
        return None

    return check


@target("import-weights", light=100)
def import_weights(folder: Path) -> Check:
    """The weights of somebody else are finite numbers, or they are refused."""
    import torch

    from plugins.bridges import foreign
    from trainer.step.model import CONFIG_FILE, WEIGHTS_FILE

    (folder / CONFIG_FILE).write_text('{"peft_type": "LORA"}')

    def check(data: bytes) -> str | None:
        (folder / WEIGHTS_FILE).write_bytes(data)
        assert all(torch.isfinite(one).all() for one in foreign.read(folder).weights.values())
        return None

    return check


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content)."""
    from tests.fuzz.seeds import weights

    who = {"framework": "verl", "framework_version": "0.9", "trained_by": "ann", "policy": "p", "parent_version": 4}
    more = {"batches": [4], "base_digest": "d", "settings": {"lr": 1e-5, "on": True}, "metrics": {"loss": 0.5}}
    yield "import-recipes", "verl", json.dumps(who | more).encode()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}
    yield "import-configs", "peft", json.dumps(config | {"modules_to_save": None, "rank_pattern": {}}).encode()
    yield "import-weights", "lora", weights()
