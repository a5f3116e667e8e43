"""Engines: what turns a task and an adapter version into tokens.

    [SamplingRequest] + the version being served ──► [[Completion] * group_size]

Every engine gives the same thing: token ids as sampled, one logprob per token under the distribution that was sampled
from (temperature and top_p applied), and its own word for which version it served. Nothing is re-tokenized.

Not covered: choosing the version. That is the policy agent's business; an engine serves what it was told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schemas.events import FinishReason, Message, Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """One attempt at all slots of one task."""

    sampling_id: str
    task: Task

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer."""
        return self.task.messages

    @property
    def sampling(self) -> Sampling:
        """How to draw tokens."""
        return self.task.sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one slot became. A slot that failed for good has `error`, finish_reason "error", and no tokens."""

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
        """Serve `version` from its verified local folder; version 0 has none. Raises EventError, keeps the old one."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request under `served_version`; outer order as given, inner order by slot.

        A request that can never be answered (a prompt longer than the context) gives completions with `error`.
        """

    def close(self) -> None:
        """Give back what is held."""
