"""Join and cut an experiment's records with the batch driver, and write what comes of it in one order for all time.

    tasks, responses, rewards, group-control [p] ──► drive.joined ──► a file per partition ──► merged by time ──► groups
    groups ──► drive.cut ──► batches

A group stands where the record that completed it stands in time, so training goes through the log as it happened, and
two experiments over one selection see the same groups in the same order. What the partitions make waits on disk until
all are joined, so memory is that of their open groups.

Not covered: the order in which the live worker wrote the source's groups. Among groups that were completed within
moments of each other it is the worker's, and another batch may hold a neighbour.
"""

from __future__ import annotations

import heapq
import os
import shutil
import signal
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from operator import attrgetter, itemgetter
from pathlib import Path

from schemas import ids as numbering
from schemas.events import AdvantagedGroup, Batch, DeadLetter, SourceRange
from schemas.serde import encode
from streams.kafka.record import Record, key_of, partition_of
from streams.kafka.topics import KEYED_BY_TASK, topic_of, topics
from streams.settings.model import Settings
from streams.tools.archive.history import History, Log
from streams.tools.replay import driver
from streams.tools.replay.copy import CopyProgress, Stopped, Writer
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.selection import bounds

Kept = Callable[[Record], bool]
ALONE_RECORDS = 50_000
"""Fewer are joined in this process: to start another takes as long as some thousand records."""
LOOK_EVERY = 200
"""Groups between two looks whether to stop."""
TICK_S = 0.5
BUFFER_BYTES = 1 << 20
"""Of a file that is written: many groups, where Python's own 8 KiB would hold one."""
_ROW = struct.Struct(">qBiI")
"""Record time, whether it is a dead letter, length of the key (-1: none), length of the payload."""
MADE: tuple[tuple[str, type[AdvantagedGroup | DeadLetter]], ...] = (
    ("groups", AdvantagedGroup),
    ("dead-letters", DeadLetter),
)


def partition_records(
    settings: Settings, history: History, ranges: Iterable[SourceRange], partition: int, kept: Kept | None = None
) -> Iterator[Record]:
    """Yield the records of one partition number of the four topics by time, as the join reads them."""
    every, streams = list(ranges), []
    for label in KEYED_BY_TASK:
        starts, ends = bounds((one for one in every if one.partition == partition), topics(settings.topics)[label].name)
        if starts:
            records = history.read(starts, ends)
            streams.append(records if kept is None else filter(kept, records))
    return heapq.merge(*streams, key=attrgetter("timestamp_ms"))


