"""Copy and join an experiment's records on Spark or Ray, from the archive; this process only puts in order and writes.

    archive ──► pieces ──► engine: copy ─┬──────────────────────────► in order ──► tasks, responses, rewards, ...
                                         └─► by bucket ──► engine: join ──► sorted ──► a file per partition ──► groups

What comes out is what a replay on one machine writes, byte for byte (parts.py says why), so a replay that was stopped
here may be resumed there. Everything is computed before the first record is written, and an executor that fails, or is
not as this process, leaves the log as it was.

Not covered: scoring again, which is done where the scorers are; selecting, which reads the archived tasks here; and
cutting batches, which goes through the groups of a policy one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from schemas.events import SourceRange
from streams.errors import LogError
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.distributed.engine import DataEngine, Rows, check
from streams.tools.distributed.executor import guarded, release
from streams.tools.distributed.pieces import ArchivePiece, buckets_for, for_executors, pieces_of
from streams.tools.replay.copy import Renaming
from streams.tools.replay.parts import COPIED, COUNTED, MADE, ORDER, Copying, Joining, counted, places_of
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.regroup import LOOK_EVERY, Spool, spooling, write_spooled
from streams.tools.replay.replay import Replay, Stopped


def prepared(engine: DataEngine, source: Settings, ranges: tuple[SourceRange, ...]) -> None:
    """Return if the engine can replay these ranges. Nothing is written.

    Raises SettingsError if a node is not as this process, LogError if the archive has gaps.
    """
    named, pieces = topics(source.topics), pieces_of(source, ranges, KEYED_BY_TASK)
    folders = sorted({named[KEYED_BY_TASK[piece.topic]].name for piece in pieces})
    check(engine, release(), for_executors(source).archive.store, folders)


def copy_and_join(replay: Replay, engine: DataEngine, trained: Trained) -> Counter[str]:
    """Copy and join as `copy` and `write_groups` do; return what they count.

    Raises Stopped, SettingsError and LogError as `prepared`, LogError if the log or an executor fails.
    """
    work = _Work(replay, engine, trained)
    replay.progress.report("copying and joining", 0, None)
    copied = work.copied()
    places, counts = places_of(work.pieces, copied.each(guarded(counted), COUNTED).in_order())
    _look(replay)
    made = work.joined(copied, places)
    _look(replay)
    _write_copied(replay, work.pieces, copied, counts)
    counts += _write_made(replay, made)
    return counts


class _Work:
    """What the engine is asked to do for one replay."""

    def __init__(self, replay: Replay, engine: DataEngine, trained: Trained) -> None:
        self._replay, self._engine, self._trained = replay, engine, trained
        self.pieces = pieces_of(replay.source, replay.about.ranges, KEYED_BY_TASK)
        self._buckets = buckets_for(self.pieces, engine.parallelism)
        self._shared = engine.share(self.pieces)

    def copied(self) -> Rows:
        replay = self._replay
        renaming = Renaming(policy=replay.about.policy, name=replay.own.policy.name)
        source, keys = for_executors(replay.source), self._engine.share(replay.keys)
        work = Copying(source, self._shared, keys, renaming, self._buckets)
        parts = min(len(self.pieces), self._buckets)
        return self._engine.of(len(self.pieces), parts, guarded(work), COPIED).kept()

    def joined(self, copied: Rows, places: Any) -> Rows:
        work = Joining(for_executors(self._replay.own), self._shared, self._engine.share(places), self._trained)
        return copied.together("bucket", self._buckets, guarded(work), MADE).kept()


def _write_copied(replay: Replay, pieces: list[ArchivePiece], copied: Rows, counts: Counter[str]) -> None:
    """Write what was copied, in the order of its partitions. Raises LogError if the engine has it in another."""
    rows = _values(copied.in_order(), "piece", "row", "timestamp_ms", "key", "payload")
    last, done = (-1, -1), 0
    of = sum(counts[label] for label in KEYED_BY_TASK)
    for piece, row, timestamp_ms, key, payload in replay.progress.over("writing copies", rows, of):
        if payload is None:
            continue
        if (piece, row) <= last or (row and (piece, row - 1) != last):
            raise LogError(
                f"the engine returned row {row} of piece {piece} after {last}; run the same command again to resume"
            )
        last, done = (piece, row), done + 1
        about = pieces[piece]
        replay.writer.write(KEYED_BY_TASK[about.topic], about.partition, key, payload, timestamp_ms)
    replay.writer.flush()
    if done != of:
        raise LogError(f"the engine returned {done} of {of} copied records; run the same command again to resume")


def _write_made(replay: Replay, made: Rows) -> Counter[str]:
    """Write groups and dead letters, merged by time. Raises LogError if the engine has not sorted them."""
    counts: Counter[str] = Counter()
    names, last = (*ORDER, "timestamp_ms", "letter", "key", "payload"), (-1,)
    with spooling(replay.folder) as kept, ExitStack() as stack:
        spools: dict[int, Spool] = {}
        for *place, timestamp_ms, letter, key, payload in _values(made.ordered(ORDER), *names):
            if (at := tuple(place)) <= last:
                raise LogError(f"the engine returned {at} after {last}; run the same command again to resume")
            last, partition = at, at[0]
            if partition not in spools:
                spools[partition] = stack.enter_context(Spool(kept / str(partition)))
            spools[partition].add(timestamp_ms, letter, key, payload)
            counts["dead_letters" if letter else "groups"] += 1
            if counts.total() % LOOK_EVERY == 0:
                _look(replay)
        stack.close()
        write_spooled(replay, kept, sorted(spools), counts)
    return counts


def _values(tables: Iterator[pa.Table], *names: str) -> Iterator[tuple[Any, ...]]:
    for table in tables:
        for batch in table.select(names).to_batches():
            yield from zip(*batch.to_pydict().values(), strict=True)


def _look(replay: Replay) -> None:
    if replay.progress.stop.is_set():
        raise Stopped
