"""Replays of recorded tasks with other settings, in a log of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import Int, Millis

ExperimentKind = Literal["started", "stopped", "failed", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """A part of a partition: where an experiment's records came from."""

    topic: str
    partition: Int
    first: Annotated[int, "offset of the first record"]
    next: Annotated[int, "offset behind the last record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEvent:
    """A step of an experiment: what of this log was replayed into a log of its own, how, and what came of it."""

    event_id: Annotated[str, "uuid5(experiment, source policy, number of its events before this one)"]
    experiment: Annotated[str, "key of the record; its topics have the prefix experiment.NAME."]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ExperimentKind
    policy: Annotated[str, "whose tasks are replayed"]
    actor: str
    reason: str
    code_version: Annotated[str, "of Streamward, and of what it was built from"]
    selection: Annotated[dict[str, str], "which tasks, as it was asked"] = field(default_factory=dict)
    settings: Annotated[dict[str, str], "what decides the outcome: advantages, batches, model, trainer, scorers"] = (
        field(default_factory=dict)
    )
    counts: Annotated[dict[str, int], "what was selected and made so far"] = field(default_factory=dict)
    changed: Annotated[tuple[str, ...], "the settings that are not those of the source"] = ()
    ranges: Annotated[tuple[SourceRange, ...], "of the source, fixed when the experiment began"] = ()
