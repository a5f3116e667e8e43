"""Write an engine's answers.

request, Completion ──► Response ──► encoded, if it fits ──► responses
                             └── it does not: written as failed
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from schemas import serde
from schemas.conventions import COST
from schemas.events import OutsideModel, Response, derive_id
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.engines.protocol import Completion, SamplingRequest
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import Tracer
from streams.settings.model import Topics

log = logging.getLogger("streamward.policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """Values about the engine that every response of a round records."""

    adapter_version: int
    engine: str
    base_digest: str
    tokenizer_digest: str
    created_at: int
    latency_ms: float
    trained_batches: int | None = None
    """`Version.recorded_batches` of that version."""
    outside: OutsideModel | None = None
    """The outside model that answered, with its prices; None: the engine did."""


def response(request: SamplingRequest, completion: Completion, served: ServedVersion) -> Response:
    """Return the record of one slot. Raises ValueError for tokens that cannot be recorded."""
    task = request.task
    good = completion.error is None
    notes = {} if completion.origin is None else dict(completion.origin.notes)
    counts = completion.counts or (len(completion.prompt_token_ids), len(completion.completion_token_ids))
    return Response(
        response_id=derive_id(request.sampling_id, completion.slot),
        sampling_id=request.sampling_id,
        task_id=task.task_id,
        created_at=served.created_at,
        traceparent=task.traceparent,
        metadata={"purpose": task.purpose} | _cost(completion, served.outside) | notes,
        subject=task.subject,
        policy=task.policy,
        slot=completion.slot,
        group_size=task.group_size,
        adapter_version=served.adapter_version,
        trained_batches=served.trained_batches,
        base_digest=served.base_digest,
        tokenizer_digest=served.tokenizer_digest,
        engine=served.engine,
        finish_reason=completion.finish_reason if good else "error",
        error=completion.error,
        prompt_tokens=counts[0],
        completion_tokens=counts[1] if good else 0,
        latency_ms=served.latency_ms,
        text=completion.text if good else "",
        sampling=task.sampling,
        prompt_version=None if task.prompt_version is None else str(task.prompt_version),
        prompt_token_ids=TokenIds.of(completion.prompt_token_ids if good else ()),
        completion_token_ids=TokenIds.of(completion.completion_token_ids if good else ()),
        logprobs=Logprobs.of(completion.logprobs if good else ()),
        loss_mask=LossMask(b"\1" * len(completion.completion_token_ids) if good else b""),
    )


def _cost(completion: Completion, outside: OutsideModel | None) -> dict[str, str]:
    """Return the cost of an outside model's answer; nothing for the engine's own, or without a recorded price."""
    counts = completion.counts
    if counts is None or outside is None or outside.prompt_usd is None or outside.completion_usd is None:
        return {}
    return {COST: repr((counts.prompt * outside.prompt_usd + counts.completion * outside.completion_usd) / 1e6)}


class ResponseWriter:
    """Hands responses to the log."""

    def __init__(self, settings: Topics, producer: Producer, meter: Meter, tracer: Tracer) -> None:
        self._topic = topics(settings)["responses"].name
        self._max_bytes = settings.max_record_bytes
        self._producer, self._meter, self._tracer = producer, meter, tracer

    def write(self, request: SamplingRequest, completion: Completion, served: ServedVersion) -> None:
        """Hand one response to the log; one that cannot be written becomes a failed one."""
        try:
            slot = response(request, completion, served)
            payload = self._encode(slot)
        except (ValueError, TypeError) as exc:  # an EncodeError, or the views'
            log.error("task %s: slot %d failed: %s", request.task.task_id, completion.slot, exc)
            slot = response(request, replace(completion, error=str(exc)), served)
            payload = serde.encode(slot)
        _count(self._meter, slot)
        trace = self._tracer.follows(request.trace, slot.response_id)
        on_ack, headers = self._tracer.on_ack(slot, trace), tracing.headers_of(trace)
        self._producer.send_bytes(self._topic, slot.task_id.encode(), payload, on_ack=on_ack, headers=headers)

    def _encode(self, slot: Response) -> bytes:
        payload = serde.encode(slot)
        if len(payload) > self._max_bytes:
            raise serde.EncodeError(
                f"the response has {len(payload)} bytes, and topics.max_record_bytes is {self._max_bytes}; ask for "
                "fewer tokens, or raise it"
            )
        return payload


def _count(meter: Meter, slot: Response) -> None:
    """Count one response that was written."""
    meter.add(catalog.RESPONSES, slot.policy, slot.finish_reason)
    meter.add(catalog.TOKENS, slot.policy, by=slot.completion_tokens)
    meter.add(catalog.PROMPT_TOKENS, slot.policy, by=slot.prompt_tokens)
