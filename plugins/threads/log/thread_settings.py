"""The settings of threads: how much a run may do, and the functions that agents' rules may name."""

from __future__ import annotations

from pydantic import Field, field_validator

from streams.references import is_reference
from streams.settings.model import Section
from streams.settings.name_lists import split_names


class Threads(Section):
    """Limits of one run, which ends by their names, and what runs leave in the agents' store."""

    functions: str = Field(
        "",
        description="functions that memory_config.remember of an agent may name, module:function, comma separated; "
        "they are called in the server's process; empty: none",
    )
    max_turns: int = Field(16, ge=1, description="answers of the model; a run's recursion_limit lowers it")
    max_tokens: int = Field(0, ge=0, description="sampled tokens of all answers; 0: no limit")
    run_s: float = Field(0.0, ge=0, description="time since it began, or since it was resumed, seconds; 0: no limit")
    budget_usd: float = Field(
        0.0, ge=0, description="cost of its tokens by prices.prompt_usd and prices.completion_usd, USD; 0: no limit"
    )

    max_depth: int = Field(4, ge=0, description="runs above a run, where agents are tools of agents; 0: none calls one")

    @field_validator("functions")
    @classmethod
    def _are_references(cls, functions: str) -> str:
        for name in split_names(functions):
            if not is_reference(name):
                raise ValueError(f"{name!r} is no module:function")
        return functions

    @property
    def references(self) -> tuple[str, ...]:
        """The functions, as module:function."""
        return split_names(self.functions)
