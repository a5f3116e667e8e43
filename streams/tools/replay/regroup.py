"""Join and cut an experiment's records with the batch driver, and write the result in an order that never changes.

    tasks, responses, rewards, group-control [p] ──► join_states ──► a file per partition ──► merged by time ──► groups
    groups ──► cut ──► batches

Groups are ordered by the time of the record that completed them, so training goes through the log as it happened, and
two experiments over one selection see the same groups in the same order. The results of the partitions wait on disk
until all are joined, so memory holds only their open groups.

The live worker may have written groups that were completed almost simultaneously in another order, so a batch here may
have a neighbour of a group in the source's batch.
"""

from __future__ import annotations

import heapq
import os
import shutil
import signal
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Self

from schemas import ids as numbering
from schemas.events import Batch, DeadLetter, SourceRange
from schemas.serde import encode
from streams.kafka.history import History, LogHistory
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.replay import driver
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.replay_context import Replay, Stopped
from streams.tools.replay.selection import bounds

RecordFilter = Callable[[Record], bool]
ALONE_RECORDS = 50_000
"""Fewer are joined in this process: starting another takes as long as joining some thousand records."""
STOP_EVERY = 200
"""Groups between two checks whether to stop."""
TICK_S = 0.5
BUFFER_BYTES = 1 << 20
"""Of a file that is written: many groups, where Python's own 8 KiB would hold one."""
_ROW = struct.Struct(">qBiI")
"""Record time, whether it is a dead letter, length of the key (-1: none), length of the payload."""
LABELS = ("groups", "dead-letters")
"""Topics, in the order of the numbers in `_ROW`."""


def partition_records(
    settings: Settings,
    history: History,
    ranges: Iterable[SourceRange],
    partition: int,
    is_selected: RecordFilter | None = None,
) -> Iterator[Record]:
    """Yield the records of one partition number of the four topics by time, as the join reads them."""
    of_partition, streams = [source for source in ranges if source.partition == partition], []
    for label in KEYED_BY_TASK:
        starts, ends = bounds(of_partition, topics(settings.topics)[label].name)
        if starts:
            records = history.read(starts, ends)
            streams.append(records if is_selected is None else filter(is_selected, records))
    return heapq.merge(*streams, key=attrgetter("timestamp_ms"))


