"""The settings of the worker of training calls."""

from __future__ import annotations

from pydantic import Field

from streams.settings.model import Section


class Tinker(Section):
    """The worker of training calls: `streamward calls`."""

    states: int = Field(
        4,
        ge=1,
        description="maximum of models in memory, with gradient and optimizer; others are re-read from "
        "their checkpoints",
    )
    samplers: int = Field(8, ge=1, description="maximum of adapters in memory to sample with")
    checkpoint_s: float = Field(
        30.0,
        ge=0,
        description="work on a model after which it gets a checkpoint, seconds: what a killed worker has to compute "
        "again, at most; 0: after each call",
    )
