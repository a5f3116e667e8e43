"""Turn a batch into a version, for the trainer and for `reproduce`.

    batch ──► out_of_turn, cut ──► records of its groups ──► BatchGroups: those to train on, and those refused
                                                                │
    Base, Settings ──► Learner, at version v ──► step ──► State of version v + 1 ──► save ──► checkpoint
                          ▲
    another policy's TrainingState ──► exchange

Both use this code, so that training and reproducing cannot drift apart. Nothing here reads or
writes the log: the trainer writes refused groups to `dead-letters`, and `reproduce` counts them.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from schemas.events import AdvantagedGroup, Batch, Coordinates
from schemas.serde import Poison
from streams.adapters.learning import facts_of, learning_of
from streams.engines import quantized_base
from streams.engines.base_model import Base, load_base
from streams.errors import ContradictoryEvent
from streams.kafka.history import History
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.ranks import exchange
from trainer.ranks.exchange import Ranks
from trainer.ranks.launcher import Place
from trainer.step import group_tokens
from trainer.step.group_checks import GroupOrigin, check_group
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import load_adapter, pin, recipe, wrap
from trainer.step.shares import Share, set_weights
from trainer.versions import checkpoint
from trainer.versions.checkpoint import State

log = logging.getLogger(__name__)


class BatchRefused(NamedTuple):
    """A record that cannot be trained on, and the reason."""

    record: Record
    reason: str
    """The reason of its dead letter."""
    error: str


class BatchGroups(NamedTuple):
    """The groups of a batch, in its order."""

    good: list[AdvantagedGroup]
    refused: list[BatchRefused]


@dataclass(frozen=True, slots=True)
class TrainingState:
    """One policy between two steps: the content of a checkpoint, in memory."""

    version: int
    next_sequence: int
    """Sequence of the next batch."""
    next_offset: int
    weights: list[Tensor]
    """Weights of the adapter, in the order of the parameters."""
    moments: list[dict[str, Any]]
    """The optimizer's state of each parameter; empty before the first step."""
    rng: dict[str, Tensor]

    def copy(self) -> TrainingState:
        """Return a copy with its own tensors."""
        return replace(
            self,
            weights=[weights.clone() for weights in self.weights],
            moments=[{name: value.clone() for name, value in moments.items()} for moments in self.moments],
            rng={device: state.clone() for device, state in self.rng.items()},
        )


def due(batch: Batch, policy: str, sequence: int) -> bool:
    """Return whether a policy that trains batch `sequence` next still has to train `batch`."""
    return batch.policy == policy and batch.sequence >= sequence


def out_of_turn(coordinates: Coordinates, batch: Batch, sequence: int, first: int) -> str | None:
    """Return what is wrong if `batch`, which is due, is not the next one; `first` is the first offset of its
    partition."""
    if batch.sequence == sequence:
        return None
    return (
        f"{coordinates}: batch {batch.sequence} of {batch.policy}, expected {sequence}: a batch is missing (the first "
        f"record there has offset {first}), and without it no later version can be reproduced"
    )


def coordinates_of(batch: Batch, topic: str) -> list[Coordinates]:
    """Return the coordinates of the groups of `batch`, in its order; `topic` is the name of the groups topic."""
    return [Coordinates(topic, batch.groups_partition, offset) for offset in batch.groups_offsets]


def cut(batch: Batch, topic: str, first: int) -> str | None:
    """Return what is wrong if groups of `batch` are before `first`, the first offset of their partition.

    Without them it would be a different step.
    """
    missing = [coordinates for coordinates in coordinates_of(batch, topic) if coordinates.offset < first]
    if not missing:
        return None
    return (
        f"{missing[0]}: retention has cut {len(missing)} of {len(batch.groups_offsets)} groups of batch "
        f"{batch.sequence}; the first one there has offset {first}. Without them the version that it makes cannot be "
        "trained"
    )


def groups_in(records: Iterable[Record], expected: GroupOrigin, topic: str, history: History) -> BatchGroups:
    """Return the groups in the records of a batch, given in its order, and those that no step may use.

    `history` has the responses, of `topic`, with the tokens of groups that were too large. Raises as
    `group_tokens.fetch`.
    """
    decoded = [(record, record.decode(AdvantagedGroup)) for record in records]
    decoded_groups = (group for _, group in decoded if not isinstance(group, Poison))
    responses = group_tokens.fetch(decoded_groups, topic, history)
    groups = BatchGroups([], [])
    for record, group in decoded:
        if isinstance(group, Poison):
            groups.refused.append(BatchRefused(record, group.reason, group.error))
            continue
        try:
            whole = group_tokens.whole(group, topic, responses)
            check_group(whole, expected, record.at)
        except ContradictoryEvent as exc:
            groups.refused.append(BatchRefused(record, exc.reason, str(exc).removeprefix(f"{record.at}: ")))
        else:
            groups.good.append(whole)
    return groups


