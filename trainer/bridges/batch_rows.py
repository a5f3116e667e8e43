"""Batches of the log, row by row, as another trainer takes its step from them.

    batches[policy] ──► the first of each sequence ──► its groups, whole and checked ──► TrainingBatch: a row a chain

What the trainer here would refuse of a batch is left out and named; advantages are final, those of formula batch_std
divided by the batch's spread. Nothing is tokenized or cut, and no base model is loaded.

Not covered: tokens outside the vocabulary, which only the base model knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.events import AdvantagedGroup, Batch, Coordinates, GroupResponse
from schemas.serde import Poison
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka.history import History
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.step.chains import TokenChain, chains
from trainer.step.collate import GroupOrigin, scaled
from trainer.step.totals import BatchTotals
from trainer.versions.learner import cut, groups_in, where

ANY_TOKEN = 1 << 31


class BatchSpan(NamedTuple):
    """The batches that are asked for, by sequence."""

    first: int
    last: int | None
    """None: as far as there are any."""

    @classmethod
    def parse(cls, text: str) -> BatchSpan:
        """Return the batches that N, N-M or N- names. Raises SettingsError.

        >>> BatchSpan.parse("4"), BatchSpan.parse("4-9"), BatchSpan.parse("4-")
        (BatchSpan(first=4, last=4), BatchSpan(first=4, last=9), BatchSpan(first=4, last=None))
        """
        found = re.fullmatch(r"(\d{1,9})(-(\d{1,9})?)?", text)
        if found is None or (found[3] is not None and int(found[3]) < int(found[1])):
            raise SettingsError(f"--batch {text!r}: expected a number, as 4, or a range, as 4-9 or 4- (to the newest)")
        first = int(found[1])
        return cls(first, first if found[2] is None else None if found[3] is None else int(found[3]))


class BatchRow(NamedTuple):
    """One path of tokens through the model, and whose it is."""

    group: AdvantagedGroup
    response: GroupResponse
    number: int
    """Of the chain in its response."""
    chain: TokenChain


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch with everything that a step needs."""

    at: Coordinates
    batch: Batch
    groups: Sequence[AdvantagedGroup]
    """Whole, in the order of the batch, with final advantages."""
    refused: tuple[str, ...]
    """Why a group is left out, one sentence each."""

    @property
    def rows(self) -> list[BatchRow]:
        """Every chain, in the order of groups, responses and branches."""
        return [
            BatchRow(group, response, number, chain)
            for group in self.groups
            for response in group.responses
            for number, chain in enumerate(chains(group, response))
        ]

    @property
    def totals(self) -> BatchTotals:
        """What the means of a step are taken over."""
        return BatchTotals.of(self.groups)


def read(settings: Settings, policy: str, span: BatchSpan, history: History) -> Iterator[TrainingBatch]:
    """Yield the batches of `policy` that `span` names, in order.

    Raises NotFoundError if one is not in the log, naming those that are; RefusedError if retention has deleted a group,
    or nothing of a batch can be trained on; LogError if the log cannot be read.
    """
    found = _batches(settings, policy, history)
    last = max(found, default=-1) if span.last is None else span.last
    wanted = range(span.first, last + 1)
    missing = next((sequence for sequence in wanted if sequence not in found), None)
    if missing is not None or not wanted:
        there = f"{min(found)} to {max(found)}" if found else "none"
        raise NotFoundError(
            f"policy {policy} has no batch {span.first if missing is None else missing} in "
            f"{topics(settings.topics)['batches'].name}; there: {there}. A batch is cut when batches.groups groups are "
            "complete; what retention has deleted may be in an archive (--source archive)"
        )
    for sequence in wanted:
        yield _whole(settings, *found[sequence], history)


def _batches(settings: Settings, policy: str, history: History) -> dict[int, tuple[Coordinates, Batch]]:
    """Return the first batch of each sequence."""
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["batches"]).get(tp, (0, 0))
    found: dict[int, tuple[Coordinates, Batch]] = {}
    for record in history.read({tp: first}, {tp: end}):
        batch = record.decode(Batch)
        if not isinstance(batch, Poison) and batch.policy == policy:
            found.setdefault(batch.sequence, (record.at, batch))
    return found


def _whole(settings: Settings, at: Coordinates, batch: Batch, history: History) -> TrainingBatch:
    named = topics(settings.topics)
    first = history.bounds(["groups"]).get((named["groups"].name, batch.groups_partition), (0, 0))[0]
    if problem := cut(batch, named["groups"].name, first):
        raise RefusedError(f"{problem}; an archive may have them (--source archive)")
    wanted = where(batch, named["groups"].name)
    fetched = history.fetch(wanted)
    records = [fetched[place] for place in wanted]
    usable = groups_in(records, _origin(settings, batch, records), named["responses"].name, history)
    refused = tuple(f"{one.record.at}: {one.error}" for one in usable.refused)
    if not usable.good:
        raise RefusedError(f"{at}: nothing of batch {batch.sequence} can be trained on: {'; '.join(refused)}")
    return TrainingBatch(at, batch, scaled(usable.good), refused)


def _origin(settings: Settings, batch: Batch, records: Sequence[Record]) -> GroupOrigin:
    """Return what every group must match: the model of the first of them."""
    decoded = (record.decode(AdvantagedGroup) for record in records)
    group = next((one for one in decoded if not isinstance(one, Poison) and one.responses), None)
    return GroupOrigin(
        policy=batch.policy,
        version=None if settings.trainer.off_policy else batch.sequence,
        base_digest="" if group is None else group.base_digest,
        tokenizer_digest="" if group is None else group.tokenizer_digest,
        vocabulary=ANY_TOKEN,
    )
