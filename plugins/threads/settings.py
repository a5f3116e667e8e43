"""The settings of threads: the functions that agents' rules may name."""

from __future__ import annotations

from pydantic import Field, field_validator

from streams.references import is_reference
from streams.settings.model import Section


class Threads(Section):
    """What runs of threads leave in the agents' store."""

    functions: str = Field(
        "",
        description="functions that memory_config.remember of an agent may name, module:function, comma separated; "
        "they are called in the server's process; empty: none",
    )

    @field_validator("functions")
    @classmethod
    def _are_references(cls, functions: str) -> str:
        for name in _names(functions):
            if not is_reference(name):
                raise ValueError(f"{name!r} is no module:function")
        return functions

    @property
    def references(self) -> tuple[str, ...]:
        """The functions, as module:function."""
        return _names(self.functions)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
