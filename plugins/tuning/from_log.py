"""Answers of the log as examples.

    groups of a policy ──► the first record of each ──► Curation ──► tokens whole? known? fit? ──► ChosenGroups
    Tuning of a version ──► its groups, by offset ─────────────────────────────────────────────► the same examples again
    a build of a data set ──► its rows ─────────────────────────────────► known? fit? ──► FittingExamples

Nothing is tokenized: an example has the tokens that were sampled. The model that sampled them need not be the one that
is tuned; its tokenizer must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.events import AdvantagedGroup, AnsweringAgent, Coordinates, TunedGroup, Tuning
from schemas.key_source import NO_TRAINING, may_train
from schemas.serde import Poison
from streams.engines.rendering.token_table import TokenTable
from streams.errors import ContradictoryEvent, NotFoundError, RefusedError
from streams.kafka.history import History
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import DatasetExamples, TunedChain, TunedExample, answer_of
from trainer.reproduce.erased_examples import records_in_parts, refuse_erased
from trainer.step import group_tokens
from trainer.step.group_checks import unknown_token
from trainer.versions.announce import answering_agents

FETCHED = 500
"""Groups that are read at a time when they are read by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """What the tokens of an example must fit."""

    tokenizer_digest: str
    token_table: TokenTable
    context_tokens: int


@dataclass(slots=True)
class ChosenGroups:
    """The chosen groups, and why others were not chosen."""

    policy: str
    partition: int
    looked_at: int = 0
    """Groups of the policy, the purpose and the time."""
    examples: list[TunedExample] = field(default_factory=list)
    groups: list[TunedGroup] = field(default_factory=list)
    task_ids: list[str] = field(default_factory=list)
    agents: set[AnsweringAgent] = field(default_factory=set)
    """Those that gave an example."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Groups that gave no example, by reason."""


def choose(
    settings: Settings,
    policy: str,
    curation: Curation,
    limits: TokenLimits,
    history: History,
    *,
    before: int | None = None,
) -> ChosenGroups:
    """Return the examples that `curation` finds among the groups of `policy`, or those below the offset `before`.

    Raises NotFoundError, with how many groups were looked at and why none fits, if there is none; RefusedError if
    retention has deleted tokens that a group left elsewhere; LogError if the log cannot be read.
    """
    names = topics(settings.topics)
    tp = (names["groups"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["groups"]).get(tp, (0, 0))
    end = end if before is None else min(end, before)
    chosen = ChosenGroups(policy, tp[1])
    group_ids: set[str] = set()
    for record in history.read({tp: first}, {tp: end}):
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison) or group.policy != policy or group.group_id in group_ids:
            continue
        group_ids.add(group.group_id)
        if group.purpose != curation.purpose or not curation.covers(record.timestamp_ms):
            continue
        chosen.looked_at += 1
        if not may_train(group.subject):
            chosen.left_out[NO_TRAINING] += 1
            continue
        examples_of_group = _examples(settings, group, curation, limits, history)
        if isinstance(examples_of_group, str):
            chosen.left_out[examples_of_group] += 1
            continue
        slots, examples = examples_of_group
        chosen.groups.append(TunedGroup(offset=record.at.offset, slots=slots))
        chosen.task_ids.append(group.task_id)
        chosen.examples += examples
        chosen.agents.update(answering_agents(one for one in group.responses if one.slot in slots))
    if not chosen.examples:
        raise NotFoundError(_no_examples(chosen, curation, f"{tp[0]}[{tp[1]}] {first} to {end}"))
    return chosen


def recorded_examples(settings: Settings, tuning: Tuning, limits: TokenLimits, history: History) -> list[TunedExample]:
    """Return the examples that a version was tuned on, which `tuning` names.

    Raises RefusedError if retention has deleted a group, if what is there now is no such group, or if examples were
    erased; LogError if the log cannot be read.
    """
    if (problem := missing_groups(settings, tuning, history)) is not None:
        raise RefusedError(problem)
    topic, partition = topics(settings.topics)["groups"].name, tuning.groups_partition or 0
    slots = {of_group.offset: len(of_group.slots) for of_group in tuning.groups}
    places = [Coordinates(topic, partition, offset) for offset in slots]
    refuse_erased((record, slots[record.at.offset]) for record in records_in_parts(history, places))
    examples: list[TunedExample] = []
    for begin in range(0, len(tuning.groups), FETCHED):
        part = tuning.groups[begin : begin + FETCHED]
        coordinates = {tuned_group.offset: Coordinates(topic, partition, tuned_group.offset) for tuned_group in part}
        records = history.fetch(coordinates.values())
        for tuned_group in part:
            place = coordinates[tuned_group.offset]
            group = records[place].decode(AdvantagedGroup)
            if isinstance(group, Poison) or group.policy != tuning.groups_policy:
                raise RefusedError(
                    f"{place}: expected a group of {tuning.groups_policy}, which a version was tuned on; the log is "
                    "another one, or it was changed (`streamward audit`)"
                )
            try:
                group = _whole(settings, group, history)
                examples += _of_slots(group, tuned_group.slots, tuning.method)
            except (ContradictoryEvent, KeyError) as exc:
                raise RefusedError(f"{place}: a version was tuned on slots {tuned_group.slots} of it: {exc}") from exc
    if (wrong := next(filter(None, (unfit(example, limits) for example in examples)), None)) is not None:
        raise RefusedError(f"an example of the version is {wrong}; reproduce it with the model that was tuned")
    return examples


