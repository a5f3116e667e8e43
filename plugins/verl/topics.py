"""The topics of queues: what another trainer keeps in them, and who may write."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import NO_TENANT, TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="samples", event=events.SampleEvent, key="sample_id", kept=False,
        written_by="[the queue of another trainer](verl.md)", read_by="that trainer, people",
        tenant=NO_TENANT, reader=None, is_about="about a sample", audit="whole", causes=(),
        line=lambda sample_id, queue, kind, partition, key: f"sample {key or sample_id} {kind}: {partition} of {queue}",
        columns=(
            Column("sample", lambda e: e.sample_id, 20),
            Column("kind", lambda e: e.kind, 7),
            Column("partition", lambda e: e.partition, 10),
            Column("key", lambda e: e.key or "", 12),
            Column("fields", lambda e: ", ".join(one.name for one in e.fields)),
        ),
    ),
    TopicShape(
        label="queues", event=events.QueueEvent, key="queue", kept=True,
        written_by="[the queue of another trainer](verl.md)", read_by="that trainer, people",
        tenant=NO_TENANT, reader=None, is_about="about a queue", audit="whole", causes=("samples",),
        line=lambda queue, kind, reason: f"queue {queue} {kind}: {reason}",
        columns=(
            Column("queue", lambda e: e.queue, 16),
            Column("kind", lambda e: e.kind, 8),
            Column("epoch", lambda e: e.epoch, 5),
            Column("samples", lambda e: e.samples, 7),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
