"""Run a recipe of tinker-cookbook as its own command line does, with SmolLM2: in the strangers' environment.

    python recipe.py sl_loop model_name=… log_path=…        the recipe's module, unmodified, with these arguments

The cookbook knows models by name, and has no place to add one: here SmolLM2 gets the renderer of Qwen's instruct
models, whose template it shares. Weights, tokenizer and data are folders on this machine, found as the hub's would be.
"""

from __future__ import annotations

import runpy
import sys

from tinker_cookbook import model_info

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2 = model_info.ModelAttributes("HuggingFaceTB", "2", "135M", True, ("qwen3_instruct",))
attributes_of = model_info.get_model_attributes


def with_smollm2(name: str) -> model_info.ModelAttributes:
    """Return what the cookbook knows of a model."""
    return SMOLLM2 if name == NAME else attributes_of(name)


if __name__ == "__main__":
    model_info.get_model_attributes = with_smollm2
    sys.argv = [sys.argv[1], f"model_name={NAME}", *sys.argv[2:]]
    runpy.run_module(f"tinker_cookbook.recipes.{sys.argv[0]}", run_name="__main__")
