"""What a version is made of, for the trainer that makes it and for whoever makes it again.

    batch ──► out_of_turn, where, cut ──► records of its groups ──► chosen: those to train on, and those refused
                                                                        │
    Base, Settings ──► Learner, at version s ──► step ──► State of version s + 1 ──► save ──► checkpoint

Both go through the same code, so that what trained a version and what reproduces it cannot drift apart. Nothing here
reads or writes the log.

Not covered: what becomes of a refused group. The trainer writes it to `dead-letters`; who only looks counts it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from schemas.events import AdvantagedGroup, Batch, Coordinates
from schemas.serde import Poison
from streams.engines.base_model import Base
from streams.errors import ContradictoryEvent
from streams.kafka.record import Record
from streams.settings.model import Settings
from trainer import checkpoint
from trainer.checkpoint import State
from trainer.collate import GroupOrigin, check_group
from trainer.grpo import LogGRPOTrainer
from trainer.model import recipe, wrap
from trainer.shares import Others, Share, set_weights

log = logging.getLogger(__name__)


class BatchRefused(NamedTuple):
    """A record that is no group to train on, and why."""

    record: Record
    reason: str
    """A short word, as dead letters have it."""
    error: str


class BatchGroups(NamedTuple):
    """The groups of a batch, in its order."""

    good: list[AdvantagedGroup]
    refused: list[BatchRefused]


def due(batch: Batch, policy: str, version: int) -> bool:
    """Whether `batch` has still to be trained by a line at `version`: the first batch of a name counts."""
    return batch.policy == policy and batch.sequence >= version


def out_of_turn(at: Coordinates, batch: Batch, version: int, first: int) -> str | None:
    """Return what is wrong if `batch`, which is due, is not the next one; `first` is where its topic begins now."""
    if batch.sequence == version:
        return None
    return (
        f"{at}: batch {batch.sequence} of {batch.policy}, expected {version}: a batch is missing (the first record "
        f"there is has offset {first}), and without it no later version can be reproduced"
    )


def where(batch: Batch, topic: str) -> list[Coordinates]:
    """Return where the groups of `batch` lie, in its order; `topic` is the name of the groups' topic."""
    return [Coordinates(topic, batch.groups_partition, offset) for offset in batch.groups_offsets]


def cut(batch: Batch, topic: str, first: int) -> str | None:
    """Return what is wrong if groups of `batch` lie before `first`, where their partition begins now.

    A step without them is another one.
    """
    gone = [at for at in where(batch, topic) if at.offset < first]
    if not gone:
        return None
    return (
        f"{gone[0]}: retention has cut {len(gone)} of {len(batch.groups_offsets)} groups of batch {batch.sequence}; "
        f"the first there is has offset {first}. Without them version {batch.sequence + 1} cannot be trained"
    )


class Learner:
    """An adapter on its way from version to version, with the optimizer's state. Call `pin` first."""

    def __init__(self, settings: Settings, base: Base, others: Others | None = None) -> None:
        """Start at version 0. Without `others` every share of a batch is computed here, in turn.

        Raises SettingsError as `wrap` and `LogGRPOTrainer` do, LostProcessError if one of the others is gone.
        """
        self._settings, self._base = settings, base
        self._off_policy = settings.trainer.off_policy
        model = wrap(base.model, settings.trainer)
        self._trainer = LogGRPOTrainer(model, base.tokenizer, settings.trainer, others)
        if self._trainer.plain_because:
            log.warning("prompts are run once per response, which is slow: %s", self._trainer.plain_because)
        self.recipe = recipe(settings) | {
            "base_digest": base.base_digest,
            "tokenizer_digest": base.tokenizer_digest,
        }
        self.version = 0
        self.next_offset = 0
        self.numbers = sum(parameter.numel() for parameter in self._trainer.parameters)
        """How many are trained."""
        if others is not None:
            others.meet(self.recipe)

    def restore(self, path: Path, state: State) -> None:
        """Go on from a checkpoint that is whole. Raises SettingsError if it is of another shape."""
        checkpoint.restore(path, self._trainer.model, self._trainer.optimizer)
        self.version, self.next_offset = state.version, state.next_offset

    def choose(self, batch: Batch, records: Iterable[Record]) -> BatchGroups:
        """Return the groups in the records of `batch`, given in its order, and which of them no step may take."""
        expected = GroupOrigin(
            policy=batch.policy,
            version=None if self._off_policy else batch.sequence,
            base_digest=self._base.base_digest,
            tokenizer_digest=self._base.tokenizer_digest,
            vocabulary=self._base.model.config.get_text_config().vocab_size,
        )
        chosen = BatchGroups([], [])
        for record in records:
            checked = _checked(record, expected)
            if isinstance(checked, BatchRefused):
                chosen.refused.append(checked)
            else:
                chosen.good.append(checked)
        return chosen

    def step(
        self,
        at: Coordinates,
        batch: Batch,
        chosen: BatchGroups,
        timings: Mapping[str, float],
        beat: Callable[[], None] = lambda: None,
    ) -> tuple[State, dict[str, float]]:
        """Turn version `batch.sequence` into the next; return what its checkpoint says, and every metric.

        The state has the finite metrics only. `timings`, in seconds, are put among them. `beat` is called as the step
        comes on.
        """
        metrics = self._trainer.train_batch(chosen.good, beat)
        metrics |= {"groups_refused": float(len(chosen.refused)), **timings}
        self.version, self.next_offset = batch.sequence + 1, at.offset + 1
        state = State(
            policy=batch.policy,
            version=self.version,
            next_sequence=self.version,
            next_offset=self.next_offset,
            base_digest=self._base.base_digest,
            batch_id=batch.batch_id,
            recipe=self.recipe,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        return state, metrics

    def share(self, number: int, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> Share:
        """Return share `number` of a step that is taken elsewhere, on the batch `groups` with these weights [P]."""
        set_weights(self._trainer.parameters, weights)
        return self._trainer.share(groups, number)

    def save(self, folder: Path, state: State, keep: int) -> Path:
        """Write the checkpoint of `state` and drop all but the newest `keep`; return its folder."""
        name = self._settings.model.base
        return checkpoint.save(folder, state, self._trainer.model, self._trainer.optimizer, name, keep)


def _checked(record: Record, expected: GroupOrigin) -> AdvantagedGroup | BatchRefused:
    group = record.decode(AdvantagedGroup)
    if isinstance(group, Poison):
        return BatchRefused(record, group.reason, group.error)
    try:
        check_group(group, expected, record.at)
    except ContradictoryEvent as exc:
        return BatchRefused(record, exc.reason, str(exc).removeprefix(f"{record.at}: "))
    return group
