"""Train versions again without the examples of erased persons, from the last version that had none.

    tuned version, its groups without the persons' ──► same start, recipe and order ──► the next version of its policy
    batches, cut again from groups without the persons' ──► same recipe and order ──► checkpoints in a folder

The bytes are those of a log that has all other records, and never had the persons': a rule of `tune` chooses each group
by itself, and batches are cut by the code of the batches stage. Without a group that is left a version is what it
started from. A kill loses nothing: a version counts once its event is in the log, or its folder has its name.

Not covered: `LearntVersion.way` says which versions cannot be trained again so.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from plugins.privacy.learnt_versions import (
    BATCHES,
    INSTEAD_OF,
    TUNING,
    GroupOffset,
    LearntVersion,
    LearntVersions,
    PolicyVersion,
    parent_of,
    places_of,
)
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    AnsweringAgent,
    Batch,
    Coordinates,
    Tuning,
    derive_id,
)
from schemas.serde import Poison
from streams.adapters.decisions import read_history
from streams.adapters.versions import manifest_digest
from streams.errors import NotFoundError, RefusedError
from streams.files import Scratch, half_written
from streams.kafka.history import History
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.replay import driver
from trainer.reproduce import retrain
from trainer.reproduce.erased_examples import records_in_parts
from trainer.reproduce.recorded import RecordedSetup, RemadeVersion, ReproducedVersion, ReproductionPlan
from trainer.versions import checkpoint
from trainer.versions.announce import announce, answering_agents, in_order, reason_of

MOST_ATTEMPTS = 20
"""How often a version is announced again because another process was faster."""


class RetrainedVersion(NamedTuple):
    """A version that was trained again."""

    policy: str
    version: int
    """The version with the persons in it; for batches, the number that the new one has in its folder."""
    by: str
    """The version in its place, or the folder with its checkpoint."""
    sha256: str
    """Over the files of its adapter; empty: nothing was left to train on."""


def retrain_without(
    settings: Settings, learnt: LearntVersions, history: History, into: Path | None
) -> Iterator[RetrainedVersion]:
    """Train every version again that can be exactly; those of batches in folder `into`, None: not.

    Raises as `streamward reproduce`; RefusedError, too, if `into` is not empty, or batches were cut by other settings.
    """
    for version in [version for version in learnt.versions.values() if version.way == TUNING]:
        yield _Tuned(settings, learnt, history, version).retrain()
    by_batch = [version for version in learnt.versions.values() if version.way == BATCHES]
    if not by_batch or into is None:
        return
    with half_written(into) as half:
        made = list[RetrainedVersion]()
        (half / "made").mkdir()
        for policy in dict.fromkeys(version.name.policy for version in by_batch):
            first = next(version for version in by_batch if version.name.policy == policy)
            for again in _by_batch(settings, learnt, history, first, half / policy):
                digest = manifest_digest(again.reproduced)
                made.append(RetrainedVersion(policy, again.version, str(into / policy), digest))
            if (half / policy).exists():
                (half / policy / policy).rename(half / "made" / policy)
        if made:
            (half / "made").replace(into)
    yield from made


# --- tuned versions ---------------------------------------------------------------------------------------------------


class _Tuned:
    """A tuned version that is tuned again."""

    def __init__(self, settings: Settings, learnt: LearntVersions, history: History, old: LearntVersion) -> None:
        assert old.event.tuning is not None  # noqa: S101 - its way is TUNING
        self._settings, self._learnt, self._history, self._old = settings, learnt, history, old
        self._tuning: Tuning = old.event.tuning

    def retrain(self) -> RetrainedVersion:
        """Announce the version without the persons' examples."""
        old, start = self._old, self._learnt.replacement(parent_of(self._old.event))
        partition = self._tuning.groups_partition or 0
        groups = tuple(
            group for group in self._tuning.groups if GroupOffset(partition, group.offset) not in self._learnt.own
        )
        if not groups:
            self._learnt.replaced[old.name] = start
            return RetrainedVersion(*old.name, f"{start.policy}:{start.version}", "")
        elsewhere = None if start.policy == old.name.policy else start.policy
        tuning = replace(self._tuning, groups=groups, start_policy=elsewhere, start_version=start.version)
        parent = None if elsewhere else start.version
        event = replace(old.event, parent_version=parent, tuning=tuning)
        with Scratch("retrain") as scratch, checkpoint.hold_line(self._settings.trainer.checkpoints, old.name.policy):
            (remake,) = retrain.remakes_of(self._settings, [event], 0, (), self._history).values()
            remade = remake.remake(event, RecordedSetup(self._settings, frozenset()), scratch / "adapter", None)
            announced = self._announce(event, remade, scratch / "adapter")
        self._learnt.replaced[old.name] = PolicyVersion(old.name.policy, announced.version)
        return RetrainedVersion(*old.name, f"version {announced.version}", manifest_digest(announced.files))

    def _announce(self, event: AdapterEvent, remade: RemadeVersion, folder: Path) -> AdapterEvent:
        """Make it the next version of its policy. Raises RefusedError if others are faster each time."""
        old = self._old.name
        allowed = event.metadata.get(CONTAMINATION_ALLOWED_BY)
        origin = f"version {old.version} again without {self._old.groups} groups of erased persons"
        event = replace(
            event,
            metadata={INSTEAD_OF: str(old.version)} | ({CONTAMINATION_ALLOWED_BY: allowed} if allowed else {}),
            actor="privacy",
            reason=reason_of(origin, remade.metrics),
            tuning=remade.tuning,
            recipe=dict(remade.recipe),
            metrics=dict(remade.metrics),
            agents=in_order(self._agents(event)),
            traceparent=None,
        )
        for _ in range(MOST_ATTEMPTS):
            version = read_history(self._settings, old.policy).state.newest + 1
            event = replace(event, version=version, event_id=derive_id(old.policy, version, "trained"))
            if (announced := announce(self._settings, event, folder, by_bytes=True)) is not None:
                return announced
        raise RefusedError(f"other processes made versions of {old.policy} {MOST_ATTEMPTS} times meanwhile; try again")

    def _agents(self, event: AdapterEvent) -> set[AnsweringAgent]:
        """Return the agents that gave the examples that are left."""
        assert event.tuning is not None  # noqa: S101 - as above
        slots = {group.offset: group.slots for group in event.tuning.groups}
        topic = topics(self._settings.topics)["groups"].name
        places = [Coordinates(topic, event.tuning.groups_partition or 0, offset) for offset in slots]
        agents = set[AnsweringAgent]()
        for record in records_in_parts(self._history, places):
            group = record.decode_closed(AdvantagedGroup)
            if not isinstance(group, Poison):
                agents |= answering_agents(one for one in group.responses if one.slot in slots[record.at.offset])
        return agents


