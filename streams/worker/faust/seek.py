"""Decide where a Faust worker starts to read, and add notes to its commits.

    commits and their notes ──► are the records still there? ──► are the changelogs whole? ──► seek, begin
                                   └─ no: LogError, exit 5           └─ no: wind back, rebuild

Faust seeks to the committed offset and checks nothing. If retention was faster than the group, aiokafka then silently
starts at the earliest record; if a changelog lost rows, state silently goes missing. Both are detected here. These
functions replace Faust's, or serve those that do; `fixes.py` installs them.

A partition whose first records were deleted before the group ever committed starts at the earliest record left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import confluent_kafka as ck
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from streams.errors import LogError
from streams.kafka.retry import TICK_S
from streams.kafka.topics import topics, wrong_partitions
from streams.worker.changelogs import Changelogs, Extent, distrust
from streams.worker.faust.delivery import Delivery
from streams.worker.faust.pinned_sources import STOCK

log = logging.getLogger("streamward.faust")

_deliveries: WeakKeyDictionary[Any, Delivery] = WeakKeyDictionary()
_changelogs: WeakKeyDictionary[Any, Changelogs] = WeakKeyDictionary()


def delivery_of(consumer: Any) -> Delivery:
    """Return the bookkeeping of `consumer`; its counters are metrics."""
    return _deliveries.setdefault(consumer, Delivery())


def changelogs_of(app: Any) -> Changelogs:
    """Return the changelog bookkeeping of the worker of `app`."""
    return _changelogs.setdefault(app, Changelogs())


# --- commits, with a note --------------------------------------------------------------------------------------------


async def seek_to_committed(self: Any) -> Any:
    """In place of AIOKafkaConsumerThread.seek_to_committed: also keep the notes of the commits."""
    committed = await STOCK[AIOKafkaConsumerThread, "seek_to_committed"](self)
    coordinator = self._ensure_consumer()._coordinator
    commits = await self.call_thread(coordinator.fetch_committed_offsets, list(committed))
    changelogs_of(self.app).notes = {TP(*tp): commit.metadata for tp, commit in commits.items()}
    return committed


async def _commit(self: Any, offsets: Mapping[TP, int]) -> bool:
    """In place of AIOKafkaConsumerThread._commit: note the ends of the changelogs in the metadata."""
    consumer, changelogs = self._ensure_consumer(), changelogs_of(self.app)
    owned = {tp: offset for tp, offset in offsets.items() if tp in self.assignment()}
    now = monotonic()
    self.tp_last_committed_at.update(dict.fromkeys(owned, now))
    try:
        await consumer.commit(
            {
                TopicPartition(*tp): OffsetAndMetadata(offset, changelogs.note(tp.partition, self.app.ids.of(tp.topic)))
                for tp, offset in owned.items()
            }
        )
    except CommitFailedError as exc:
        if "already rebalanced" not in str(exc):
            await self.crash(exc)
        return False
    except Exception as exc:  # any error: without this commit, work is repeated
        log.exception("the offsets %s were not committed; assigned are %s", owned, self.assignment())
        await self.crash(exc)
        return False
    return True


# --- the start -------------------------------------------------------------------------------------------------------


async def perform_seek(self: Any) -> None:
    """In place of Consumer.perform_seek: each source partition to its committed offset, or the earliest one. If the
    changelogs cannot be trusted, it seeks to the earliest despite the commit. Raises LogError if a committed offset is
    no longer in the log, SettingsError if partitions were added to a topic.
    """
    tps = [tp for tp in self.assignment() if not self._is_changelog_tp(tp)]
    if not tps:
        return
    shapes = {topic.name: topic for topic in topics(self.app.settings.topics).values()}
    for tp in tps:
        if tp.topic in shapes and tp.partition >= shapes[tp.topic].partitions:
            raise wrong_partitions(shapes[tp.topic], f"a partition {tp.partition}")
    committed = await self.seek_to_committed()
    await _ask_for_ids(self.app, {tp.topic for tp in tps})
    start = {tp: _commit_here(self.app, tp, committed.get(tp) or 0) for tp in tps}
    owned = sorted(self.assignment())
    first, ends = await self.earliest_offsets(*owned), await self.highwaters(*owned)
    extents = {tp: Extent(first.get(tp) or 0, ends.get(tp) or 0) for tp in owned}
    for tp in tps:
        if start[tp] > extents[tp].end:
            raise LogError(
                f"{tp.topic}[{tp.partition}]: group {self.app.conf.id} has committed {start[tp]}, but the partition "
                f"ends at {extents[tp].end}. The topic was recreated or lost records; reset the group's offsets to the "
                "earliest"
            )
        if 0 < start[tp] < extents[tp].start:
            raise _cut(self, tp, start[tp], extents[tp].start)
    wound_back = await _wind_back(self, start, extents)
    unsought = [tp for tp in tps if start[tp] <= 0 or tp in wound_back]
    if unsought:
        start |= {tp: extents[tp].start for tp in unsought}
        await self._thread.seek_wait({tp: start[tp] for tp in unsought})
    for tp in tps:
        delivery_of(self).begin(tp, start[tp])
        self._committed_offset[tp] = start[tp]
        self._read_offset[tp] = None
        self._gap.pop(tp, None)
        self._acked[tp].clear()
        self._acked_index[tp].clear()


async def _ask_for_ids(app: Any, names: set[str]) -> None:
    """Take the ids that these topics have now, in a thread: aiokafka does not know them, and librdkafka does."""
    app.ids.names = sorted(names)
    deadline = monotonic() + app.conf.broker_request_timeout
    while True:
        try:
            return await asyncio.to_thread(app.ids.ask)
        except ck.KafkaException:
            if monotonic() > deadline:
                raise
            await asyncio.sleep(TICK_S)


def _commit_here(app: Any, tp: TP, offset: int) -> int:
    """Return the committed offset; 0 if it was committed in a topic of this name that was deleted."""
    return 0 if app.ids.is_of_another(tp, offset, changelogs_of(app).notes.get(tp)) else offset


async def _wind_back(consumer: Any, start: Mapping[TP, int], extents: Mapping[TP, Extent]) -> set[TP]:
    """Commit and return the source partitions that must be read again from their start."""
    changelogs = changelogs_of(consumer.app)
    notes, owned = changelogs.notes, [tp for tp in extents if consumer._is_changelog_tp(tp)]
    changelogs.accept({tp: extents[tp] for tp in owned})
    wound_back: set[TP] = set()
    for number in sorted({(consumer.topic_partitions(tp.topic), tp.partition) for tp in owned}, key=str):
        sources = sorted(tp for tp in start if (consumer.topic_partitions(tp.topic), tp.partition) == number)
        fed = [tp for tp in owned if (consumer.topic_partitions(tp.topic), tp.partition) == number]
        reasons = distrust(
            {tp.topic: extents[tp] for tp in fed},
            [notes.get(tp, "") for tp in sources],
            committed=any(start[tp] for tp in sources),
        )
        for topic, reason in reasons.items():
            log.warning(
                "%s[%d] %s. Its rows cannot be trusted, and are rebuilt from %s",
                *(topic, number[1], reason, _origins(sources, extents)),
            )
        if reasons:
            wound_back |= {tp for tp in sources if start[tp] > extents[tp].start}
    if wound_back:
        # with the note that was accepted: after a crash, the rebuild continues from here
        await consumer._thread.commit({tp: extents[tp].start for tp in wound_back})
    elif owned:
        log.info("recovered from %d changelog partitions; none has lost records", len(owned))
    return wound_back


def _origins(sources: Iterable[TP], extents: Mapping[TP, Extent]) -> str:
    origins = []
    for tp in sources:
        first = extents[tp].start
        lost = f" (earlier records were deleted and cannot be rebuilt; it begins at {first})" if first else ""
        origins.append(f"{tp.topic}[{tp.partition}]@{first}{lost}")
    return ", ".join(origins) or "nothing: none of their sources is assigned here"


# --- records that were deleted unread --------------------------------------------------------------------------------


async def refuse_cut(consumer: Any, due: Mapping[TP, int]) -> None:
    """Raise LogError if the next record of one of these source partitions has been deleted."""
    due = {tp: offset for tp, offset in due.items() if not consumer._is_changelog_tp(tp)}
    if not due:
        return
    for tp, first in (await consumer.earliest_offsets(*due)).items():
        if first is not None and first > due[tp]:
            raise _cut(consumer, TP(*tp), due[tp], first)


def _cut(consumer: Any, tp: TP, due: int, first: int) -> LogError:
    group = consumer.app.conf.id.removeprefix(consumer.app.settings.topics.prefix)
    return LogError(
        f"{tp.topic}[{tp.partition}]: group {consumer.app.conf.id} is at {due}, as committed or read, but the "
        f"first record there is {first}: {first - due} records were deleted (retention) before they were read. Restore "
        f"them, or accept their loss with `streamward admin offsets skip --group {group}`"
    )
