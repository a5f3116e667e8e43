"""The shape of a LoRA adapter: its rank, alpha and target modules.

    settings, or the recipe of a version ──► LoraShape ◄── LoraChoice: an order's parts

An adapter keeps its shape from version to version, since the next one is trained from its weights. Versions of one
policy that start from the base model may have different shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from streams.settings.model import Settings

RANK, ALPHA, TARGETS = "trainer.lora_rank", "trainer.lora_alpha", "trainer.lora_targets"
"""Names of the settings, which are those in a recipe."""


class LoraShape(NamedTuple):
    """Rank, alpha and target modules."""

    rank: int
    alpha: int
    targets: str
    """In the form of trainer.lora_targets; names are sorted."""

    @classmethod
    def of_settings(cls, settings: Settings) -> Self:
        """Return the shape that the settings make."""
        trainer = settings.trainer
        return cls(trainer.lora_rank, trainer.lora_alpha, in_order(trainer.lora_targets))

    @classmethod
    def of_recipe(cls, recipe: Mapping[str, str]) -> Self | None:
        """Return the shape in a recipe, or None."""
        try:
            return cls(int(recipe[RANK]), int(recipe[ALPHA]), in_order(recipe[TARGETS]))
        except (KeyError, ValueError):
            return None

    def in_settings(self, settings: Settings) -> Settings:
        """Return the settings with this shape."""
        shape = {"lora_rank": self.rank, "lora_alpha": self.alpha, "lora_targets": self.targets}
        return settings.model_copy(update={"trainer": settings.trainer.model_copy(update=shape)})

    def __str__(self) -> str:
        return f"rank {self.rank}, alpha {self.alpha} and targets {self.targets}"


class LoraChoice(NamedTuple):
    """The parts of an adapter's shape that an order sets; None: not set."""

    rank: int | None = None
    alpha: int | None = None
    targets: str | None = None

    def over(self, shape: LoraShape) -> LoraShape:
        """Return the shape with the order's changes."""
        targets = None if self.targets is None else in_order(self.targets)
        return LoraShape(self.rank or shape.rank, self.alpha or shape.alpha, targets or shape.targets)

    def contradiction(self, start: LoraShape | None, place: str) -> str | None:
        """Return why a version of this shape cannot start from the one at `place` with shape `start`."""
        if start is None or self.over(start) == start:
            return None
        return (
            f"{place} has an adapter of {start}, and the order says {self.over(start)}: a version keeps the shape of "
            "the one that it starts from. Leave lora_rank, lora_alpha and lora_targets out, or start from the base "
            "model (start 0)"
        )


def in_order(targets: str) -> str:
    """Return target modules in alphabetical order, so that equal ones are equal texts.

    >>> in_order("v_proj, q_proj"), in_order("all-linear")
    ('q_proj,v_proj', 'all-linear')
    """
    return ",".join(sorted({name.strip() for name in targets.split(",") if name.strip()}))
