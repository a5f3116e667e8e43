"""Build the engine that the settings name."""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

from streams.engines.protocol import Engine, TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.settings.model import Settings


class EngineBuilders(NamedTuple):
    """The functions that build an engine, as `module:function`: imported when called, since torch takes seconds."""

    rounds: str
    """`(settings, capacity) -> Engine`"""
    tokens: str
    """`(settings) -> (TokenEngine, Rendering)`"""


ENGINES = {
    "scripted": EngineBuilders(
        "streams.engines.scripted.scripted_engine:build_engine",
        "streams.engines.scripted.scripted_tokens:build_tokens",
    ),
    "transformers": EngineBuilders(
        "streams.engines.local.transformers_engine:build_engine",
        "streams.engines.local.continuous:build_tokens",
    ),
    "vllm": EngineBuilders(
        "streams.engines.vllm.vllm_engine:VllmEngine",
        "streams.engines.vllm.vllm_tokens:build_tokens",
    ),
}
"""The builder for each value of policy.engine."""


def build(settings: Settings, capacity: int | None = None) -> Engine:
    """Return the engine in `settings.policy`, serving version 0. Raises SettingsError if it cannot start.

    `capacity` versions stay in memory; None: as many as one policy needs.
    """
    import_libraries(settings)
    engine: Engine = _load(ENGINES[settings.policy.engine].rounds)(settings, capacity)
    return engine


def build_tokens(settings: Settings) -> tuple[TokenEngine, Rendering]:
    """Return the token engine in `settings.policy`, and the rendering that turns messages into its tokens.

    Raises SettingsError if it cannot start.
    """
    import_libraries(settings)
    engine: TokenEngine
    rendering: Rendering
    engine, rendering = _load(ENGINES[settings.policy.engine].tokens)(settings)
    return engine, rendering


def import_libraries(settings: Settings) -> None:
    """Import the libraries with which `build` takes seconds."""
    if settings.policy.engine == "scripted":
        return
    # Read once, when torch loads OpenMP: waiting threads yield instead of spinning. Where processes share cores, two
    # spinning threads are several times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if settings.policy.engine == "transformers":
        from transformers import AutoModelForCausalLM  # noqa: F401 - with which load_base loads


def _load(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
