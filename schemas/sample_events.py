"""Samples of another trainer's queue, and who may write to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import KIB, Int, Millis
from schemas.tokens import Octets

SampleKind = Literal["put", "tagged", "cleared"]
FieldEncoding = Literal["tensor", "json", "msgpack"]
QueueKind = Literal["opened", "restored", "saved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleField:
    """A field of a sample, or a piece of one that is too large for a record."""

    name: str
    encoding: Annotated[FieldEncoding, "tensor: items one after the other, little-endian"]
    dtype: Annotated[str | None, "tensor: type of an item, e.g. int64"] = None
    shape: Annotated[tuple[int, ...], "tensor: of the whole field"] = ()
    data: Annotated[Octets, "the whole field, or this part's piece of it"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEvent:
    """Fields of a sample were put into a queue, or it was tagged or cleared. A queue is the fold of these."""

    event_id: Annotated[str, "uuid5(sample_id, writer, sequence, part)"]
    sample_id: Annotated[str, "key of the record: queue/epoch.index, by which it was first put"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: SampleKind
    queue: str
    epoch: Annotated[Int, "which opening of the queue the writer belongs to; a superseded one's records do not count"]
    writer: Annotated[str, "the process that wrote it"]
    sequence: Annotated[int, "how many operations of the writer came before this one"]
    part: Annotated[Int, "of a put with more bytes than a record takes: it counts when all parts are in the log"] = 0
    parts: Int = 1
    partition: Annotated[str, "of the queue, e.g. train"] = ""
    key: Annotated[str | None, "by which the queue's users name it"] = None
    tags: Annotated[str | None, "JSON; null: as they were"] = None
    fields: Annotated[tuple[SampleField, ...], "put: those that are new or replaced"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """A queue of samples was opened for writing, restored or saved. The newest opening alone may write."""

    MOST_BYTES: ClassVar[int] = 64 * KIB
    event_id: Annotated[str, "uuid5(queue, kind, epoch, writer, and where samples ended)"]
    queue: Annotated[str, "key of the record: its name"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: QueueKind
    epoch: Annotated[Int, "compare and swap: one more than that of the opening before it"]
    writer: str
    reason: str
    samples: Annotated[int, "restored, saved: how many the queue had"] = 0
    digest: Annotated[str | None, "restored, saved: sha256 over them and the places of their fields"] = None
    counts: Annotated[dict[str, int], "restored: what else the log had, e.g. cleared"] = field(default_factory=dict)
    checkpoint: Annotated[str | None, "restored: event_id of the saved state it went back to; null: the newest"] = None
    starts: Annotated[tuple[int, ...], "restored, saved: by partition of samples, the first record still needed"] = ()
    ends: Annotated[tuple[int, ...], "restored, saved: by partition of samples, where it ended"] = ()


def sample_problems(event: SampleEvent) -> Iterator[str]:
    """Return one sentence for each rule that a sample breaks."""
    if not 0 <= event.part < event.parts:
        yield f"part is {event.part} of {event.parts}; expected 0 or more, and less than parts"
    if (event.kind == "put") != bool(event.fields):
        yield f"kind is {event.kind} and it has {len(event.fields)} fields; a put alone has some"
    if event.kind == "tagged" and event.tags is None:
        yield "kind is tagged but tags is null; expected a JSON object"


def queue_problems(event: QueueEvent) -> Iterator[str]:
    """Return one sentence for each rule that a queue breaks."""
    if event.epoch < 1:
        yield f"epoch is {event.epoch}; expected 1 or more"
    if (event.kind == "opened") != (event.digest is None):
        yield f"kind is {event.kind} but digest is {event.digest!r}; what is restored or saved alone has one"
    if event.checkpoint is not None and event.kind != "restored":
        yield f"kind is {event.kind} but checkpoint is {event.checkpoint}; what is restored alone has one"
