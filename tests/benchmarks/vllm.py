"""The `vllm` engine on a server beside it against the `transformers` engine in this process, tokens a second.

As `sampling`: 16 prompts, 8 answers to each, 12 tokens at most, temperature 1; SmolLM2-135M, float32, version 0 and an
adapter of rank 8. Both have all cores, in turns: while one is asked the other waits. Counted are the tokens drawn.

Not covered: GPUs, which is what vLLM is for; a server that is busy with more than one agent.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streams.engines.protocol import Engine
from streams.errors import SettingsError
from tests.benchmarks.sampling import SLOTS, TASKS, _ours, _tokens
from tests.benchmarks.side_by_side import by_turns, line, median_s, say

TARGET = 1.0
"""Hoped for, not promised: on a CPU nothing speaks for the detour over HTTP but the server's kernels."""


def run() -> Iterator[dict[str, Any]]:
    """Yield one line without and one with an adapter; ours is vLLM, the peer the engine in this process."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from streams.engines.vllm.launch import python_with_vllm

    try:
        python = python_with_vllm()
    except SettingsError as exc:
        say(f"vllm: NOT MEASURED: {exc}")
        return
    from streams.engines.base_model import folder_of, load_base
    from streams.engines.local.transformers_engine import TransformersEngine
    from streams.engines.vllm.vllm_engine import VllmEngine
    from streams.settings.model import Model, Policy, Settings
    from tests.support.vllm.server import vllm_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--max-model-len", "2048")
        with vllm_server(python, folder_of(Model().base), folder / "vllm.log", *options) as url:
            policy = Policy(
                engine="vllm", servers=url, server_folder=folder / "served", server_timeout_s=600, round_timeout_s=0
            )
            engines: dict[str, Engine] = {
                "ours": VllmEngine(Settings(policy=policy)),
                "peer": TransformersEngine(load_base(Model()), 0),
            }
            for version in (0, 1):
                adapter = _adapter(folder / "adapter") if version else None
                for engine in engines.values():
                    engine.serve(version, adapter)
                with_it = ", rank 8" if version else ""
                say(f"vllm: {TASKS} tasks x {SLOTS} slots{with_it}")
                measured = by_turns({who: _ours(engine) for who, engine in engines.items()}, rounds=5, budget_s=30)
                rates = {who: _tokens(turns) / median_s(turns) for who, turns in measured.items()}
                yield line(
                    "vllm",
                    f"{TASKS} prompts x {SLOTS}, 12 tokens{with_it}",
                    ours=rates["ours"],
                    peer=rates["peer"],
                    unit="tokens/s",
                    ratio=rates["ours"] / rates["peer"],
                    target=TARGET,
                    peer_is="the transformers engine, all cores",
                    rounds=len(measured["ours"]),
                )
            for engine in engines.values():
                engine.close()


def _adapter(folder: Path) -> Path:
    """Write an adapter of every linear module of the base, its B factors random and small."""
    import torch
    from peft import LoraConfig, get_peft_model

    from streams.engines.base_model import load_base
    from streams.settings.model import Model

    torch.manual_seed(0)
    model = get_peft_model(load_base(Model()).model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.005)
    model.save_pretrained(folder)
    return folder
