"""Groups of the log as tensors.

    [AdvantagedGroup] ──► check_group (group_checks.py) ──► Micro: the loss's input, [B, T], a row a response
                                                                   the model's input, a row a chain

Responses are in group order, then slot order, as recorded; nothing is tokenized, sorted or cut. An agent's response has
its chains one after another in its row of the loss, so that it counts once in every mean, and has one ratio in gspo,
however many chains it has. The model runs each chain after its context, and shared prefixes once
(trainer/step/prefix_tree.py). The batches stage has decided whether a group belongs in its batch (age, duplicates, zero
variance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.events import AdvantagedGroup, GroupResponse
from streams.advantage_formulas import mean_and_std
from trainer.step.prefix_tree import Row
from trainer.step.token_chains import TokenChain, chains, tokens_of

MICRO_TOKENS = 2048
"""Tokens of one micro-batch, a prompt counted once per group. A pass keeps about 2 MB per token for the backward pass
in a model of 135M parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One pass through the model: B responses of one temperature, T the tokens of the longest."""

    rows: tuple[Row, ...]  # a chain each; `place` is in the flat [B * T]
    completion_ids: Tensor  # [B, T] int64, padded right
    completion_mask: Tensor  # [B, T] int64, 0 where padded
    loss_mask: Tensor  # [B, T] float32, 1 where the policy wrote the token
    sampled_logps: Tensor  # [B, T] float32, nats, as recorded; 0 where the policy did not write the token
    advantages: Tensor  # [B, T] float32, a turn's own where the group compares turns
    rewards: Tensor  # [B] float32
    temperature: float
    max_tokens: int

    @property
    def loss_tokens(self) -> float:
        """Number of tokens in the loss."""
        return float(self.loss_mask.sum())


def micro_batches(
    groups: Sequence[AdvantagedGroup], size: int, tokens: int = MICRO_TOKENS
) -> Iterator[list[AdvantagedGroup]]:
    """Yield the groups, at most `size` and about `tokens` at a time (a longer group comes alone).

    They stay in order within a temperature; one pass has one temperature, as it divides all its logits.
    """
    ordered = sorted(groups, key=lambda group: group.sampling.temperature)  # stable
    for _, same_temperature in groupby(ordered, key=lambda group: group.sampling.temperature):
        part: list[AdvantagedGroup] = []
        part_tokens = 0
        for group in same_temperature:
            group_tokens = tokens_of(group)
            if part and (len(part) == size or part_tokens + group_tokens > tokens):
                yield part
                part, part_tokens = [], 0
            part.append(group)
            part_tokens += group_tokens
        yield part


def scale_advantages(groups: Sequence[AdvantagedGroup]) -> list[AdvantagedGroup]:
    """Return the groups with final advantages: those of formula batch_std are divided by the batch's spread.

        A_i = (r_i - mean of the group) / (std of all rewards of the batch + eps)     TRL's scale_rewards="batch"

    Only the trainer sees a whole batch, so it does the division; the group carries eps and ddof.
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


def positive_part(groups: Sequence[AdvantagedGroup]) -> list[AdvantagedGroup]:
    """Return the groups without negative advantages: `trainer.advantages=positive`.

    A response is left out if every advantage of it is negative; otherwise the negative ones, of single turns, are 0.
    """
    positive = []
    for group in groups:
        kept = tuple(_without_negative(response) for response in group.responses if _best_advantage(response) >= 0)
        if kept:
            positive.append(replace(group, responses=kept))
    return positive


def _best_advantage(response: GroupResponse) -> float:
    return max(response.advantage, *(span.advantage for span in response.spans), -math.inf)


def _without_negative(response: GroupResponse) -> GroupResponse:
    spans = tuple(replace(span, advantage=max(0.0, span.advantage)) for span in response.spans)
    return replace(response, advantage=max(0.0, response.advantage), spans=spans)


