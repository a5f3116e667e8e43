"""What every engine takes and returns: an engine turns tasks and an adapter version into tokens.

    [SamplingRequest] + the version being served ──► [[Completion] * group_size]

Token ids are those that were sampled, never re-tokenized text. Each has one logprob, under the distribution it was
sampled from (temperature and top_p applied). The engine reports which version it served; the policy agent chooses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schemas.events import FinishReason, Message, Sampling, Task
from streams.observability.tracing.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """One attempt at all slots of one task."""

    sampling_id: str
    task: Task
    trace: Context | None = None
    """Of the task, for an engine that asks somebody else."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer."""
        return self.task.messages

    @property
    def sampling(self) -> Sampling:
        """How to draw tokens."""
        return self.task.sampling

    @property
    def draw_key(self) -> str:
        """Seeds the random numbers of this sampling: the task's seed and id, or the sampling id if it has no seed."""
        return self.sampling_id if self.sampling.seed is None else f"{self.sampling.seed} {self.task.task_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One slot's result. A slot that failed for good has `error`, finish_reason "error", and no tokens."""

    slot: int
    text: str
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]  # the end-of-turn token included when it was sampled
    logprobs: tuple[float, ...]  # nats, float32 values, one per completion token
    error: str | None = None


class Engine(Protocol):
    """A model being served. One thread calls it."""

    name: str
    base_digest: str
    tokenizer_digest: str
    served_version: int
    """The adapter version the engine says it serves now; 0 is the base model."""

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version` from its verified local folder; version 0 has none. On EventError it keeps the old one."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request under `served_version`; outer order as given, inner order by slot.

        A request that can never be answered (a prompt longer than the context) gives completions with `error`.
        """

    def close(self) -> None:
        """Release everything the engine holds."""


def failed(slot: int, error: str) -> Completion:
    """Return the completion of a slot that failed for good."""
    return Completion(
        slot=slot,
        text="",
        finish_reason="error",
        prompt_token_ids=(),
        completion_token_ids=(),
        logprobs=(),
        error=error,
    )


def uniform(key: str, slot: int, step: int) -> float:
    """Return a number in [0, 1) with 53 random bits for this draw of this slot: a function of its arguments.

    >>> uniform("a", 0, 0) == uniform("a", 0, 0) != uniform("a", 0, 1)
    True
    """
    digest = hashlib.sha256(f"{key}\x1f{slot}\x1f{step}".encode()).digest()
    return float((int.from_bytes(digest[:8], "big") >> 11) / 2**53)
