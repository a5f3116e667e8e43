"""The values that the join needs from events, the same however they were decoded.

    an event ── columns_of ───────────────────────────► columns of FIELDS ──► incoming ──► for the reducer,
    columns of many (streams/arrow/events.py) ──►                                          and for the group's record

Only these few fields are looked at. So a replay reads them from columns, without creating thousands of events. Each
record becomes a few tuples, made by `map` in a third of the time of a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

from schemas.conventions import OUTSIDE_ENGINE
from schemas.events import AgentProgram, Branch, Event, GroupControl, Response, ResponseTurn, Reward, Sampling, Task
from streams.kafka.record import Record, made_of
from streams.stages.advantages.digests import response_digests, shared_digest, short_id
from streams.stages.advantages.state import ResponseCandidate, ResponseRef, RewardRef, SourceScore

GroupEvent = Task | ResponseCandidate | RewardRef | GroupControl
"""The part that the reducer folds."""

SAMPLING_FIELDS = tuple(field.name for field in dataclasses.fields(Sampling))


class ResponseBody(NamedTuple):
    """Fields that a group copies from a response; values per token stay bytes."""

    base_digest: str
    tokenizer_digest: str
    latency_ms: float
    prompt_token_ids: bytes
    completion_token_ids: bytes
    logprobs: bytes
    loss_mask: bytes
    sampling: tuple[Any, ...]
    """The values of SAMPLING_FIELDS."""
    turns: tuple[ResponseTurn, ...] = ()
    branches: tuple[Branch, ...] = ()
    success: bool | None = None
    trained_batches: int | None = None
    prompt_version: str | None = None
    outside: Sequence[int] | None = None
    """Prompt and completion tokens as counted by an outside model's server; None: the tokens are in the record."""
    agent_id: str | None = None
    program: AgentProgram | None = None


FIELDS: dict[type[Event], tuple[str, ...]] = {
    Response: (
        *("task_id", "response_id", "sampling_id", "slot", "adapter_version", "group_size", "policy"),
        *("error", "finish_reason", "text", "engine", "base_digest", "tokenizer_digest", "latency_ms"),
        *("prompt_token_ids.data", "completion_token_ids.data", "logprobs.data", "loss_mask.data", "turns"),
        *("branches", "success", "trained_batches", "prompt_version", "agent_id", "program"),
        *("prompt_tokens", "completion_tokens"),
        *(f"sampling.{name}" for name in SAMPLING_FIELDS),
    ),
    Reward: ("task_id", "reward_id", "response_id", "source", "value", "components", "abstained", "steps"),
}
"""The fields that the join looks at, in the form of `operator.attrgetter`; of any other event, the whole event."""

Columns = Sequence[Sequence[Any]]
"""The values of each of FIELDS; of any other event, the events themselves."""


class Incoming(NamedTuple):
    """The join's view of an event."""

    task_id: str
    event: GroupEvent
    body: ResponseBody | None = None
    """Only of a response that did not fail."""


def columns_of(event: Any) -> Columns:
    """Return the columns of a single event."""
    getter = _GETTERS.get(type(event))
    return [[event]] if getter is None else [[value] for value in getter(event)]


_GETTERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    event: attrgetter(*names) for event, names in FIELDS.items()
}


def incoming(kind: type[Event], columns: Columns, records: Sequence[Record]) -> list[Incoming]:
    """Return the join's view of the events of this type in these records."""
    if not records:
        return []
    coordinates, timestamps, *_ = zip(*records, strict=True)
    _, partitions, offsets = zip(*coordinates, strict=True)
    if kind is Response:
        return _responses(columns, (partitions, offsets, timestamps))
    if kind is Reward:
        return _rewards(columns, (partitions, offsets, timestamps))
    return [Incoming(event.task_id, event) for (events,) in [columns] for event in events]


def _responses(columns: Columns, recorded: Columns) -> list[Incoming]:
    task_ids, response_ids, sampling_ids, slots, versions, sizes, policies, *rest = columns
    errors, reasons, texts, engines, bases, tokenizers, latencies, *rest = rest
    prompts, completions, logprobs, masks, turns, branches, successes, batches, prompt_versions, *rest = rest
    agents, programs, prompt_counts, completion_counts, *drawn = rest
    per_token = (prompts, completions, logprobs, masks)
    counts = zip(engines, prompt_counts, completion_counts, strict=True)
    outside = [count if engine == OUTSIDE_ENGINE else None for engine, *count in counts]
    of_agents = (turns, branches, successes, batches, prompt_versions, outside, agents, programs)
    copied = zip(bases, tokenizers, latencies, *per_token, zip(*drawn, strict=True), *of_agents, strict=True)
    bodies = list(map(made_of(ResponseBody), copied))
    failed = [error is not None for error in errors]
    # a trajectory's prompt is that of its first call, which its agent decides
    shared_prompts = [prompt if agent is None else b"" for prompt, agent in zip(prompts, agents, strict=True)]
    own_prompts = [b"" if agent is None else prompt for prompt, agent in zip(prompts, agents, strict=True)]
    shared = [
        "" if fails else shared_digest(body, prompt)
        for fails, body, prompt in zip(failed, bodies, shared_prompts, strict=True)
    ]
    contents = response_digests(bodies, own_prompts, texts, engines, reasons, shared)
    refs = map(made_of(ResponseRef), zip(response_ids, *recorded, failed, reasons, contents, strict=True))
    candidate_fields = zip(sampling_ids, slots, versions, sizes, policies, shared, refs, strict=True)
    candidates = map(made_of(ResponseCandidate), candidate_fields)
    joined_bodies = [None if fails else body for fails, body in zip(failed, bodies, strict=True)]
    return list(map(made_of(Incoming), zip(task_ids, candidates, joined_bodies, strict=True)))


def _rewards(columns: Columns, recorded: Columns) -> list[Incoming]:
    task_ids, reward_ids, response_ids, sources, values, components, abstained, steps = columns
    score_fields = zip(values, components, abstained, map(short_id, reward_ids), *recorded, steps, strict=True)
    refs = map(made_of(RewardRef), zip(response_ids, sources, map(made_of(SourceScore), score_fields), strict=True))
    return list(map(made_of(Incoming), zip(task_ids, refs, repeat(None))))
