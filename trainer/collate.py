"""Groups of the log as tensors.

    [AdvantagedGroup] ──► check_group: refuse contradictions ──► Micro: [B, P] prompts, [B, T] completions

Rows are in group order, then slot order, as recorded; nothing is tokenized, sorted or cut. Prompts are padded left and
completions right, as TRL expects. A prompt is repeated for its responses here, as integers only: the
model runs it once (trainer/prefix_tree.py). Whether a group belongs in
its batch (age, duplicates, zero variance) was decided by the batches stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.events import AdvantagedGroup, Coordinates, GroupResponse
from schemas.tokens import PerToken, TokenIds
from streams.advantage_formulas import mean_and_std
from streams.errors import ContradictoryEvent

MICRO_TOKENS = 2048
"""Tokens of one micro-batch, a prompt counted once per group. A pass keeps about 2 MB per token for the backward pass
in a model of 135M parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrigin:
    """What every group of a batch must match."""

    policy: str
    version: int | None
    """The version being trained; no group can have been sampled by a later one. None: groups of another policy."""
    base_digest: str
    tokenizer_digest: str
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """Rows that go through the model together: B responses of one temperature, P and T the longest among them."""

    prompt_ids: Tensor  # [B, P] int64, padded left
    prompt_mask: Tensor  # [B, P] int64, 0 where padded
    completion_ids: Tensor  # [B, T] int64, padded right
    completion_mask: Tensor  # [B, T] int64, 0 where padded
    loss_mask: Tensor  # [B, T] float32, 1 where the policy wrote the token
    sampled_logps: Tensor  # [B, T] float32, nats, as recorded; 0 where padded
    advantages: Tensor  # [B, T] float32, a turn's own where the group compares turns
    rewards: Tensor  # [B] float32
    temperature: float
    max_tokens: int

    @property
    def loss_tokens(self) -> float:
        """How many tokens the loss is computed on."""
        return float(self.loss_mask.sum())


def micro_batches(
    groups: Sequence[AdvantagedGroup], size: int, tokens: int = MICRO_TOKENS
) -> Iterator[list[AdvantagedGroup]]:
    """Yield the groups, at most `size` and about `tokens` at a time (a longer group comes alone).

    They stay in order within a temperature; one pass has one temperature, as it divides all its logits.
    """
    ordered = sorted(groups, key=lambda group: group.sampling.temperature)  # stable
    for _, same in groupby(ordered, key=lambda group: group.sampling.temperature):
        part: list[AdvantagedGroup] = []
        held = 0
        for group in same:
            more = len(group.prompt_token_ids) + sum(len(r.completion_token_ids) for r in group.responses)
            if part and (len(part) == size or held + more > tokens):
                yield part
                part, held = [], 0
            part.append(group)
            held += more
        yield part


def scaled(groups: Sequence[AdvantagedGroup]) -> list[AdvantagedGroup]:
    """Return the groups with final advantages: those of formula batch_std are divided by the batch's spread.

        A_i = (r_i - mean of the group) / (std of all rewards of the batch + eps)     TRL's scale_rewards="batch"

    Only the trainer sees a batch whole, so it does the division; the group carries eps and ddof.
    """
    rewards = [r.reward for group in groups if group.formula == "batch_std" for r in group.responses]

    def final(group: AdvantagedGroup) -> AdvantagedGroup:
        if group.formula != "batch_std":
            return group
        divisor = mean_and_std(rewards, group.formula_ddof)[1] + group.formula_eps
        if divisor == 0:
            return group  # all rewards are equal, so all advantages are 0 already
        return replace(group, responses=tuple(replace(r, advantage=r.advantage / divisor) for r in group.responses))

    return [final(group) for group in groups]


