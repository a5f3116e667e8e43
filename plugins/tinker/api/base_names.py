"""The names by which clients of the Tinker API may ask for the base model of this server.

    model.base ──► its name on the hub, if it is shipped ──► base_names: what create_model takes

The SDK loads the tokenizer by the name, and the cookbook chooses its renderer by it.
"""

from __future__ import annotations

from streams.settings.model import Settings

HUB_NAMES = {"smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Of models that come as a package."""


def base_names(settings: Settings) -> list[str]:
    """Return the names of the base model, the one that is answered first."""
    own = settings.model.base
    return [*([HUB_NAMES[own]] if own in HUB_NAMES else []), own]
