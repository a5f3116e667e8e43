"""What the join takes from an event, the same however the event was decoded.

    Response, Reward ── values_of ────────────────────► the values of FIELDS ──► incoming ──► for the reducer,
    columns of many (streams/tools/arrow/events.py) ──►                                       and for the group's record

Only these few fields are looked at. So a replay reads them from columns, and makes no event of thousands of records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from schemas.events import Coordinates, Event, GroupControl, Response, ResponseTurn, Reward, Sampling, Task
from streams.stages.advantages.digests import response_digest, shared_digest, short_id
from streams.stages.advantages.state import ResponseCandidate, ResponseRef, RewardRef, SourceScore

GroupEvent = Task | ResponseCandidate | RewardRef | GroupControl
"""What the reducer folds."""

SAMPLING_FIELDS = tuple(field.name for field in dataclasses.fields(Sampling))


class ResponseBody(NamedTuple):
    """What the record of a group copies from a response; what is per token stays bytes."""

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


FIELDS: dict[type[Event], tuple[str, ...]] = {
    Response: (
        *("task_id", "response_id", "sampling_id", "slot", "adapter_version", "group_size", "policy"),
        *("error", "finish_reason", "text", "engine", "base_digest", "tokenizer_digest", "latency_ms"),
        *("prompt_token_ids.data", "completion_token_ids.data", "logprobs.data", "loss_mask.data", "turns"),
        *(f"sampling.{name}" for name in SAMPLING_FIELDS),
    ),
    Reward: ("task_id", "reward_id", "response_id", "source", "value", "components", "steps"),
}
"""The fields that the join looks at, as `operator.attrgetter` takes them; of any other event, all."""


class Incoming(NamedTuple):
    """An event, as the join takes it."""

    task_id: str
    event: GroupEvent
    body: ResponseBody | None = None
    """Of a response that did not fail."""


def values_of(event: Any) -> Any:
    """Return the values of its FIELDS; the event itself if it has none."""
    getter = _GETTERS.get(type(event))
    return event if getter is None else getter(event)


_GETTERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    event: attrgetter(*names) for event, names in FIELDS.items()
}


def incoming(kind: type[Event], values: Any, at: Coordinates, timestamp_ms: int) -> Incoming:
    """Return what was read of an event at these coordinates; `values` is as `values_of` returns it."""
    if kind is Response:
        return _response(values, at, timestamp_ms)
    if kind is Reward:
        task_id, reward_id, response_id, source, value, components, steps = values
        score = SourceScore(value, components, short_id(reward_id), at.partition, at.offset, timestamp_ms, steps)
        return Incoming(task_id, RewardRef(response_id, source, score))
    return Incoming(values.task_id, values)


def _response(values: tuple[Any, ...], at: Coordinates, timestamp_ms: int) -> Incoming:
    task_id, response_id, sampling_id, slot, version, size, policy, *others = values
    error, finish_reason, text, engine, base, tokenizer, latency_ms, *others = others
    prompt, completion, logprobs, mask, turns, *drawn = others
    body = ResponseBody(base, tokenizer, latency_ms, prompt, completion, logprobs, mask, tuple(drawn), turns)
    shared = "" if error is not None else shared_digest(body)
    content = response_digest(body, text, engine, finish_reason, shared)
    failed = error is not None
    ref = ResponseRef(response_id, at.partition, at.offset, timestamp_ms, failed, finish_reason, content)
    candidate = ResponseCandidate(sampling_id, slot, version, size, policy, shared, ref)
    return Incoming(task_id, candidate, None if failed else body)
