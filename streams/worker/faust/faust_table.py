"""A Faust table with a changelog that can be recovered despite a zombie's rows.

    event ──► table[key] = row ──► changelog record, header `generation` ──► recovery: stale rows are skipped
                                                                                  └─► what they covered is written again

Faust has no fencing. A worker that was stopped beyond its session timeout and then continues may still flush rows; they
come after those of its successor, and win. So each row carries, in a header, the generation of the consumer group in
which it was written. Generations only grow, and a partition has one owner in each, so a row of an older generation than
a row before it is a zombie's. Its events were not committed, and its successor processed them itself.

Compaction could keep a zombie's row and remove the better one before it. Recovery writes the better one again as soon
as it sees both, and compaction leaves the newest segment alone.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import Any

import faust
from faust.streams import _current_event, current_event
from faust.types import TP

from streams.worker.faust.membership import membership
from streams.worker.fence import GENERATION, Fence, generation_of

log = logging.getLogger("streamward.app")


class Table(faust.Table):  # type: ignore[misc]  # faust is not typed
    """A Faust table that neither an event nor a row of an earlier generation can write to.

    Such an event began before a rebalance; its partition may have another owner, or newer state, and the event is
    delivered again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fence = Fence()
        self._epoch = membership.epoch
        self._covered: dict[bytes, int] = {}
        """Keys whose newest row in the changelog is a zombie's, with their partition."""

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if not _is_interrupted(self.app):
            super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        if not _is_interrupted(self.app):
            super().__delitem__(key)

    def write(self, event: Any, key: bytes, row: bytes | None) -> None:
        """Write a row, or with None delete it, as of `event`: one of many that an agent has taken at once."""
        _current_event.set(weakref.ref(event))
        if row is not None:
            self[key] = row
        else:
            del self[key]

    def send_changelog(
        self, partition: int | None, key: Any, value: Any, key_serializer: Any = None, value_serializer: Any = None
    ) -> Any:
        """Write a row to the changelog, with its generation. Replaces Collection.send_changelog."""
        assert partition is not None  # noqa: S101  # `partition_for_key` gives that of the event
        generation = self._fence.generation(partition, self.app.consumer_generation_id)
        return self.changelog_topic.send_soon(
            key=key,
            value=value,
            partition=partition,
            headers=[(GENERATION, b"%d" % generation)],
            key_serializer=key_serializer or self.key_serializer,
            value_serializer=value_serializer or self.value_serializer,
            callback=self._on_changelog_sent,
            eager_partitioning=True,
        )

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Apply rows of the changelog, except a zombie's. Replaces Collection.apply_changelog_batch."""
        super().apply_changelog_batch([event for event in batch if self._is_valid(event)])

    def _is_valid(self, event: Any) -> bool:
        message = event.message
        generation = generation_of(message.headers)
        if self._fence.admits(message.partition, message.offset, generation):
            self._covered.pop(message.key, None)
            return True
        log.warning(
            "%s[%d]@%d: a row of generation %s comes after rows of a newer one, and is skipped",
            *(message.topic, message.partition, message.offset, generation),
        )
        self._covered[message.key] = message.partition
        return False

    async def on_rebalance(self, *args: Any, **kwargs: Any) -> None:
        """Forget state of a membership that was lost: only the changelog is valid."""
        await super().on_rebalance(*args, **kwargs)
        if self._epoch == membership.epoch:
            return
        self._epoch = membership.epoch
        self.data.data.clear()
        self.data._key_partition.clear()
        offsets = self.app.tables.recovery.active_offsets  # Faust continues from these where a partition stays
        for tp in [tp for tp in offsets if tp.topic == self.changelog_topic_name]:
            del offsets[tp]

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        """Write again the rows that a zombie's rows cover, so that compaction keeps the right ones."""
        await super().on_recovery_completed(active_tps, standby_tps)
        owned = {tp.partition for tp in active_tps}
        for key, partition in self._covered.items():
            if partition in owned:
                row = self.data.get(key)
                self.send_changelog(partition, key, row, value_serializer="raw" if row is None else None)
        self._covered.clear()


def _is_interrupted(app: Any) -> bool:
    event = current_event()
    return event is not None and stale(app, event)


def stale(app: Any, event: Any) -> bool:
    """Return whether `event` is of an earlier generation, or a rebalance is under way: it is delivered again."""
    return membership.lost or bool(app.rebalancing) or event.message.generation_id != app.consumer_generation_id
