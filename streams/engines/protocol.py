"""The protocols of engines: an engine turns prompts and an adapter version into tokens.

    Engine        rounds    [SamplingRequest] + the version being served ──► [[Completion] * group_size]
    TokenEngine   streams   Generation, with its version ──► TokenStream, at any time, all loaded versions together

Token ids are those that were sampled, never re-tokenized text. Each has one logprob, under the distribution it was
sampled from (temperature and top_p applied). The engine reports which version it served; the policy agent chooses it.

The policy agent samples tasks in rounds; agents' calls are streams. A round could be made of streams, but measurements
speak against it: 1.3 to 1.5 times the CPU time with the model in this process (a prompt's slots share one copy of its
keys and values in a round), twice with the scripted engine, and nine times or more of the client's with vLLM, where the
request for all slots of a task can also be retried as a whole (`make bench BENCH=sampling`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from schemas.events import FinishReason, Message, Sampling, Task
from streams.engines.constraint import Constraint
from streams.engines.rendering.token_table import TokenTable
from streams.engines.token_stream import AnswerOrigin, Generation, TokenStream
from streams.errors import EventError
from streams.observability.trace_context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """One attempt at all slots of one task."""

    sampling_id: str
    task: Task
    trace: Context | None = None
    """Trace of the task, for an engine that sends requests to servers."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer."""
        return self.task.messages

    @property
    def sampling(self) -> Sampling:
        """How to draw tokens."""
        return self.task.sampling

    def fork_tokens(self, tokenizer_digest: str) -> tuple[int, ...]:
        """Return the recorded tokens that the prompt consists of; none: its messages are rendered.

        Raises EventError if they are of another tokenizer than this one.
        """
        fork = self.task.fork
        if fork is None or not fork.token_ids:
            return ()
        if fork.tokenizer_digest != tokenizer_digest:
            error = f"it is a fork of run {fork.trajectory_id}, whose tokens are of another tokenizer; serve its model"
            raise EventError(error, reason="other_tokenizer")
        return tuple(fork.token_ids)

    @property
    def draw_key(self) -> str:
        """Seeds the random numbers of this sampling: the task's seed and id, or the sampling id if it has no seed."""
        return self.sampling_id if self.sampling.seed is None else f"{self.sampling.seed} {self.task.task_id}"


class TokenCounts(NamedTuple):
    """Token counts of an answer, from the server of an outside model."""

    prompt: int
    completion: int


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
    counts: TokenCounts | None = None
    """Token counts of an outside model's answer; None: the tokens are here."""
    origin: AnswerOrigin | None = None
    """Where it is from; None: the version and the engine of its round."""


NONE = -1
"""Version that an engine reports for a policy while it serves another policy's adapter."""


