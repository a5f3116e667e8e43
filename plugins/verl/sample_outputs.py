"""The outputs of a session as a response of the log.

    outputs of one session, each a path of tokens ──► the first: the response's own chain
                                                 └──► the others: branches, from what they share with the first
    a span of tokens that the policy wrote ──► a turn: the scores from its first token up to the next turn

verl gives every output of a session the score of the last one, so those of the others are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugins.verl import sample_fields
from plugins.verl.sample_fields import ABOUT, array, value_of
from plugins.verl.sample_fold import Sample
from plugins.verl.sample_queue import FieldValue, SampleQueue
from schemas.events import Branch, Message, ResponseTurn
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.errors import UndecodableEvent


class Output(NamedTuple):
    """One output of a session: a path of tokens."""

    prompt: NDArray[np.int64]  # [P]
    tokens: NDArray[np.int64]  # [W]
    mask: NDArray[np.bool_]  # [W], where the policy wrote the token
    logprobs: NDArray[np.float32]  # [W], nats, 0 where it did not
    scores: NDArray[np.float64]  # [W]
    about: Mapping[str, Any]
    scenario: str | None
    messages: tuple[Message, ...]

    @property
    def path(self) -> NDArray[np.int64]:
        """All tokens, [P + W]."""
        return np.concatenate([self.prompt, self.tokens])

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The spans of tokens that the policy wrote, in `tokens`."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.mask, [False]]).astype(np.int8)))
        return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


class ResponseChains(NamedTuple):
    """Everything per token of a response."""

    prompt_token_ids: TokenIds
    completion_token_ids: TokenIds
    logprobs: Logprobs
    loss_mask: LossMask
    branches: tuple[Branch, ...]
    turns: tuple[ResponseTurn, ...]


def read_output(queue: SampleQueue, sample: Sample) -> Output:
    """Return the output that a sample is. Raises UndecodableEvent if it is none that can be trained on."""
    names = [name for name in (*sample_fields.NEEDED, *sample_fields.OPTIONAL) if name in sample.fields]
    if missing := [name for name in sample_fields.NEEDED if name not in names]:
        raise UndecodableEvent(
            f"{sample.key} has no {', '.join(missing)}; verl has them with "
            "actor_rollout_ref.rollout.calculate_log_probs=true and a score for each response"
        )
    fields = queue.get([(name, sample.fields[name].places) for name in names])
    return output_of(str(sample.key), dict(zip(names, fields, strict=True)))


def output_of(key: str, values: Mapping[str, FieldValue]) -> Output:
    """Return the output that these fields are. Raises UndecodableEvent, which names the key."""
    try:
        prompt, tokens, mask, logprobs, scores = (array(values[name]) for name in sample_fields.NEEDED)
        about, scenario = value_of(values.get(ABOUT)), value_of(values.get("data_source"))
        messages = _messages(value_of(values.get("raw_prompt")))
    except UndecodableEvent as exc:
        raise UndecodableEvent(f"{key}: {exc}") from exc
    lengths = {len(tokens), len(mask), len(logprobs), len(scores)}
    if lengths == {0} or len(lengths) > 1:
        raise UndecodableEvent(
            f"{key}: responses, response_mask, rollout_log_probs and rm_scores have {sorted(lengths)} tokens; "
            "expected as many of each"
        )
    written = mask.astype(bool)
    return Output(
        prompt.astype(np.int64),
        tokens.astype(np.int64),
        written,
        np.where(written, logprobs, 0).astype(np.float32),
        scores.astype(np.float64),
        about if isinstance(about, dict) else {},
        scenario if isinstance(scenario, str) else None,
        messages,
    )


def _messages(messages: Any) -> tuple[Message, ...]:
    """Return the messages of a prompt that are texts with a role; none if one is anything else."""
    texts = [
        Message(role=message["role"], content=message["content"])
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    ]
    return tuple(texts) if texts and len(texts) == len(messages) else ()


def chains_of(outputs: Sequence[Output]) -> ResponseChains:
    """Return what the outputs of a session come to. Raises ValueError for tokens or logprobs that are none."""
    first = outputs[0]
    branches, starts = [], [0]
    for number, output in enumerate(outputs[1:], 1):
        shared = _common_length(first.path, output.path[: len(output.prompt)])
        branches.append(_branch(number, output, shared))
        starts.append(len(output.prompt) - shared)
    return ResponseChains(
        TokenIds.of(first.prompt.tolist()),
        TokenIds.of(first.tokens.tolist()),
        Logprobs.of(first.logprobs.tolist()),
        LossMask(first.mask.astype(np.uint8).tobytes()),
        tuple(branches),
        tuple(_turns(outputs, starts)),
    )


def _common_length(path: NDArray[np.int64], prompt: NDArray[np.int64]) -> int:
    """Return with how many tokens of the path a prompt begins."""
    length = min(len(path), len(prompt))
    differs = np.flatnonzero(path[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length


def _branch(number: int, output: Output, shared: int) -> Branch:
    own = len(output.prompt) - shared
    return Branch(
        continuity="forks" if shared else "first",
        reason=f"output {number} of its session",
        leaves=0,
        shared_tokens=shared,
        finish_reason="stop",
        completion_token_ids=TokenIds.of(output.path[shared:].tolist()),
        logprobs=Logprobs.of([0.0] * own + output.logprobs.tolist()),
        loss_mask=LossMask(bytes(own) + output.mask.astype(np.uint8).tobytes()),
    )


def _turns(outputs: Sequence[Output], starts: Sequence[int]) -> Iterator[ResponseTurn]:
    """Yield every span that the policy wrote, with the scores that came until the next one."""
    number = 0
    for chain, (output, begin) in enumerate(zip(outputs, starts, strict=True)):
        spans = output.spans
        ends = [*(start for start, _ in spans[1:]), len(output.tokens)]
        for place, ((start, end), until) in enumerate(zip(spans, ends, strict=True)):
            scored = output.scores[0 if place == 0 else start : until].sum() if chain == len(outputs) - 1 else 0.0
            reward = _exact(float(scored), outputs[-1], is_only=len(spans) == 1)
            yield ResponseTurn(number=number, chain=chain, start=begin + start, end=begin + end, reward=reward)
            number += 1


def _exact(scored: float, output: Output, *, is_only: bool) -> float:
    """Return a score as this log has it, where the sample's is that one in fewer digits."""
    recorded = output.about.get("reward")
    if isinstance(recorded, float | int) and float(np.float32(recorded)) == scored and (scored or is_only):
        return float(recorded)
    return scored
