"""Drive the reducers over a range of the log, without Faust.

    tasks, responses, rewards, group-control [p] ──► merged by time ──► advantages' reducer ──► groups, dead letters
    groups [p]                                   ──► in order       ──► batches' reducer    ──► batches

The same reducers as the live worker's, many times faster, for replay, backfill and the parity test. Bounds are fixed at
the start and nothing is committed. Where several topics feed one state they are merged by record timestamp, heads
first (merge_by_time.py); each partition keeps its own order. So two replays of one range agree, at any speed.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any, NamedTuple

from schemas import ids as numbering
from schemas.events import AdvantagedGroup, Batch, Coordinates, DeadLetter
from schemas.serde import Poison
from streams.arrow.decode import chunks
from streams.arrow.events import decode_events, decode_values
from streams.kafka import admin
from streams.kafka.reader import PartitionReader, fetch
from streams.kafka.record import Record, dead_letter, encoded
from streams.kafka.topics import KEYED_BY_TASK, Topic, topics
from streams.settings.model import Settings
from streams.stages import batches
from streams.stages.advantages import stage as advantages
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.advantages.incoming import FIELDS, Incoming
from streams.stages.advantages.state import EmitGroup, GroupState
from streams.tools.replay.merge_by_time import merge_by_time

Bounds = Mapping[tuple[str, int], tuple[int, int]]
"""By topic and partition: the first offset, and the one after the last."""
LookUp = Callable[[Iterable[Coordinates]], Mapping[Coordinates, Record]]
Note = Callable[[EmitGroup], EmitGroup]
"""Adds to a group what its own log does not tell; see streams/tools/replay/recorded_lag.py."""


class Encoded(NamedTuple):
    """A record that the join makes, ready to be written."""

    topic: str
    key: bytes | None
    payload: bytes


def join(settings: Settings) -> Iterator[AdvantagedGroup | DeadLetter]:
    """Yield every group and dead letter that the join makes of the whole log, partition by partition.

    Raises LogError if the log cannot be read.
    """
    yield from map(_event, _join_partitions(settings, *_whole_log(settings)))


def join_encoded(settings: Settings, *, processes: int | None = None) -> Iterator[Encoded]:
    """Yield what `join` yields, in its order, as records to write; partitions are joined in parallel.

    `processes` defaults to one per core. They are started by `spawn`, so a program that calls this must keep its own
    start behind `if __name__ == "__main__"`; with 1 none is started. The results of a partition wait for those before.
    Raises LogError if the log cannot be read.
    """
    bounds, partitions = _whole_log(settings)
    workers = min(processes or os.cpu_count() or 1, len(partitions))
    if workers == 1:
        yield from _encode(settings, _join_partitions(settings, bounds, partitions))
        return
    join_one = partial(_encode_partition, settings, bounds)
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=begin, initargs=(numbering.current(),)
    ) as pool:
        yield from chain.from_iterable(pool.map(join_one, partitions))


def begin(ids: numbering.LockIds) -> None:
    """Set up a process that only joins: these schema ids, and no garbage collector.

    Records that wait for their group have no reference cycles; searching for some would take a tenth of the time.
    """
    numbering.use(ids)
    gc.disable()


def _encode_partition(settings: Settings, bounds: Bounds, partition: int) -> list[Encoded]:
    return list(_encode(settings, _join_partitions(settings, bounds, [partition])))


def _encode(settings: Settings, results: Iterable[GroupRecord | DeadLetter]) -> Iterator[Encoded]:
    named = topics(settings.topics)
    groups, letters = named["groups"], named["dead-letters"]
    for result in results:
        topic = letters if isinstance(result, DeadLetter) else groups
        yield Encoded(topic.name, *encode_result(result, letters))


def encode_result(result: GroupRecord | DeadLetter, letters: Topic) -> tuple[bytes | None, bytes]:
    """Return key and payload of a group or a dead letter; `letters` is the topic of dead letters."""
    return encoded(result, letters) if isinstance(result, DeadLetter) else (result.key, result.payload)


def _whole_log(settings: Settings) -> tuple[Bounds, Sequence[int]]:
    return admin.offsets(settings, KEYED_BY_TASK), range(settings.topics.partitions)


def _join_partitions(
    settings: Settings, bounds: Bounds, partitions: Iterable[int]
) -> Iterator[GroupRecord | DeadLetter]:
    """Yield what the join makes of one partition after the other, read by the same clients: a new one takes time.

    At the end of a partition a client makes one fetch in vain before it fetches the next partition's records.
    """
    names = [topics(settings.topics)[label].name for label in KEYED_BY_TASK]
    with ExitStack() as stack:
        readers = {name: stack.enter_context(PartitionReader(settings, {}, fetch_wait_ms=5)) for name in names}
        for partition in partitions:
            for name, reader in readers.items():
                (first, end), tp = bounds[name, partition], (name, partition)
                reader.assign({tp: first}, {tp: end})
            records = chain.from_iterable(merge_by_time([reader.batches(None) for reader in readers.values()]))
            results = join_states(settings, records, partitions=settings.topics.partitions)
            yield from (result for _, result in results)


def join_records(
    settings: Settings, records: Iterable[Record], *, look_up: LookUp | None = None
) -> Iterator[AdvantagedGroup | DeadLetter]:
    """Yield what the join makes of these records of one partition number, read in this order.

    `look_up` returns earlier records of them by coordinates; without it they are fetched from the log.
    """
    for _, result in join_states(settings, records, look_up=look_up):
        yield _event(result)


def _event(result: GroupRecord | DeadLetter) -> AdvantagedGroup | DeadLetter:
    return result if isinstance(result, DeadLetter) else result.event()


def join_states(
    settings: Settings,
    records: Iterable[Record],
    *,
    look_up: LookUp | None = None,
    note: Note | None = None,
    partitions: int | None = None,
) -> Iterator[tuple[Record, GroupRecord | DeadLetter]]:
    """Yield what `join_records` yields, each after the record at which it left; groups as records.

    It keeps what the live stage keeps, however long the log is: open groups, and groups that were not yet evicted.
    """
    stage = advantages.AdvantageStage(settings, partitions=partitions)
    look_up = look_up or partial(fetch, settings)
    states: dict[str, GroupState] = {}
    for record, event in _decode(stage, records):
        if isinstance(event, DeadLetter):
            yield record, event
            continue
        state, effects = stage.reduce(states.get(event.task_id), event, record)
        if state is None:
            states.pop(event.task_id, None)
        else:
            states[event.task_id] = state
        if effects:
            if note is not None:
                effects = [note(effect) if isinstance(effect, EmitGroup) else effect for effect in effects]
            for output in stage.outputs(effects, record, look_up(stage.missing(effects, record))):
                yield record, output


def _decode(
    stage: advantages.AdvantageStage, records: Iterable[Record]
) -> Iterator[tuple[Record, Incoming | DeadLetter]]:
    """Yield each record with the fields that the join reads of it. Many are decoded at once, as columns."""
    for chunk in chunks(records):
        by_topic: dict[str, list[int]] = defaultdict(list)
        for place, record in enumerate(chunk):
            by_topic[record.at.topic].append(place)
        events: list[Any] = [None] * len(chunk)
        for topic, places in by_topic.items():
            of_topic = [chunk[place] for place in places]
            payloads = [record.payload for record in of_topic]
            kind = stage.event_type(topic)
            columns = decode_values(kind, payloads, FIELDS[kind]) if kind in FIELDS else decode_events(kind, payloads)
            for place, event in zip(places, stage.incoming(of_topic, *columns), strict=True):
                events[place] = event
        yield from zip(chunk, events, strict=True)


def cut(settings: Settings, records: Iterable[Record]) -> Iterator[Batch | DeadLetter]:
    """Yield the batches of these records of one partition of `groups`, in order."""
    cutter = batches.Cutter(settings.batches, settings.trainer.off_policy)
    windows: dict[str, batches.BatchWindow] = {}
    seen: set[str] = set()
    for record in records:
        group = record.decode_placed(AdvantagedGroup, settings.topics.policy_partitions, closed=True)
        if isinstance(group, Poison):
            yield dead_letter(record, stage=batches.STAGE, reason=group.reason, error=group.error)
            continue
        window = windows.get(group.policy, batches.BatchWindow())
        windows[group.policy], results = cutter.reduce(window, group, record.at, doubled=group.group_id in seen)
        seen.add(group.group_id)
        yield from results