def write_groups(
    settings: Settings,
    writer: Writer,
    trained: Trained,
    watch: CopyProgress,
    folder: Path,
    *,
    processes: int | None = None,
) -> Counter[str]:
    """Join what was copied and write groups and dead letters; return how many `groups` and `dead_letters`.

    Partitions are joined side by side, in as many processes as there are cores unless said; a log of less than
    ALONE_RECORDS is not worth starting them. Processes are started by `spawn`, so a program that calls this must keep
    its own start behind `if __name__ == "__main__"`. What waits is kept in `folder`, which the caller has for itself:
    what an earlier run left there that was killed is removed.

    Raises Stopped, LogError if the log fails, OSError if the disk takes nothing more.
    """
    ranges = writer.ranges(*KEYED_BY_TASK)
    of = sum(one.next - one.first for one in ranges)
    partitions = sorted({one.partition for one in ranges})
    wanted = 1 if of < ALONE_RECORDS else min(processes or os.cpu_count() or 1, len(partitions))
    counts: Counter[str] = Counter()
    for left in folder.glob(".joined-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".joined-") as kept:
        for done, made in enumerate(
            _spooled(settings, ranges, trained, Path(kept), partitions, wanted, watch), start=1
        ):
            counts += made
            watch.told("joining", done * of // len(partitions), of)
        written = heapq.merge(*(_rows(Path(kept) / str(partition)) for partition in partitions), key=itemgetter(0))
        for timestamp_ms, letter, key, payload in watch.over("writing groups", written, counts.total()):
            label = MADE[letter][0]
            writer.write(label, writer.partition_of(label, key), key, payload, timestamp_ms)
    writer.flush()
    return counts


def _spooled(
    settings: Settings,
    ranges: list[SourceRange],
    trained: Trained,
    folder: Path,
    partitions: list[int],
    wanted: int,
    watch: CopyProgress,
) -> Iterator[Counter[str]]:
    """Join each partition into a file, here or in so many processes; yield what each made. Raises Stopped."""
    if wanted == 1:
        for partition in partitions:
            yield _spool(settings, ranges, trained, folder, watch.stop.is_set, partition)
        return
    halt = folder / "stop"
    begin = partial(_begin, numbering.current())
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn"), initializer=begin) as pool:
        spool = partial(_spool, settings, ranges, trained, folder, halt.exists)
        waiting = {pool.submit(spool, partition) for partition in partitions}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=TICK_S, return_when=FIRST_COMPLETED)
                if watch.stop.is_set():
                    raise Stopped
                yield from (one.result() for one in finished)
        finally:
            if waiting:
                halt.touch()
                pool.shutdown(cancel_futures=True)


def _begin(ids: numbering.LockIds) -> None:
    """Set up a process that joins; a Ctrl-C, which a terminal sends to all, is for the run, which tells the others."""
    driver.begin(ids)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _spool(
    settings: Settings,
    ranges: list[SourceRange],
    trained: Trained,
    folder: Path,
    halted: Callable[[], bool],
    partition: int,
) -> Counter[str]:
    """Write what one partition makes to a file, by time, and count it. Raises Stopped."""
    counts: Counter[str] = Counter()
    latest = 0
    names = {kind: topic_of(kind, settings.topics) for _, kind in MADE}
    with (folder / str(partition)).open("wb", buffering=BUFFER_BYTES) as file:
        records = partition_records(settings, Log(settings), ranges, partition)
        for record, made in driver.joined(settings, records, note=trained.note):
            latest = max(latest, record.timestamp_ms)  # a partition keeps its order, whatever its clocks said
            letter = isinstance(made, DeadLetter)
            counts["dead_letters" if letter else "groups"] += 1
            key, payload = key_of(made, names[type(made)]), encode(made)
            file.write(_ROW.pack(latest, letter, -1 if key is None else len(key), len(payload)))
            file.write(key or b"")
            file.write(payload)
            if counts.total() % LOOK_EVERY == 0 and halted():
                raise Stopped
    if halted():
        raise Stopped
    return counts


def _rows(path: Path) -> Iterator[tuple[int, int, bytes | None, bytes]]:
    with path.open("rb") as file:
        while head := file.read(_ROW.size):
            timestamp_ms, letter, key_bytes, payload_bytes = _ROW.unpack(head)
            key = None if key_bytes < 0 else file.read(key_bytes)
            yield timestamp_ms, letter, key, file.read(payload_bytes)


def write_batches(settings: Settings, writer: Writer, watch: CopyProgress) -> Counter[str]:
    """Cut the groups of the experiment into batches; return how many `batches`, and what was dropped by reason.

    Raises Stopped, LogError if the log fails.
    """
    counts: Counter[str] = Counter()
    name = settings.policy.name
    partition = partition_of(name, settings.topics.policy_partitions)
    starts, ends = bounds(writer.ranges("groups"), topics(settings.topics)["groups"].name)
    records = Log(settings).read(starts, ends) if starts else iter(())
    for made in driver.cut(settings, watch.over("cutting batches", records, sum(ends.values()))):
        if isinstance(made, Batch):
            counts["batches"] += 1
            counts["groups_in_batches"] += made.groups
            counts.update(f"dropped_{dropped.reason}" for dropped in made.dropped)
            writer.write("batches", partition, name.encode(), encode(made), made.created_at)
    writer.flush()
    return counts