def collate(groups: Sequence[AdvantagedGroup], *, pad_id: int, device: torch.device | str = "cpu") -> Micro:
    """Return the responses of `groups`, which share one temperature, as one micro-batch."""
    responses = [response for group in groups for response in group.responses]
    all_chains = [chains(group, response) for group in groups for response in group.responses]
    width = max(1, *(sum(len(chain.tokens) for chain in chains_of_response) for chains_of_response in all_chains))

    def tensor(values: Callable[[TokenChain], NDArray[Any]], fill: int, dtype: Any) -> Tensor:
        joined = [np.concatenate([values(chain) for chain in chains_of_response]) for chains_of_response in all_chains]
        return torch.from_numpy(pad(joined, width, fill, dtype)[0]).to(device)

    return Micro(
        rows=tuple(_rows(all_chains, width)),
        completion_ids=tensor(lambda chain: chain.tokens.numpy(), pad_id, np.int64),
        completion_mask=tensor(lambda chain: np.ones(len(chain.tokens)), 0, np.int64),
        loss_mask=tensor(lambda chain: chain.loss_mask.numpy(), 0, np.float32),
        sampled_logps=tensor(lambda chain: np.where(chain.loss_mask.numpy(), chain.logprobs.numpy(), 0), 0, np.float32),
        advantages=tensor(lambda chain: chain.advantages, 0, np.float32),
        rewards=torch.tensor([response.reward for response in responses], dtype=torch.float32, device=device),
        temperature=groups[0].sampling.temperature,
        max_tokens=max(group.sampling.max_tokens for group in groups),
    )


def _rows(all_chains: Sequence[Sequence[TokenChain]], width: int) -> Iterator[Row]:
    for number, chains_of_response in enumerate(all_chains):
        place = number * width
        for chain in chains_of_response:
            tokens = np.concatenate([chain.context.numpy(), chain.tokens.numpy()]).tolist()
            yield Row(tokens, len(chain.context), chain.loss_mask.numpy().nonzero()[0].tolist(), place)
            place += len(chain.tokens)


class SideBySide(NamedTuple):
    """Rows for a pass that runs each of them whole: C rows, P and W the longest context and completion."""

    input_ids: Tensor  # [C, P + W] int64, contexts padded left, completions right
    attention_mask: Tensor  # [C, P + W] int64, 0 where padded
    is_token: Tensor  # [C, W] bool, false where padded
    places: Tensor  # of the tokens, int64 in the flat output

    def join(self, values: Tensor, shape: tuple[int, int]) -> Tensor:
        """Scatter the result of such a pass, [C, W], to `places` of the output, [*shape]."""
        return values.new_zeros(shape[0] * shape[1]).scatter(0, self.places, values[self.is_token]).view(shape)


def side_by_side(rows: Sequence[Row], *, pad_id: int, device: torch.device | str = "cpu") -> SideBySide:
    """Return `rows` padded as TRL expects."""
    contexts = [np.array(row.tokens[: row.prompt]) for row in rows]
    completions = [np.array(row.tokens[row.prompt :]) for row in rows]
    padded_contexts = pad(contexts, max(map(len, contexts)), pad_id, np.int64, left=True)
    padded_completions = pad(completions, max(1, *map(len, completions)), pad_id, np.int64)
    ids, mask = (
        torch.from_numpy(np.concatenate(sides, axis=1))
        for sides in zip(padded_contexts, padded_completions, strict=True)
    )
    places = [row.place + np.arange(len(completion)) for row, completion in zip(rows, completions, strict=True)]
    parts = (ids, mask, torch.from_numpy(padded_completions[1] > 0), torch.from_numpy(np.concatenate(places)))
    return SideBySide(*(part.to(device) for part in parts))


def pad(
    rows: Sequence[NDArray[Any]], width: int, fill: int, dtype: Any, *, left: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows side by side, [B, width], padded on one side, and their mask: 1 for values, 0 for padding."""
    lengths = np.array([len(row) for row in rows])[:, None]
    places = np.arange(width)
    is_token = places >= width - lengths if left else places < lengths
    matrix = np.full(is_token.shape, fill, dtype)
    matrix[is_token] = np.concatenate(rows)  # both in the order of rows, then of tokens
    return matrix, is_token.astype(np.int64)
