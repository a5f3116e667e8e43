"""Copy and join an experiment's records on Spark or Ray, from the archive; this process only orders and writes them.

    archive ──► pieces ──► engine: copy ─┬──────────────────────────► in order ──► tasks, responses, rewards, ...
                                         └─► by bucket ──► engine: join ──► sorted ──► a file per partition ──► groups

The result is that of a replay on one machine, byte for byte (replay_parts.py says why), so a replay that was stopped
here may be resumed there. Everything is computed before the first record is written, and an executor that fails, or
runs another release, leaves the log as it was.

Not covered: scoring again, which is done where the scorers are; selecting, which reads the archived tasks here; and
cutting batches, which goes through the groups of a policy one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from plugins.distributed.data_engine import DataEngine, Rows
from plugins.distributed.executor import release, same_release
from plugins.distributed.node_check import check_nodes
from plugins.distributed.pieces import ArchivePiece, buckets_for, for_executors, pieces_of
from plugins.distributed.replay_parts import (
    COPIED,
    COUNTED,
    JOINED,
    ORDER,
    Copying,
    Joining,
    PieceStart,
    count_rows,
    piece_starts,
)
from schemas.events import SourceRange
from streams.errors import LogError
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.replay.copy import Renaming
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.regroup import STOP_EVERY, Spool, spool_folder, write_spooled
from streams.tools.replay.replay_context import Replay, Stopped


def check_replayable(engine: DataEngine, source: Settings, ranges: tuple[SourceRange, ...]) -> None:
    """Return if the engine can replay these ranges. Nothing is written.

    Raises SettingsError if a node is not as this process, LogError if the archive has gaps.
    """
    named, pieces = topics(source.topics), pieces_of(source, ranges, KEYED_BY_TASK)
    folders = sorted({named[KEYED_BY_TASK[piece.topic]].name for piece in pieces})
    check_nodes(engine, release(), for_executors(source).archive.store, folders)


def copy_and_join(replay: Replay, engine: DataEngine, trained: Trained) -> Counter[str]:
    """Copy and join as `copy` and `write_groups` do; return what they count.

    Raises Stopped, SettingsError and LogError as `check_replayable`, LogError if the log or an executor fails.
    """
    work = _EngineWork(replay, engine, trained)
    replay.progress.report("copying and joining", 0, None)
    copies = work.copy()
    starts, counts = piece_starts(work.pieces, copies.map_tables(same_release(count_rows), COUNTED).in_order())
    _check_stop(replay)
    groups = work.join(copies, starts)
    _check_stop(replay)
    _write_copies(replay, work.pieces, copies, counts)
    counts += _write_groups(replay, groups)
    return counts


class _EngineWork:
    """The work of the engine for one replay."""

    def __init__(self, replay: Replay, engine: DataEngine, trained: Trained) -> None:
        self._replay, self._engine, self._trained = replay, engine, trained
        self.pieces = pieces_of(replay.source, replay.about.ranges, KEYED_BY_TASK)
        self._buckets = buckets_for(self.pieces, engine.parallelism)
        self._shared = engine.share(self.pieces)

    def copy(self) -> Rows:
        replay = self._replay
        renaming = Renaming(policy=replay.about.policy, name=replay.settings.policy.name)
        source, keys = for_executors(replay.source), self._engine.share(replay.keys)
        work = Copying(source, self._shared, keys, renaming, self._buckets)
        parts = min(len(self.pieces), self._buckets)
        return self._engine.map_numbers(len(self.pieces), parts, same_release(work), COPIED).persist()

    def join(self, copies: Rows, starts: list[PieceStart]) -> Rows:
        work = Joining(for_executors(self._replay.settings), self._shared, self._engine.share(starts), self._trained)
        return copies.map_groups("bucket", self._buckets, same_release(work), JOINED).persist()


def _write_copies(replay: Replay, pieces: list[ArchivePiece], copies: Rows, counts: Counter[str]) -> None:
    """Write the copies in the order of their partitions. Raises LogError if the engine returns them in another."""
    rows = _values(copies.in_order(), "piece", "row", "timestamp_ms", "key", "payload")
    last, done = (-1, -1), 0
    total = sum(counts[label] for label in KEYED_BY_TASK)
    for piece, row, timestamp_ms, key, payload in replay.progress.track("writing copies", rows, total):
        if payload is None:
            continue
        if (piece, row) <= last or (row and (piece, row - 1) != last):
            raise LogError(
                f"the engine returned row {row} of piece {piece} after {last}; run the same command again to resume"
            )
        last, done = (piece, row), done + 1
        topic, partition = KEYED_BY_TASK[pieces[piece].topic], pieces[piece].partition
        replay.writer.write(topic, partition, key, payload, timestamp_ms)
    replay.writer.flush()
    if done != total:
        raise LogError(f"the engine returned {done} of {total} copied records; run the same command again to resume")


def _write_groups(replay: Replay, groups: Rows) -> Counter[str]:
    """Write groups and dead letters, merged by time. Raises LogError if the engine has not sorted them."""
    counts: Counter[str] = Counter()
    names, last = (*ORDER, "timestamp_ms", "letter", "key", "payload"), (-1,)
    with spool_folder(replay.folder) as folder, ExitStack() as stack:
        spools: dict[int, Spool] = {}
        for *columns, timestamp_ms, letter, key, payload in _values(groups.sorted_by(ORDER), *names):
            place = tuple(columns)
            if place <= last:
                raise LogError(f"the engine returned {place} after {last}; run the same command again to resume")
            last, partition = place, place[0]
            if partition not in spools:
                spools[partition] = stack.enter_context(Spool(folder / str(partition)))
            spools[partition].add(timestamp_ms, letter, key, payload)
            counts["dead_letters" if letter else "groups"] += 1
            if counts.total() % STOP_EVERY == 0:
                _check_stop(replay)
        stack.close()
        write_spooled(replay, folder, sorted(spools), counts)
    return counts


def _values(tables: Iterator[pa.Table], *names: str) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        for batch in table.select(names).to_batches():
            yield from zip(*batch.to_pydict().values(), strict=True)


def _check_stop(replay: Replay) -> None:
    if replay.progress.stop.is_set():
        raise Stopped
