"""Build the engine that the settings name."""

from __future__ import annotations

import os

from streams.engines.protocol import Engine, Rendering, TokenEngine
from streams.settings.model import Settings


def build(settings: Settings, kept: int | None = None) -> Engine:
    """Return the engine that `settings.policy` asks for, serving version 0. Raises SettingsError if it cannot start.

    `kept` versions stay in memory; None: those that one policy needs.
    """
    if settings.policy.engine == "scripted":
        from streams.engines.scripted.scripted_engine import ScriptedEngine

        return ScriptedEngine(settings.policy.script)
    import_libraries(settings)
    if settings.policy.engine == "vllm":
        from streams.engines.vllm.engine import VllmEngine

        return VllmEngine(settings, kept)
    from streams.engines.base_model import load_base
    from streams.engines.local.transformers_engine import KEPT, TransformersEngine

    return TransformersEngine(load_base(settings.model), settings.policy.threads, kept or KEPT)


def build_tokens(settings: Settings) -> tuple[TokenEngine, Rendering]:
    """Return the token engine that `settings.policy` asks for, and what turns messages into its tokens.

    Raises SettingsError if it cannot start.
    """
    if settings.policy.engine == "scripted":
        from streams.engines.scripted.scripted_rendering import ScriptedRendering
        from streams.engines.scripted.scripted_tokens import ScriptedTokenEngine

        return ScriptedTokenEngine(settings.policy.script), ScriptedRendering()
    import_libraries(settings)
    from streams.engines.base_model import load_base
    from streams.engines.rendering.template_rendering import ChatRendering

    engine: TokenEngine
    if settings.policy.engine == "vllm":
        from streams.engines.vllm.tokens import VllmTokenEngine

        base = load_base(settings.model.model_copy(update={"device": "cpu"}))
        engine = VllmTokenEngine(settings.policy, base)
    else:
        from streams.engines.local.continuous import ContinuousEngine

        base = load_base(settings.model)
        engine = ContinuousEngine(base, settings.policy.threads, weight=settings.fleet.weight_of)
    return engine, ChatRendering(base.tokenizer, engine.ends, base.tokenizer_digest)


def import_libraries(settings: Settings) -> None:
    """Import the libraries with which `build` takes seconds."""
    if settings.policy.engine == "scripted":
        return
    # Read once, when torch loads OpenMP: waiting threads yield instead of spinning. Where processes share cores, two
    # spinning threads are several times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if settings.policy.engine == "transformers":
        from transformers import AutoModelForCausalLM  # noqa: F401 - with which load_base loads