def missing_groups(settings: Settings, tuning: Tuning, history: History) -> str | None:
    """Return what is wrong if groups that a version was tuned on are no longer in the log."""
    topic, partition = topics(settings.topics)["groups"].name, tuning.groups_partition or 0
    first, end = history.bounds(["groups"]).get((topic, partition), (0, 0))
    missing = [tuned_group.offset for tuned_group in tuning.groups if not first <= tuned_group.offset < end]
    if not missing:
        return None
    return (
        f"{topic}[{partition}]@{missing[0]}: {len(missing)} of {len(tuning.groups)} groups that it was tuned on are "
        f"not there; offsets {first} to {end} are. Read them from an archive that has them (--source archive)"
    )


def _examples(
    settings: Settings, group: AdvantagedGroup, curation: Curation, limits: TokenLimits, history: History
) -> tuple[tuple[int, ...], list[TunedExample]] | str:
    """Return the slots of a group and their examples, or why there are none."""
    if isinstance(slots := curation.choose(group), str):
        return slots
    if group.is_outside:
        return "of an outside model"
    if group.tokenizer_digest != limits.tokenizer_digest:
        return "of another tokenizer"
    try:
        group = _whole(settings, group, history)
    except ContradictoryEvent:
        return "tokens are not where the group says"
    if curation.method == "sft":
        judged = [
            (slot, example, unfit(example, limits))
            for slot, example in zip(slots, _of_slots(group, slots, "sft"), strict=True)
        ]
        if fit := [(slot, example) for slot, example, reason in judged if reason is None]:
            return tuple(slot for slot, _ in fit), [example for _, example in fit]
        return next(reason for _, _, reason in judged if reason is not None)
    (pair,) = _of_slots(group, slots, "dpo")
    if pair[0] == pair[1]:
        return "best and worst say the same"
    return unfit(pair, limits) or (slots, [pair])


def _whole(settings: Settings, group: AdvantagedGroup, history: History) -> AdvantagedGroup:
    topic = topics(settings.topics)["responses"].name
    return group_tokens.whole(group, topic, group_tokens.fetch([group], topic, history))


def _of_slots(group: AdvantagedGroup, slots: Sequence[int], method: str) -> list[TunedExample]:
    """Return the examples of these slots. Raises KeyError if there is no such slot."""
    by_slot = {response.slot: response for response in group.responses}
    answers = [answer_of(group, by_slot[slot]) for slot in slots]
    return [tuple(answers)] if method == "dpo" else [(answer,) for answer in answers]


class FittingExamples(NamedTuple):
    """The examples that a model can be tuned on, and how many it cannot, by reason."""

    examples: list[TunedExample]
    left_out: Counter[str]


def choose_rows(dataset: DatasetExamples, limits: TokenLimits) -> FittingExamples:
    """Return the examples that fit the model. Raises NotFoundError if none does, and says why."""
    examples: list[TunedExample] = []
    left_out: Counter[str] = Counter()
    for tokenizer_digest, example in dataset.rows:
        other = tokenizer_digest != limits.tokenizer_digest
        if (reason := "of another tokenizer" if other else unfit(example, limits)) is None:
            examples.append(example)
        else:
            left_out[reason] += 1
    if not examples:
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.most_common()) or "it has none"
        raise NotFoundError(
            f"data set {dataset.dataset}@{dataset.digest[:12]}: none of {len(dataset.rows)} examples fits ({reasons}); "
            "tune the model that sampled them, or build another set"
        )
    return FittingExamples(examples, left_out)


def unfit(example: TunedExample, limits: TokenLimits) -> str | None:
    """Return why the model cannot be tuned on an example; None if it can."""
    for chain in _chains(example):
        if not chain.context:
            return "without a prompt"
        if any(unknown_token(part, limits.token_table) is not None for part in (chain.context, chain.tokens)):
            return "of tokens that the vocabulary does not have"
    if max(answer.longest for answer in example) > limits.context_tokens:
        return f"longer than the context of {limits.context_tokens} tokens"
    return None if all(answer.loss_tokens for answer in example) else "without a token of the policy"


def _chains(example: TunedExample) -> Iterator[TunedChain]:
    return (chain for answer in example for chain in answer.chains)


def _no_examples(chosen: ChosenGroups, curation: Curation, range_text: str) -> str:
    kind = f"{curation.purpose} groups of policy {chosen.policy}"
    if not chosen.looked_at:
        return (
            f"{range_text}: no {kind} in this range; see what is there with `streamward query groups`, and name "
            "another policy with --groups-of, or another --purpose"
        )
    reasons = ", ".join(f"{number} {reason}" for reason, number in chosen.left_out.most_common())
    return f"{range_text}: {chosen.looked_at} {kind} were looked at and none fits ({reasons}); ask for less"
