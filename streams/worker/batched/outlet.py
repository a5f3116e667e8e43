"""Write the stages' results, without waiting: the worker's checkpoints ensure the order.

Event ──► encoded, counted ──► LoopWorker.send ──► topic
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from schemas.events import AdapterEvent, DeadLetter, Event
from streams.kafka.record import encoded, trace_of
from streams.kafka.topics import Topic, topics
from streams.observability import catalog
from streams.observability.tracing.tracer import Trace, Traced, headers_of

if TYPE_CHECKING:
    from streams.worker.batched.epoch import OnAck
    from streams.worker.batched.worker import LoopWorker


class LoopOutlet:
    """Writes events of one stage to their topics. Its methods for stages are awaited, like Faust's."""

    def __init__(self, worker: LoopWorker, stage: str) -> None:
        """`stage` is the writer's name, for the meter."""
        self._worker, self._stage = worker, stage
        self._topics = {topic.event: topic for topic in topics(worker.settings.topics).values()}

    async def emit(self, event: Event) -> None:
        """Write one event to its topic. Raises EventError if it is too large for the topic."""
        self.write(event)

    async def emit_traced(self, event: Traced, trace: Trace | None, *, began_ms: float | None = None) -> None:
        """Write one event under its trace, with a span that began at `began_ms`. Raises as `emit`."""
        on_ack = self._worker.traces.on_ack(event, trace, began_ms=began_ms)
        self._write(event, headers_of(trace), on_ack)

    def write(self, event: Event) -> None:
        """Write one event, a dead letter under the trace of its source. Raises as `emit`."""
        self._write(event, trace_of(event) if isinstance(event, DeadLetter) else {}, None)

    def _write(self, event: Event, headers: Mapping[str, bytes], on_ack: OnAck | None) -> None:
        topic, meter = self._topics[type(event)], self._worker.meter
        self.write_bytes(topic, *encoded(event, topic), headers=headers, on_ack=on_ack)
        if isinstance(event, DeadLetter):
            meter.add(catalog.DEAD_LETTERS, self._stage, event.reason)
        elif isinstance(event, AdapterEvent):
            meter.add(catalog.DECISIONS, event.policy, event.kind)

    def write_bytes(
        self, topic: Topic, key: bytes | None, payload: bytes, *, headers: Mapping[str, bytes], on_ack: OnAck | None
    ) -> None:
        """Write an encoded record."""
        self._worker.send(topic.name, key, payload, headers=headers, on_ack=on_ack)
        self._worker.meter.add(catalog.EVENTS_OUT, self._stage, topic.label)