class Learner:
    """An adapter that is trained from version to version, with the optimizer's state. Call `pin` first."""

    def __init__(self, settings: Settings, base: Base, others: Ranks | None = None) -> None:
        """Start at version 0. Without `others` every share of a batch is computed here, in turn.

        Raises SettingsError as `wrap` and `LogGRPOTrainer` do, LostProcessError if another rank is lost.
        """
        self._settings, self._base, self.base_digest = settings, base, base.base_digest
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
        self.next_sequence = 0
        """Sequence of the next batch."""
        self.next_offset = 0
        self.numbers = sum(parameter.numel() for parameter in self._trainer.parameters)
        """Count of trained numbers."""
        if others is not None:
            others.meet(self.recipe)
            self.shard()

    def shard(self) -> None:
        """Keep only this rank's part of the base, if the settings say so. Every rank calls it once all have met.

        Raises SettingsError if the model cannot be held in parts, LostProcessError if another rank is lost.
        """
        if self._settings.trainer.shard_base:
            self._trainer.shard(self._settings.model.device, self._settings.metrics.stuck_s)

    def restore(self, path: Path, state: State) -> None:
        """Continue from a complete checkpoint. Raises SettingsError if it is of another shape."""
        checkpoint.restore(path, self._trainer.model, self._trainer.optimizer)
        self.version, self.next_sequence, self.next_offset = state.version, state.next_sequence, state.next_offset

    def begin(self, folder: Path | None, version: int, sequence: int) -> None:
        """Continue with batch `sequence` from an adapter that no batch made here; None: from the base model.

        The learner is at version 0, with a fresh optimizer. Raises SettingsError if the adapter is of another shape.
        """
        if folder is not None:
            load_adapter(self._trainer.model, folder)
        self.version, self.next_sequence = version, sequence

    def present(self) -> TrainingState:
        """Return the present state, without a copy: the next step changes it."""
        optimizer, parameters = self._trainer.optimizer, self._trainer.parameters
        return TrainingState(
            self.version,
            self.next_sequence,
            self.next_offset,
            [parameter.data for parameter in parameters],
            [optimizer.state.get(parameter, {}) for parameter in parameters],
            checkpoint.rng_states(),
        )

    def exchange(self, state: TrainingState) -> TrainingState:
        """Train `state` from now on, and take over its tensors; return the previous state. Tensors are swapped, not
        copied, so the next step has the same bytes as otherwise.
        """
        previous = self.present()
        optimizer = self._trainer.optimizer
        for parameter, weights, moments in zip(self._trainer.parameters, state.weights, state.moments, strict=True):
            parameter.data = weights
            optimizer.state.pop(parameter, None)
            if moments:
                optimizer.state[parameter] = moments
        checkpoint.set_rng_states(state.rng)
        self.version, self.next_sequence, self.next_offset = state.version, state.next_sequence, state.next_offset
        return previous

    def groups_of(self, batch: Batch, records: Iterable[Record], history: History) -> BatchGroups:
        """Return the groups in the records of `batch`, given in its order, and those that no step may use.

        `history` has the responses that hold the tokens of groups which were too large. Raises as `group_tokens.fetch`.
        """
        expected = GroupOrigin(
            policy=batch.policy,
            batches=None if self._off_policy else batch.sequence,
            base_digest=self._base.base_digest,
            tokenizer_digest=self._base.tokenizer_digest,
            token_table=self._base.token_table,
        )
        return groups_in(records, expected, topics(self._settings.topics)["responses"].name, history)

    def step(
        self,
        coordinates: Coordinates,
        batch: Batch,
        groups: BatchGroups,
        timings: Mapping[str, float],
        beat: Callable[[], None] = lambda: None,
    ) -> tuple[State, dict[str, float]]:
        """Turn the present version into the next; return the state for its checkpoint, and every metric.

        The state has only the finite metrics. `timings`, in seconds, are added to them. `beat` is called as the step
        makes progress.
        """
        metrics = self._trainer.train_batch(groups.good, beat)
        learning = learning_of(map(facts_of, groups.good))
        metrics |= {"groups_refused": float(len(groups.refused)), **learning.metrics(), **timings}
        self.version, self.next_sequence = self.version + 1, batch.sequence + 1
        self.next_offset = coordinates.offset + 1
        state = State(
            policy=batch.policy,
            version=self.version,
            next_sequence=self.next_sequence,
            next_offset=self.next_offset,
            base_digest=self._base.base_digest,
            batch_id=batch.batch_id,
            recipe=self.recipe,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )
        return state, metrics

    def share(self, number: int, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> Share:
        """Return share `number` of a step taken elsewhere, on the batch `groups` with these weights [P]."""
        set_weights(self._trainer.parameters, weights)
        return self._trainer.share(groups, number)

    def save(self, folder: Path, state: State, keep: int) -> Path:
        """Write the checkpoint of `state` and drop all but the newest `keep`; return its folder."""
        name = self._settings.model.base
        return checkpoint.save(folder, state, self._trainer.model, self._trainer.optimizer, name, keep)


def base_of(settings: Settings) -> Base:
    """Return the base to train from, not yet on a device if it will be held in parts. Raises as `load_base`."""
    if not settings.trainer.shard_base:
        return load_base(settings.model)
    quantized_base.refuse(settings.model, "trainer.shard_base")
    return load_base(settings.model.model_copy(update={"device": "cpu"}))


def help_out(settings: Settings, place: Place) -> None:
    """Run as a rank other than 0: compute shares for rank 0 until the run is over.

    SIGTERM and Ctrl-C are left to rank 0. Raises LostProcessError if rank 0 is lost, SettingsError if this rank cannot
    compute as rank 0 does.
    """
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)
    pin(settings)
    learner = Learner(settings, base_of(settings))
    exchange.meet(place, learner.recipe)
    learner.shard()
    exchange.help_out(place, learner.numbers, learner.share)