class Engine(Protocol):
    """A model being served. One thread calls it."""

    name: str
    base_digest: str
    tokenizer_digest: str

    @property
    def served_version(self) -> int:
        """The adapter version that the engine reports as served; 0 is the base model, NONE another policy's."""

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version` from its verified local folder; version 0 has none. On EventError it keeps the old one."""

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request under `served_version`; outer order as given, inner order by slot.

        A request that can never be answered (a prompt longer than the context) gives completions with `error`.
        """

    def close(self) -> None:
        """Release everything the engine holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounts:
    """The work of a `TokenEngine` now, and since its start."""

    rows_running: int = 0
    rows_waiting: int = 0
    cached_tokens: int = 0  # with keys and values in memory for the next turn; those of running rows not counted
    cached_bytes: int = 0
    prompt_tokens_run: int = 0
    prompt_tokens_reused: int = 0
    tokens_drawn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScores:
    """Logprobs of a text's tokens under a model: nats, at temperature 1 over all tokens."""

    logprobs: tuple[float, ...]
    """One per token except the first, which nothing precedes."""
    likeliest: tuple[tuple[tuple[int, float], ...], ...]
    """Likeliest tokens with logprobs, in order, at each place except the first, and at the one after the text."""


class TokenEngine(Protocol):
    """Tokens in, tokens out: a model that answers any number of generations concurrently. Any thread may call it."""

    name: str
    base_digest: str
    tokenizer_digest: str
    context_tokens: int
    """Maximum tokens of a prompt and its answer together."""
    token_table: TokenTable

    def load(self, version: int, adapter: Path | None) -> None:
        """Make `version` ready from its verified local folder; 0, without one, always is. Raises EventError."""

    def unload(self, version: int) -> None:
        """Take no more generations for `version`; those in progress finish."""

    def constrain(self, grammar: str) -> Constraint:
        """Compile the grammar of an answer. Raises EventError (bad_constraint)."""

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer. Raises EventError if it can never be answered, RefusedError if the engine is closed.

        Reasons of EventError: prompt_too_long, bad_tokens, bad_sampling, unknown_version.
        """

    def score(self, version: int, tokens: tuple[int, ...], top: int) -> TextScores:
        """Return the logprob of each token after those before it, and the `top` likeliest of each place; it blocks.

        Raises as `submit` does; EventError (cannot_score) from an engine that has no logprobs of a text.
        """

    def counts(self) -> EngineCounts:
        """Return the present work."""

    def close(self) -> None:
        """End every generation that is not done with an error, and release everything the engine holds."""


class EnginePart(NamedTuple):
    """The requests to one version in a round of several."""

    version: int
    adapter: Path | None
    """Its verified local folder; None for the base model."""
    requests: Sequence[SamplingRequest]


@runtime_checkable
class MixedEngine(Protocol):
    """An `Engine` that answers for several versions, of several policies, in one round."""

    def sample_mixed(self, parts: Sequence[EnginePart]) -> list[list[list[Completion]]]:
        """Return the results of `serve` and `sample` for each part, up to rounding. The served version stays.

        Raises EventError (bad_adapter) if an adapter cannot be used.
        """


def check_text(version: int, tokens: tuple[int, ...], engine: TokenEngine, versions: Collection[int]) -> None:
    """Raise EventError if this engine, with these versions loaded, can never score a text."""
    text = Generation(prompt_token_ids=tokens, sampling=Sampling(), draw_key="", version=version)
    check_generation(text, engine, versions)


def check_generation(generation: Generation, engine: TokenEngine, versions: Collection[int]) -> None:
    """Raise EventError if this engine, with these versions loaded, can never answer."""
    prompt, sampling = generation.prompt_token_ids, generation.sampling
    if generation.version not in versions:
        loaded = ", ".join(map(str, sorted(tuple(versions))))  # which another thread may change
        error = f"adapter version {generation.version} is not loaded, only {loaded}; load it, or ask one of these"
        raise EventError(error, reason="unknown_version")
    unknown = engine.token_table.first_unknown(prompt)
    if not prompt or unknown is not None:
        got = f"id {unknown}, which is no token" if prompt else "no tokens"
        error = f"prompt: {got}, expected at least one token with ids from 0 to {engine.token_table.size - 1}"
        raise EventError(f"{error}; use the tokenizer of the served model", reason="bad_tokens")
    if len(prompt) >= engine.context_tokens:
        error = f"{len(prompt)} prompt tokens do not fit the context of {engine.context_tokens}; shorten it"
        raise EventError(error, reason="prompt_too_long")
    if sampling.max_tokens < 1 or not 0 <= sampling.temperature < math.inf or not 0 < sampling.top_p <= 1:
        values = f"max_tokens {sampling.max_tokens}, temperature {sampling.temperature}, top_p {sampling.top_p}"
        error = f"sampling: {values}; expected max_tokens >= 1, temperature >= 0, and top_p above 0 and at most 1"
        raise EventError(error, reason="bad_sampling")


def check_folder(version: int, adapter: Path | None) -> None:
    """Raise EventError (bad_adapter) if this cannot be the folder of this version."""
    if (adapter is None) != (version == 0) or (adapter and not adapter.is_dir()):
        raise EventError(
            f"adapter version {version}: its folder is {adapter}; expected none for version 0, else one that exists"
            "; check the uri of the adapter event",
            reason="bad_adapter",
        )


def failed_slot(slot: int, error: str) -> Completion:
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


def failed_slots(request: SamplingRequest, error: str) -> list[Completion]:
    """Return the answer to a request in which every slot failed for good."""
    return [failed_slot(slot, error) for slot in range(request.task.group_size)]


def uniform(key: str, slot: int, step: int) -> float:
    """Return a number in [0, 1) with 53 random bits for this draw of this slot: a function of its arguments.

    >>> uniform("a", 0, 0) == uniform("a", 0, 0) != uniform("a", 0, 1)
    True
    """
    digest = hashlib.sha256(f"{key}\x1f{slot}\x1f{step}".encode()).digest()
    return float((int.from_bytes(digest[:8], "big") >> 11) / 2**53)
