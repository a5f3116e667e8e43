"""Take a queue, find what it holds, save that and go back to it.

    queues: opened (epoch n + 1) ──► where samples end ──► fold ──► queues: restored, with what was found
                                                             └────► the samples, each with the places of its fields
    save ──► the same fold ──► queues: saved            restore(checkpoint) ──► the samples as they were then

A restore without a checkpoint is what a crash needs: everything acknowledged is there, and nothing that was cleared.
With one, what was cleared since is there again and what was put since is not, as trainer and dataloader go back by as
much; the event counts both. Before anything is restored, the samples of the newest restored or saved state are counted
once more: if retention has deleted some, the queue says how many are gone, and a checkpoint is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_state import QueueSpan, QueueState, close_spans
from plugins.verl.sample_fold import Sample, SampleFold
from plugins.verl.sample_queue import writer_name
from schemas.events import QueueEvent, QueueKind, SampleEvent, derive_id
from schemas.serde import Poison
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka import admin, reader
from streams.kafka.record import cut
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.model import Settings

NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
TRIES = 10
"""How often an opening may come second to another's."""

log = logging.getLogger("streamward.samples")


class RestoredQueue(NamedTuple):
    """What a queue had."""

    event: QueueEvent
    samples: dict[str, Sample]

    def __str__(self) -> str:
        extras = ", ".join(f"{count} {name}" for name, count in self.event.counts.items() if count)
        return f"queue {self.event.queue} has {self.event.samples} samples" + (f" ({extras})" if extras else "")


