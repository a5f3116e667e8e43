"""Batches of the log, row by row, in the form from which another trainer takes its step.

    batches[policy] ──► the first of each sequence ──► its groups, whole and checked ──► TrainingBatch: a row a chain
                                                                    └── a held-out question: refused

Groups that the trainer here would refuse are left out and named; advantages are final: those of formula batch_std are
divided by the batch's spread. Nothing is tokenized or cut, and no base model is loaded.

Not covered: checking for tokens outside the vocabulary, which only the base model knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.events import AdvantagedGroup, Batch, Coordinates, GroupResponse
from schemas.serde import Poison
from streams.engines.rendering.token_table import TokenTable
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka.history import History
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.step.collate import scale_advantages
from trainer.step.group_checks import GroupOrigin
from trainer.step.token_chains import TokenChain, chains
from trainer.step.totals import BatchTotals
from trainer.versions.learner import coordinates_of, cut, groups_in

ANY_TOKEN = 1 << 31
ExportCheck = Callable[[Batch, Sequence[AdvantagedGroup]], Mapping[str, str]]
"""Returns the values to record about a batch's groups. Raises RefusedError for a batch that must not be exported."""


class BatchSpan(NamedTuple):
    """The requested batches, by sequence."""

    first: int
    last: int | None
    """None: up to the newest."""

    @classmethod
    def parse(cls, text: str) -> BatchSpan:
        """Parse N, N-M or N-. Raises SettingsError.

        >>> BatchSpan.parse("4"), BatchSpan.parse("4-9"), BatchSpan.parse("4-")
        (BatchSpan(first=4, last=4), BatchSpan(first=4, last=9), BatchSpan(first=4, last=None))
        """
        match = re.fullmatch(r"(\d{1,9})(-(\d{1,9})?)?", text)
        if match is None or (match[3] is not None and int(match[3]) < int(match[1])):
            raise SettingsError(f"--batch {text!r}: expected a number, as 4, or a range, as 4-9 or 4- (to the newest)")
        first = int(match[1])
        return cls(first, first if match[2] is None else None if match[3] is None else int(match[3]))


class BatchRow(NamedTuple):
    """One path of tokens through the model, with its group and response."""

    group: AdvantagedGroup
    response: GroupResponse
    number: int
    """Number of the chain in its response."""
    chain: TokenChain


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """A batch with everything that a step needs."""

    at: Coordinates
    batch: Batch
    groups: Sequence[AdvantagedGroup]
    """Complete groups, in the order of the batch, with final advantages."""
    refused: tuple[str, ...]
    """Why a group is left out, one sentence each."""
    held_out: Mapping[str, str]
    """Held-out questions in it, and the user who allowed them; empty: none."""

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
        """Denominators of a step's means."""
        return BatchTotals.of(self.groups)


def read(
    settings: Settings, policy: str, span: BatchSpan, history: History, check: ExportCheck
) -> Iterator[TrainingBatch]:
    """Yield the batches of `policy` that `span` names, in order. `check` refuses one with held-out questions.

    Raises NotFoundError if one is not in the log, naming those that are; RefusedError if retention has deleted a group,
    or nothing of a batch can be trained on; LogError if the log cannot be read.
    """
    batches = _batches(settings, policy, history)
    last = max(batches, default=-1) if span.last is None else span.last
    sequences = range(span.first, last + 1)
    missing = next((sequence for sequence in sequences if sequence not in batches), None)
    if missing is not None or not sequences:
        available = f"{min(batches)} to {max(batches)}" if batches else "none"
        raise NotFoundError(
            f"policy {policy} has no batch {span.first if missing is None else missing} in "
            f"{topics(settings.topics)['batches'].name}; there: {available}. A batch is cut when batches.groups groups "
            "are complete; what retention has deleted may be in an archive (--source archive)"
        )
    for sequence in sequences:
        yield _whole(settings, *batches[sequence], history, check)


def _batches(settings: Settings, policy: str, history: History) -> dict[int, tuple[Coordinates, Batch]]:
    """Return the first batch of each sequence."""
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["batches"]).get(tp, (0, 0))
    batches: dict[int, tuple[Coordinates, Batch]] = {}
    for record in history.read({tp: first}, {tp: end}):
        batch = record.decode(Batch)
        if not isinstance(batch, Poison) and batch.policy == policy:
            batches.setdefault(batch.sequence, (record.at, batch))
    return batches


def _whole(
    settings: Settings, coordinates: Coordinates, batch: Batch, history: History, check: ExportCheck
) -> TrainingBatch:
    topic_names = topics(settings.topics)
    first = history.bounds(["groups"]).get((topic_names["groups"].name, batch.groups_partition), (0, 0))[0]
    if problem := cut(batch, topic_names["groups"].name, first):
        raise RefusedError(f"{problem}; an archive may have them (--source archive)")
    places = coordinates_of(batch, topic_names["groups"].name)
    fetched = history.fetch(places)
    records = [fetched[place] for place in places]
    usable = groups_in(records, _origin(settings, batch, records), topic_names["responses"].name, history)
    refused = tuple(f"{group.record.at}: {group.error}" for group in usable.refused)
    if not usable.good:
        raise RefusedError(f"{coordinates}: nothing of batch {batch.sequence} can be trained on: {'; '.join(refused)}")
    held_out = check(batch, usable.good)
    return TrainingBatch(coordinates, batch, scale_advantages(usable.good), refused, held_out)


def _origin(settings: Settings, batch: Batch, records: Sequence[Record]) -> GroupOrigin:
    """Return the origin that every group must match: the model of the first group."""
    decoded = (record.decode(AdvantagedGroup) for record in records)
    sampled = next((group for group in decoded if not isinstance(group, Poison) and group.responses), None)
    return GroupOrigin(
        policy=batch.policy,
        batches=None if settings.trainer.off_policy else batch.sequence,
        base_digest="" if sampled is None else sampled.base_digest,
        tokenizer_digest="" if sampled is None else sampled.tokenizer_digest,
        token_table=TokenTable.of_ids(ANY_TOKEN, ()),
    )
