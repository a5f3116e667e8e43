"""Find groups of the log that contradict the trainer's state.

    AdvantagedGroup, GroupOrigin ──► policy? version? model? sampling? tokens? numbers? ──► ContradictoryEvent

It does not import torch: code that chooses or audits examples makes the same checks without a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from schemas.events import AdvantagedGroup, Coordinates, GroupResponse
from schemas.tokens import LossMask, TokenIds
from streams.engines.rendering.token_table import TokenTable
from streams.errors import ContradictoryEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrigin:
    """The values that every group of a batch must match."""

    policy: str
    batches: int | None
    """Batches taken by the version being trained; no group can come from a version that has taken more. None: groups of
    another policy."""
    base_digest: str
    tokenizer_digest: str
    token_table: TokenTable


def check_group(group: AdvantagedGroup, expected: GroupOrigin, coordinates: Coordinates) -> None:
    """Raise ContradictoryEvent for a group that cannot be trained on.

    The error names the coordinates, the expected and found values, and the way out.
    """
    for problem in _group_problems(group, expected):
        raise ContradictoryEvent(f"{coordinates}: group {group.group_id} of task {group.task_id}: {problem}")
    for response in group.responses:
        for problem in _response_problems(group, response, expected):
            raise ContradictoryEvent(
                f"{coordinates}: group {group.group_id} of task {group.task_id}, slot {response.slot}: {problem}"
            )


def _group_problems(group: AdvantagedGroup, expected: GroupOrigin) -> Iterator[str]:
    if group.policy != expected.policy:
        yield f"policy is {group.policy!r}, expected {expected.policy!r}; check who wrote the batch"
    if group.dropped_reason is not None or not group.responses:
        yield f"it has no responses (dropped: {group.dropped_reason}); such a group does not belong in a batch"
    if expected.batches is not None and group.batches > expected.batches:
        yield (
            f"it was sampled by version {group.adapter_version}, which had taken {group.batches} batches, but batch "
            f"{expected.batches} is only now being trained on; two trainers, or a checkpoint of another log? If "
            "another policy sampled it, as in an experiment, set trainer.off_policy=true"
        )
    for name in ("base_digest", "tokenizer_digest"):
        digest, expected_digest = getattr(group, name), getattr(expected, name)
        if digest != expected_digest:
            yield (
                f"{name} is {digest}, the trainer's is {expected_digest}; agents and trainer must load the same "
                "model.base"
            )
    if group.sampling.temperature <= 0:
        yield "it was sampled greedily (temperature 0), which has no logprobs to learn from; use temperature 1"
    if group.sampling.top_p != 1:
        yield (
            f"it was sampled with top_p {group.sampling.top_p}: its logprobs are of a cut distribution, and every "
            "ratio would be off by the part that was cut; sample train tasks with top_p 1"
        )
    if (bad := unknown_token(group.prompt_token_ids, expected.token_table)) is not None:
        yield f"prompt token {bad} is {_not_in(expected.token_table)}"
    slots = [response.slot for response in group.responses]
    if slots != sorted(set(slots)):
        yield f"slots are {slots}, expected each once and in order; the advantages stage writes them so"


def _response_problems(group: AdvantagedGroup, response: GroupResponse, expected: GroupOrigin) -> Iterator[str]:
    if not group.prompt_token_ids and not response.prompt_token_ids:
        yield "its prompt has no tokens; the first token of a completion would have nothing to follow"
    completions = [response.completion_token_ids, *(branch.completion_token_ids for branch in response.branches)]
    for tokens in (response.prompt_token_ids, *completions):
        if (bad := unknown_token(tokens, expected.token_table)) is not None:
            yield f"token {bad} is {_not_in(expected.token_table)}"
    for number, branch in enumerate(response.branches):
        if not branch.shared_tokens and branch.loss_mask[:1] == LossMask(b"\1"):
            yield f"branch {number} has no prompt; its first token would have nothing to follow"
    if not math.isfinite(response.advantage) or not math.isfinite(response.reward):
        yield f"reward is {response.reward} and advantage {response.advantage}; both must be finite"
    if bad_span := next((span for span in response.spans if not math.isfinite(span.advantage)), None):
        yield f"tokens {bad_span.start} to {bad_span.end} have advantage {bad_span.advantage}; it must be finite"


def _not_in(table: TokenTable) -> str:
    return f"not in the vocabulary of {table.size}; check the agent's tokenizer"


def unknown_token(tokens: TokenIds, table: TokenTable) -> int | None:
    """Return the first id outside the vocabulary, or None."""
    ids = tokens.numpy()
    bad = ids >= table.size
    if table.unassigned:
        bad |= np.isin(ids, sorted(table.unassigned))
    return tokens[int(bad.argmax())] if bad.any() else None
