"""The span of an event, and the spans of an iteration that are no events.

    event, its trace, where and when it was written ──► Span ──► streams/observability/tracing/export.py

    Task             submit  by its producer, or by the agent that read it without a trace
    Response         rl.sample  one slot, for the duration of its sampling
    Reward           rl.reward  the score of one source
    AdvantagedGroup  join    from the first record of its task until it is written
    Batch            batch   from the oldest of its groups until it is written
    AdapterEvent     rl.train  (kind trained) from loading its groups until it is announced
                     decide  any other kind: promoted, rejected, canary_started, …
    none             rl.loop  from the oldest group of a batch until its version is announced
                     rl.sync  the weights of a version reach the engine of a policy agent

Attributes have the names of OpenTelemetry's semantic conventions for messaging and generative AI if those have one
(both are in development), and those proposed for reinforcement learning: rl.* of
open-telemetry/semantic-conventions-genai, issue 88. All others begin with `streamward.`.

Texts are left out: no prompt, answer, rationale or token leaves the log this way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from schemas.conventions import has_scores
from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, Event, Response, Reward, Task
from streams.observability.trace_context import Context, child, headers_of, loop_of

Value = str | bool | int | float | tuple[str, ...]
Kind = Literal["INTERNAL", "CLIENT", "PRODUCER"]


class Trace(NamedTuple):
    """The trace of an event that is about to be written."""

    context: Context
    parent: Context | None = None
    links: tuple[Context, ...] = ()

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers of its record."""
        return headers_of(self.context)


class Span(NamedTuple):
    """One span, independent of OpenTelemetry's packages."""

    name: str
    kind: Kind
    trace: Trace
    began_ms: float
    ended_ms: float
    attributes: Mapping[str, Value]
    error: str | None
    """The kind of failure in one word, or None."""


def span_of(event: Event, trace: Trace, record: Coordinates, *, began_ms: float | None, ended_ms: float) -> Span:
    """Return the span of an event with these coordinates. It begins when the event was created, by default."""
    name, kind, event_id = _identity(event)
    if isinstance(event, Response | Reward):  # they carry their duration
        began_ms, ended_ms = event.created_at - event.latency_ms, event.created_at
    elif began_ms is None:
        began_ms = getattr(event, "created_at", ended_ms)
    attributes: dict[str, Value | None] = {
        "messaging.system": "kafka",
        "messaging.message.id": event_id,
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
        "messaging.operation.type": "send",
        "messaging.operation.name": name,
        **dict(_attributes(event)),
    }
    return Span(name, kind, trace, min(began_ms, ended_ms), ended_ms, _present(attributes), _error(event))


def loop_span(version: AdapterEvent, batch: Context, *, began_ms: float) -> Span:
    """Return the span of the iteration that made `version`, which ends now; `batch` is the context of its batch."""
    attributes: dict[str, Value | None] = {
        "streamward.policy": version.policy,
        "streamward.adapter_version": version.version,
        "rl.loop.iteration": version.last_batch,
        "rl.algorithm": version.recipe.get("trainer.loss"),
        **dict(_of_step(version.metrics)),
    }
    trace, ended_ms = Trace(loop_of(batch)), max(began_ms, time.time() * 1000)
    return Span("rl.loop", "INTERNAL", trace, began_ms, ended_ms, _present(attributes), None)


def sync_span(
    announced: Context, process: str, attributes: Mapping[str, Value | None], *, began_ms: float, error: str | None
) -> Span:
    """Return the span of loading a version in `process`, which ends now; `announced` is the context of its record.

    `error` is the reason why it could not be loaded, in one word.
    """
    trace = Trace(child(announced, f"sync {announced.span_id} {process}"), announced)
    present = _present({**attributes, "rl.sync.destination": process})
    return Span("rl.sync", "INTERNAL", trace, began_ms, max(began_ms, time.time() * 1000), present, error)