class QueueOpener:
    """What one process does with a queue other than to put and get."""

    def __init__(self, settings: Settings, queue_log: QueueLog, queue: str) -> None:
        """Raises SettingsError if the name cannot be part of a record key."""
        if not NAME.fullmatch(queue):
            raise SettingsError(
                f"queue {queue!r}: expected 1 to 200 letters, digits, dots, dashes and underscores, as of a topic"
            )
        self._settings, self._log, self._queue = settings, queue_log, queue
        self._topic = topics(settings.topics)["samples"]
        self._writer = writer_name()

    def open(self, reason: str) -> RestoredQueue:
        """Take the queue from all that had it before, and return what it holds.

        Raises RefusedError if others keep taking it, LogError if the broker does not answer.
        """
        for _ in range(TRIES):
            epoch = self._log.current(self._queue).epoch + 1
            state = self._log.append(self._event("opened", epoch, reason))
            if (state.epoch, state.writer) == (epoch, self._writer):
                return self.restore(epoch, reason)
        raise RefusedError(f"queue {self._queue} was opened by others {TRIES} times meanwhile; give each its own queue")

    def restore(self, epoch: int, reason: str, checkpoint: str | None = None) -> RestoredQueue:
        """Return what the queue holds, or held when `checkpoint` was saved; that is what it holds from now on.

        Raises NotFoundError without such a checkpoint, RefusedError if retention has deleted some of it, or if a later
        opening has taken the queue.
        """
        self._log.check_epoch(self._queue, epoch)
        state, ends = self._log.state(self._queue), self._ends()
        fold = self._fold(state, ends)
        if checkpoint is not None:
            newest, fold = fold, self._fold_saved(state, checkpoint)
            fold.counts["returned"] = len(fold.samples.keys() - newest.samples.keys())
            fold.counts["dropped"] = len(newest.samples.keys() - fold.samples.keys())
        event = self._event("restored", epoch, reason, fold=fold, ends=ends, checkpoint=checkpoint)
        self._log.append(event)
        self._log.check_epoch(self._queue, epoch)
        return RestoredQueue(event, fold.samples)

    def save(self, epoch: int, reason: str) -> RestoredQueue:
        """Make what the queue holds a state that can be restored. Raises as `restore`."""
        self._log.check_epoch(self._queue, epoch)
        ends = self._ends()
        fold = self._fold(self._log.state(self._queue), ends)
        event = self._event("saved", epoch, reason, fold=fold, ends=ends)
        self._log.append(event)
        self._log.check_epoch(self._queue, epoch)
        return RestoredQueue(event, fold.samples)

    def samples(self) -> SampleFold:
        """Return what the queue holds, and change nothing."""
        return self._fold(self._log.current(self._queue), self._ends())

    def _ends(self) -> tuple[int, ...]:
        bounds = admin.offsets(self._settings, [self._topic.label])
        return tuple(bounds[self._topic.name, partition][1] for partition in range(self._topic.partitions))

    def _fold(self, state: QueueState, ends: tuple[int, ...]) -> SampleFold:
        """Return the samples before these offsets; how many of the newest known state are gone is in its counts."""
        fold, newest = SampleFold(), state.newest
        if newest is None:
            return fold
        self._read(fold, state.spans, newest.starts, newest.ends)
        if fold.digest() != newest.digest:
            fold.counts["gone"] = newest.samples - len(fold.samples)
            log.warning("queue %s: %s", self._queue, _deletion(newest, len(fold.samples)))
        self._read(fold, close_spans(state.spans, ends), newest.ends, ends)
        return fold

    def _fold_saved(self, state: QueueState, checkpoint: str) -> SampleFold:
        saved = state.saved.get(checkpoint)
        if saved is None:
            raise NotFoundError(
                f"queue {self._queue} has no saved state {checkpoint}; it has {', '.join(state.saved) or 'none'}. "
                "Is it the checkpoint of another queue, or another log?"
            )
        fold = SampleFold()
        self._read(fold, saved.spans, saved.event.starts, saved.event.ends)
        if fold.digest() != saved.event.digest:
            raise RefusedError(
                f"queue {self._queue}, checkpoint {checkpoint}: {_deletion(saved.event, len(fold.samples))}"
            )
        return fold

    def _read(self, fold: SampleFold, spans: Sequence[QueueSpan], starts: Sequence[int], ends: Sequence[int]) -> None:
        """Take in the records of the queue from `starts` to below `ends`, as far as they are there and count."""
        bounds = admin.offsets(self._settings, [self._topic.label])
        ranges = {tp: (max(low, starts[tp[1]]), ends[tp[1]]) for tp, (low, _) in bounds.items()}
        ranges = {tp: (start, end) for tp, (start, end) in ranges.items() if start < end}
        if not ranges:
            return
        prefix = f"{self._queue}/".encode()
        begins, stops = ({tp: span[side] for tp, span in ranges.items()} for side in (0, 1))
        for record in reader.read(self._settings, begins, stops):
            if not (record.key or b"").startswith(prefix):
                continue
            event = record.decode_placed(SampleEvent, self._topic.partitions)
            if isinstance(event, Poison):
                log.warning("skipped: %s", cut(event.error), extra=record.log_extra)
            elif any(span.covers(record.at.partition, record.at.offset, event.epoch) for span in spans):
                fold.take(event, (record.at.partition, record.at.offset))
            else:
                fold.counts["superseded"] += 1

    def _event(
        self,
        kind: QueueKind,
        epoch: int,
        reason: str,
        *,
        fold: SampleFold | None = None,
        ends: tuple[int, ...] = (),
        checkpoint: str | None = None,
    ) -> QueueEvent:
        return QueueEvent(
            event_id=derive_id(self._queue, kind, epoch, self._writer, *ends),
            queue=self._queue,
            created_at=now_ms(),
            kind=kind,
            epoch=epoch,
            writer=self._writer,
            reason=reason,
            starts=() if fold is None else fold.starts(ends),
            ends=ends,
            samples=0 if fold is None else len(fold.samples),
            digest=None if fold is None else fold.digest(),
            counts={} if fold is None else dict(+fold.counts),
            checkpoint=checkpoint,
        )


def _deletion(event: QueueEvent, left: int) -> str:
    return (
        f"{event.samples} samples were {event.kind}, and the log has {left} of them: retention has deleted the rest. "
        "Raise topics.retention_days above the longest time that a sample waits"
    )