def write_groups(replay: Replay, trained: Trained) -> Counter[str]:
    """Join the copies and write groups and dead letters; return how many `groups` and `dead_letters`.

    Partitions are joined in parallel, in one process per core; a log of less than
    ALONE_RECORDS is not worth starting them. Processes are started by `spawn`, so a program that calls this must keep
    its own start behind `if __name__ == "__main__"`. The files are in the experiment's folder; those that a killed run
    left there are removed.

    Raises Stopped, LogError if the log fails, OSError if the disk is full.
    """
    writer, progress = replay.writer, replay.progress
    ranges = tuple(writer.ranges(*KEYED_BY_TASK))
    total = sum(source.next - source.first for source in ranges)
    partitions = sorted({source.partition for source in ranges})
    workers = 1 if total < ALONE_RECORDS else min(os.cpu_count() or 1, len(partitions))
    counts: Counter[str] = Counter()
    with spool_folder(replay.folder) as folder:
        joining = _PartitionJoin(replay.settings, ranges, trained, folder)
        for done, partition_counts in enumerate(_join_all(joining, partitions, workers, progress.stop), start=1):
            counts += partition_counts
            progress.report("joining", done * total // len(partitions), total)
        write_spooled(replay, folder, partitions, counts)
    return counts


@contextmanager
def spool_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for the files of partitions while the block runs; those that a killed run left are removed."""
    for left in folder.glob(".joined-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".joined-") as spools:
        yield Path(spools)


def write_spooled(replay: Replay, folder: Path, partitions: Iterable[int], counts: Counter[str]) -> None:
    """Write the partitions' files to the log, merged by time. Raises Stopped, LogError if the log fails."""
    writer = replay.writer
    rows = heapq.merge(*(_rows(folder / str(partition)) for partition in partitions), key=itemgetter(0))
    for timestamp_ms, letter, key, payload in replay.progress.track("writing groups", rows, counts.total()):
        label = LABELS[letter]
        writer.write(label, writer.partition_of(label, key), key, payload, timestamp_ms)
    writer.flush()


class Spool:
    """The file of one partition's groups and dead letters, in their order. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._latest = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, timestamp_ms: int, letter: bool, key: bytes | None, payload: bytes) -> None:
        """Write the next group or dead letter, with the time of the record at which it left."""
        self._latest = max(self._latest, timestamp_ms)  # a partition keeps its order, whatever its timestamps
        self._file.write(_ROW.pack(self._latest, letter, -1 if key is None else len(key), len(payload)))
        self._file.write(key or b"")
        self._file.write(payload)


@dataclass(frozen=True, slots=True)
class _PartitionJoin:
    """Joins partitions into files of a folder; other processes get a copy of it."""

    settings: Settings
    ranges: tuple[SourceRange, ...]
    trained: Trained
    folder: Path

    def join(self, halted: Callable[[], bool], partition: int) -> Counter[str]:
        """Write the groups and dead letters of one partition to a file, by time, and count them. Raises Stopped."""
        counts: Counter[str] = Counter()
        letters = topics(self.settings.topics)["dead-letters"]
        with Spool(self.folder / str(partition)) as spool:
            records = partition_records(self.settings, LogHistory(self.settings), self.ranges, partition)
            for record, result in driver.join_states(self.settings, records, note=self.trained.note):
                letter = isinstance(result, DeadLetter)
                counts["dead_letters" if letter else "groups"] += 1
                key, payload = driver.encode_result(result, letters)
                spool.add(record.timestamp_ms, letter, key, payload)
                if counts.total() % STOP_EVERY == 0 and halted():
                    raise Stopped
        if halted():
            raise Stopped
        return counts


def _join_all(
    joining: _PartitionJoin, partitions: list[int], workers: int, stop: threading.Event
) -> Iterator[Counter[str]]:
    """Join each partition, here or in `workers` processes; yield the counts of each. Raises Stopped."""
    if workers == 1:
        for partition in partitions:
            yield joining.join(stop.is_set, partition)
        return
    halt = joining.folder / "stop"
    begin = partial(_begin, numbering.current())
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=begin) as pool:
        waiting = {pool.submit(joining.join, halt.exists, partition) for partition in partitions}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=TICK_S, return_when=FIRST_COMPLETED)
                if stop.is_set():
                    raise Stopped
                yield from (future.result() for future in finished)
        finally:
            if waiting:
                halt.touch()
                pool.shutdown(cancel_futures=True)


def _begin(ids: numbering.LockIds) -> None:
    """Set up a process that joins; a Ctrl-C, which a terminal sends to all, is handled by the run."""
    driver.begin(ids)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _rows(path: Path) -> Iterator[tuple[int, int, bytes | None, bytes]]:
    with path.open("rb") as file:
        while head := file.read(_ROW.size):
            timestamp_ms, letter, key_bytes, payload_bytes = _ROW.unpack(head)
            key = None if key_bytes < 0 else file.read(key_bytes)
            yield timestamp_ms, letter, key, file.read(payload_bytes)


def write_batches(replay: Replay) -> Counter[str]:
    """Cut the groups of the experiment into batches; return how many `batches`, and what was dropped by reason.

    Raises Stopped, LogError if the log fails.
    """
    counts: Counter[str] = Counter()
    settings, name = replay.settings, replay.settings.policy.name
    partition = partition_of(name, settings.topics.policy_partitions)
    starts, ends = bounds(replay.writer.ranges("groups"), topics(settings.topics)["groups"].name)
    records = LogHistory(settings).read(starts, ends) if starts else iter(())
    for batch in driver.cut(settings, replay.progress.track("cutting batches", records, sum(ends.values()))):
        if isinstance(batch, Batch):
            counts["batches"] += 1
            counts["groups_in_batches"] += batch.groups
            counts.update(f"dropped_{dropped.reason}" for dropped in batch.dropped)
            replay.writer.write("batches", partition, name.encode(), encode(batch), batch.created_at)
    replay.writer.flush()
    return counts