def _present(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _identity(event: Event) -> tuple[str, Kind, str]:
    """Return name, kind and the id of the event."""
    match event:
        case Task():
            return "submit", "PRODUCER", event.task_id
        case Response():
            return "rl.sample", "CLIENT" if event.engine.startswith("vllm") else "INTERNAL", event.response_id
        case Reward():
            return "rl.reward", "PRODUCER", event.reward_id
        case AdvantagedGroup():
            return "join", "PRODUCER", event.group_id
        case Batch():
            return "batch", "PRODUCER", event.batch_id
        case AdapterEvent():
            return "rl.train" if event.kind == "trained" else "decide", "PRODUCER", event.event_id
    raise TypeError(f"{type(event).__name__} has no span")


def _error(event: Event) -> str | None:
    if isinstance(event, Response) and event.error is not None:
        return "response_failed"
    if isinstance(event, Reward) and event.error is not None:
        return "score_failed"
    return event.dropped_reason if isinstance(event, AdvantagedGroup) else None


def _attributes(event: Event) -> Iterator[tuple[str, Value | None]]:
    yield "streamward.policy", getattr(event, "policy", None)
    yield "streamward.task_id", getattr(event, "task_id", None)
    match event:
        case Task():
            yield "streamward.purpose", event.purpose
            yield "streamward.scenario", event.scenario
            yield "streamward.group_size", event.group_size
        case Response():
            yield from _of_response(event)
        case Reward():
            yield "streamward.response_id", event.response_id
            yield "streamward.slot", event.slot
            yield "gen_ai.response.id", event.response_id
            yield "gen_ai.evaluation.name", event.source
            yield "gen_ai.evaluation.score.value", event.value
            yield "rl.reward.score", event.value
        case AdvantagedGroup():
            yield "streamward.purpose", event.purpose
            yield "streamward.adapter_version", event.adapter_version
            yield "streamward.responses", len(event.responses)
            yield "streamward.left_out", len(event.left_out)
            yield "streamward.complete", event.complete
            if has_scores(event):
                yield "streamward.reward_mean", event.reward_mean
                yield "streamward.reward_std", event.reward_std
        case Batch():
            yield "messaging.batch.message_count", event.groups
            yield "streamward.sequence", event.sequence
            yield "rl.loop.iteration", event.sequence
            yield "streamward.responses", event.responses
            yield "streamward.loss_tokens", event.loss_tokens
            yield "streamward.dropped", len(event.dropped)
        case AdapterEvent():
            yield from _of_adapter(event)


def _of_response(event: Response) -> Iterator[tuple[str, Value | None]]:
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.provider.name", event.engine
    yield "gen_ai.request.model", event.policy
    yield "gen_ai.response.model", f"{event.policy}/{event.adapter_version}"
    yield "gen_ai.response.id", event.response_id
    yield "gen_ai.response.finish_reasons", (event.finish_reason,)
    yield "gen_ai.usage.input_tokens", event.prompt_tokens
    yield "gen_ai.usage.output_tokens", event.completion_tokens
    yield "gen_ai.request.temperature", event.sampling.temperature
    yield "gen_ai.request.top_p", event.sampling.top_p
    yield "gen_ai.request.max_tokens", event.sampling.max_tokens
    yield "gen_ai.request.seed", event.sampling.seed
    yield "streamward.adapter_version", event.adapter_version
    yield "streamward.sampling_id", event.sampling_id
    yield "streamward.slot", event.slot
    yield "rl.sample.batch_size", event.group_size


def _of_adapter(event: AdapterEvent) -> Iterator[tuple[str, Value | None]]:
    yield "streamward.adapter_version", event.version
    yield "streamward.kind", event.kind
    yield "streamward.actor", event.actor
    yield "streamward.reason", event.reason
    yield "streamward.expected_version", event.expected_version
    yield "streamward.verdict", event.verdict
    if event.kind == "trained":
        yield from _of_step(event.metrics)
        for name, value in event.metrics.items():
            if math.isfinite(value):
                yield f"streamward.step.{name}", value


def _of_step(metrics: Mapping[str, float]) -> Iterator[tuple[str, Value | None]]:
    for name, metric in (("rl.train.batch_size", "responses"), ("rl.train.tokens", "tokens")):
        yield name, None if metric not in metrics else int(metrics[metric])
    loss = metrics.get("loss", math.nan)
    yield "rl.train.loss", loss if math.isfinite(loss) else None