# --- versions of batches ----------------------------------------------------------------------------------------------


def _by_batch(
    settings: Settings, learnt: LearntVersions, history: History, first: LearntVersion, into: Path
) -> Iterator[ReproducedVersion]:
    """Train a policy's batches again from the first with the persons on, up to one with tainted groups."""
    event, policy = first.event, first.name.policy
    batches, last = _cut_again(settings, learnt, history, event), event.version - 1
    made_by = {event.last_batch: name.version for name, event in learnt.trained.items() if name.policy == policy}
    for sequence in count(event.last_batch or 0):
        is_cut = made_by.get(sequence) == last + 1 and sequence in batches
        if not is_cut or learnt.depends_on_them(event, places_of(batches[sequence])):
            break
        last += 1
    if last < event.version:
        return
    planned = _plan(settings, history, policy, event.version - 1, last)
    steps = (
        step if step.batch is None else step._replace(batch=batches[step.batch.sequence]) for step in planned.steps
    )
    planned = replace(planned, steps=tuple(steps))
    for version in retrain.run(planned, settings, history, into=into, compare=False):
        if version.version >= event.version:
            yield version
        elif not version.equal:
            raise RefusedError(
                f"version {version.version} of {policy} does not come out as recorded here, so none after it can be "
                "trained again exactly; see `streamward reproduce`"
            )


def _plan(settings: Settings, history: History, policy: str, start: int, last: int) -> ReproductionPlan:
    """Return the plan from the checkpoint of version `start`; where there is none, from the base model."""
    try:
        return retrain.plan(settings, policy, last, history, start=start)
    except NotFoundError:
        if not start:
            raise
        return retrain.plan(settings, policy, last, history)


def _cut_again(settings: Settings, learnt: LearntVersions, history: History, event: AdapterEvent) -> dict[int, Batch]:
    """Return the batches of a policy that its groups without the persons' fill, by sequence.

    Raises RefusedError if those with them are not the batches in the log.
    """
    off_policy = event.recipe.get("trainer.off_policy") == "True"
    trainer = settings.trainer.model_copy(update={"off_policy": off_policy})
    tp = topics(settings.topics)["groups"].name, partition_of(event.policy, settings.topics.policy_partitions)
    first, end = history.bounds(["groups"]).get(tp, (0, 0))

    def cut(leave_out: Set[GroupOffset]) -> dict[int, Batch]:
        read = history.read({tp: first}, {tp: end})
        records = (record for record in read if GroupOffset(tp[1], record.at.offset) not in leave_out)
        batches = driver.cut(settings.model_copy(update={"trainer": trainer}), records)
        return {batch.sequence: batch for batch in batches if isinstance(batch, Batch) and batch.policy == event.policy}

    whole = cut(frozenset())
    for (policy, sequence), batch in learnt.batches.items():
        if policy == event.policy and (sequence not in whole or whole[sequence].groups_offsets != batch.groups_offsets):
            raise RefusedError(
                f"batch {sequence} of {policy} has other groups than these settings make of the log, so it cannot be "
                "cut again without a person; set batches.* as they were, or read an archive that has all groups"
            )
    return cut(learnt.own)