def collate(groups: Sequence[AdvantagedGroup], *, pad_id: int, device: torch.device | str = "cpu") -> Micro:
    """Return the responses of `groups`, which share one temperature, as one micro-batch."""
    pairs = [(group, response) for group in groups for response in group.responses]
    prompts = [group.prompt_token_ids for group, _ in pairs]
    completions = [response.completion_token_ids for _, response in pairs]
    width = max(1, *map(len, completions))

    def tensor(rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy(rows).to(device)

    prompt_ids, prompt_mask = _padded(prompts, max(map(len, prompts)), pad_id, np.int64, left=True)
    completion_ids, completion_mask = _padded(completions, width, pad_id, np.int64)
    return Micro(
        prompt_ids=tensor(prompt_ids),
        prompt_mask=tensor(prompt_mask),
        completion_ids=tensor(completion_ids),
        completion_mask=tensor(completion_mask),
        loss_mask=tensor(_padded([response.loss_mask for _, response in pairs], width, 0, np.float32)[0]),
        sampled_logps=tensor(_padded([response.logprobs for _, response in pairs], width, 0, np.float32)[0]),
        advantages=tensor(_advantages([response for _, response in pairs], width)),
        rewards=torch.tensor([response.reward for _, response in pairs], dtype=torch.float32, device=device),
        temperature=groups[0].sampling.temperature,
        max_tokens=max(group.sampling.max_tokens for group in groups),
    )


def _advantages(responses: Sequence[GroupResponse], width: int) -> NDArray[np.float32]:
    """Return the advantage of each token, [B, width]: that of its span, else that of its response."""
    found = np.empty((len(responses), width), np.float32)
    for row, response in zip(found, responses, strict=True):
        row[:] = response.advantage
        for span in response.spans:
            if span.chain == 0:
                row[span.start : span.end] = span.advantage
    return found


def _padded(
    rows: Sequence[PerToken[Any]], width: int, fill: int, dtype: Any, *, left: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows side by side, [B, width], padded on one side, and where they are: 1, and 0 where padded."""
    lengths = np.array([len(row) for row in rows])[:, None]
    places = np.arange(width)
    there = places >= width - lengths if left else places < lengths
    padded = np.full(there.shape, fill, dtype)
    padded[there] = np.concatenate([row.numpy() for row in rows])  # both in the order of rows, then of tokens
    return padded, there.astype(np.int64)


def check_group(group: AdvantagedGroup, expected: GroupOrigin, at: Coordinates) -> None:
    """Raise ContradictoryEvent for a group that cannot be trained on.

    It has the coordinates, what was expected and found, and what to do.
    """
    for problem in _group_problems(group, expected):
        raise ContradictoryEvent(f"{at}: group {group.group_id} of task {group.task_id}: {problem}")
    for response in group.responses:
        for problem in _response_problems(response, expected):
            raise ContradictoryEvent(
                f"{at}: group {group.group_id} of task {group.task_id}, slot {response.slot}: {problem}"
            )


def _group_problems(group: AdvantagedGroup, expected: GroupOrigin) -> Iterator[str]:
    if group.policy != expected.policy:
        yield f"policy is {group.policy!r}, expected {expected.policy!r}; check who wrote the batch"
    if group.dropped_reason is not None or not group.responses:
        yield f"it has no responses (dropped: {group.dropped_reason}); such a group does not belong in a batch"
    if expected.version is not None and group.adapter_version > expected.version:
        yield (
            f"it was sampled by version {group.adapter_version}, but version {expected.version} is only now being "
            "trained further; two trainers, or a checkpoint of another log? If another policy sampled it, as in an "
            "experiment, set trainer.off_policy=true"
        )
    for name in ("base_digest", "tokenizer_digest"):
        theirs, ours = getattr(group, name), getattr(expected, name)
        if theirs != ours:
            yield f"{name} is {theirs}, the trainer's is {ours}; agents and trainer must load the same model.base"
    if group.sampling.temperature <= 0:
        yield "it was sampled greedily (temperature 0), which has no logprobs to learn from; use temperature 1"
    if group.sampling.top_p != 1:
        yield (
            f"it was sampled with top_p {group.sampling.top_p}: its logprobs are of a cut distribution, and every "
            "ratio would be off by the part that was cut; sample train tasks with top_p 1"
        )
    if not group.prompt_token_ids:
        yield "its prompt has no tokens; the first token of a completion would have nothing to follow"
    if (bad := _outside(group.prompt_token_ids, expected.vocabulary)) is not None:
        yield f"prompt token {bad} is not in the vocabulary of {expected.vocabulary}; check the agent's tokenizer"
    slots = [response.slot for response in group.responses]
    if slots != sorted(set(slots)):
        yield f"slots are {slots}, expected each once and in order; the advantages stage writes them so"


def _response_problems(response: GroupResponse, expected: GroupOrigin) -> Iterator[str]:
    if (bad := _outside(response.completion_token_ids, expected.vocabulary)) is not None:
        yield f"token {bad} is not in the vocabulary of {expected.vocabulary}; check the agent's tokenizer"
    if not math.isfinite(response.advantage) or not math.isfinite(response.reward):
        yield f"reward is {response.reward} and advantage {response.advantage}; both must be finite"
    if bad_span := next((span for span in response.spans if not math.isfinite(span.advantage)), None):
        yield f"tokens {bad_span.start} to {bad_span.end} have advantage {bad_span.advantage}; it must be finite"


def _outside(tokens: TokenIds, vocabulary: int) -> int | None:
    """Return the first token that is not in the vocabulary, None if all are."""
    bad = tokens.numpy() >= vocabulary
    return tokens[int(bad.argmax())] if bad.any() else None
