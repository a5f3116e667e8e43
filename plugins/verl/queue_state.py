"""A queue of samples as the fold of its events: who may write to it, and which records count.

    queues[queue]: opened, restored, saved ──► fold, compare and swap ──► QueueState ──► spans of `samples` that count

Opening a queue takes it from all earlier openings: the epoch goes up by one, and the first of two openings with the
same number wins. A restore names, for each partition of `samples`, the offset up to which records of earlier epochs
count. A superseded writer that does not know it yet may write on after that offset, and changes nothing.

    samples[0]   ├─── epoch 1 ───┼── epoch 2, and superseded writes of epoch 1 ──►
                 0            ends[0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from schemas.events import Coordinates, QueueEvent


class QueueSpan(NamedTuple):
    """Records of one epoch that count, in every partition."""

    epoch: int
    starts: tuple[int, ...]
    """By partition: the first offset."""
    ends: tuple[int, ...] | None
    """By partition: the one after the last; None: it is still written to."""

    def covers(self, partition: int, offset: int, epoch: int) -> bool:
        """Return whether a record counts."""
        return (
            epoch == self.epoch
            and self.starts[partition] <= offset
            and (self.ends is None or offset < self.ends[partition])
        )


class Saved(NamedTuple):
    """A state to which the queue can be restored."""

    event: QueueEvent
    spans: tuple[QueueSpan, ...]
    """Those that counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """Everything that the events of one queue say."""

    queue: str
    epoch: int = 0
    """Of the newest opening; 0: it was never opened."""
    writer: str = ""
    """The process that opened it."""
    spans: tuple[QueueSpan, ...] = ()
    """In the order of their records."""
    saved: Mapping[str, Saved] = field(default_factory=dict)
    """By the id of its event."""
    newest: QueueEvent | None = None
    """The newest that says what the queue had: restored or saved."""
    superseded: int = 0
    """Events that changed nothing."""

    def covers(self, partition: int, offset: int, epoch: int) -> bool:
        """Return whether a record of `samples` counts."""
        return any(span.covers(partition, offset, epoch) for span in reversed(self.spans))


def refusal(state: QueueState, event: QueueEvent) -> str | None:
    """Return why an event changes nothing about a queue in this state; None if it takes effect."""
    if event.kind == "opened":
        return None if event.epoch == state.epoch + 1 else f"epoch {state.epoch} was opened by {state.writer}"
    if event.epoch != state.epoch:
        return f"it is of epoch {event.epoch}, and {state.writer} has opened epoch {state.epoch}"
    return None if event.checkpoint is None or event.checkpoint in state.saved else f"no checkpoint {event.checkpoint}"


def fold(state: QueueState, event: QueueEvent, _: Coordinates | None = None) -> QueueState:
    """Return a queue after an event; one of an opening that is not the newest changes nothing."""
    if refusal(state, event) is not None:
        return replace(state, superseded=state.superseded + 1)
    if event.kind == "opened":
        return replace(state, epoch=event.epoch, writer=event.writer)
    if event.kind == "saved":
        saved = Saved(event, close_spans(state.spans, event.ends))
        return replace(state, saved={**state.saved, event.event_id: saved}, newest=event)
    before = close_spans(state.spans, event.ends) if event.checkpoint is None else state.saved[event.checkpoint].spans
    return replace(state, spans=(*before, QueueSpan(event.epoch, event.ends, None)), newest=event)


def close_spans(spans: Sequence[QueueSpan], ends: tuple[int, ...]) -> tuple[QueueSpan, ...]:
    """Return the spans without what is at or after these offsets."""
    bounded = (span if span.ends is not None else span._replace(ends=ends) for span in spans)
    return tuple(span for span in bounded if span.starts != span.ends)
