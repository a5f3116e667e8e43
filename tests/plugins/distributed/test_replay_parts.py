"""However a replay is cut into parts, and in whatever order they come, the bytes are those of a replay in one piece."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings as checked, strategies as st

from plugins.distributed import replay_parts
from plugins.distributed.pieces import pieces_of
from plugins.distributed.replay_parts import COPIED, COUNTED, JOINED, ORDER, Copying, Joining, count_rows, piece_starts
from schemas.events import Coordinates, DeadLetter, SourceRange
from streams.errors import LogError
from streams.kafka.record import Record, TopicPartition, encoded
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Archive, Policy, Settings, Topics
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Change
from streams.tools.replay import driver
from streams.tools.replay.copy import Renaming
from streams.tools.replay.recorded_lag import Trained
from streams.tools.replay.regroup import partition_records
from tests.support.factories import T0
from tests.support.log.archive_of import archive_records
from tests.support.log.in_memory import PARTITIONS, SETTINGS, TROUBLES, Log
from tests.support.thoroughness import examples

TRAINED = Trained([(T0 + 500, 1)])
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Held:
    """A value that an engine would send to its executors."""

    value: Any


@dataclass(frozen=True)
class Copies:
    """The experiment's log, in memory."""

    records: Mapping[TopicPartition, list[Record]]

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        raise AssertionError(labels)

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        for tp, start in starts.items():
            yield from self.records[tp][start : ends[tp]]

    def fetch(self, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        return {at: self.records[at.topic, at.partition][at.offset] for at in wanted}


@dataclass(frozen=True)
class Case:
    """A log that is replayed: what is chosen of it, and under which settings."""

    source: Settings
    own: Settings
    log: Log
    keys: frozenset[bytes]
    ranges: tuple[SourceRange, ...]
    renaming: Renaming

    @classmethod
    def of(cls, log: Log, folder: Path, draw: random.Random) -> Case:
        """Archive the log in segments of any size; choose some of its tasks and, mostly, all of its offsets."""
        source = Settings(topics=SETTINGS.topics, advantages=SETTINGS.advantages, archive=Archive(store=str(folder)))
        own_topics = Topics(prefix="own.", partitions=PARTITIONS, max_record_bytes=SETTINGS.topics.max_record_bytes)
        own = Settings(topics=own_topics, advantages=SETTINGS.advantages, policy=Policy(name="own"))
        archive_records(source, log.records, iter(lambda: draw.choice((1, 2, 5, 50)), 0))
        every = sorted({record.key for records in log.records.values() for record in records if record.key})
        ranges = []
        for (label, partition), records in log.records.items():
            end, whole = len(records), draw.random() < 0.8
            first = 0 if whole else draw.randint(0, end)
            next_ = end if whole else draw.randint(first, end)
            ranges.append(SourceRange(topic=label, partition=partition, first=first, next=next_))
        keys = frozenset(key for key in every if draw.random() < 0.9)
        return cls(source, own, log, keys, tuple(ranges), Renaming(policy="default", name="own"))

    def in_one_piece(self) -> tuple[Counter[str], dict[TopicPartition, list[Row]], dict[int, list[Row]]]:
        """Return what one machine copies, and what it makes of that, as `copy` and `write_groups` do."""
        counts: Counter[str] = Counter()
        copies: dict[TopicPartition, list[Record]] = {}
        for one in self.ranges:
            topic, own = topics(self.source.topics)[one.topic], topics(self.own.topics)[one.topic].name
            records = copies.setdefault((own, one.partition), [])
            for record in self.log.records[one.topic, one.partition][one.first : one.next]:
                if record.key not in self.keys:
                    continue
                payload = self.renaming.payload(record, topic)
                counts["unreadable" if payload is None else one.topic] += 1
                if payload is not None:
                    at = Coordinates(own, one.partition, len(records))
                    records.append(Record(at, record.timestamp_ms, record.key, payload))
        history = Copies(copies)
        ranges = [SourceRange(topic=t, partition=p, first=0, next=len(found)) for (t, p), found in copies.items()]
        made: dict[int, list[Row]] = {}
        for partition in range(PARTITIONS):
            records_of = partition_records(self.own, history, ranges, partition)
            for record, one_made in driver.join_states(self.own, records_of, look_up=history.fetch, note=TRAINED.note):
                letters = topics(self.own.topics)["dead-letters"]
                is_letter = isinstance(one_made, DeadLetter)
                key, payload = (
                    encoded(one_made, letters) if isinstance(one_made, DeadLetter) else (one_made.key, one_made.payload)
                )
                made.setdefault(partition, []).append((record.timestamp_ms, is_letter, key, payload))
        shown = {tp: [(r.timestamp_ms, r.key, r.payload) for r in records] for tp, records in copies.items() if records}
        return +counts, shown, made

    def in_parts(
        self, draw: random.Random
    ) -> tuple[Counter[str], dict[TopicPartition, list[Row]], dict[int, list[Row]]]:
        """Return the same, made of pieces and buckets as they happen to be cut and to come."""
        buckets = draw.choice((1, 2, 7))
        pieces = pieces_of(self.source, self.ranges, KEYED_BY_TASK)
        copying = Copying(self.source, Held(pieces), Held(self.keys), self.renaming, buckets)
        numbers = list(range(len(pieces)))
        draw.shuffle(numbers)
        rows = cut([batch for number in numbers for batch in copying(number)], COPIED, draw)
        counts = [pa.Table.from_batches(list(count_rows(table)), COUNTED) for table in rows]
        places, found = piece_starts(pieces, counts)
        whole = pa.concat_tables([COPIED.empty_table(), *rows])
        joining = Joining(self.own, Held(pieces), Held(places), TRAINED)
        made: list[Row] = []
        for bucket in range(buckets):
            batches = joining(whole.filter(pa.compute.equal(whole["bucket"], bucket)))
            made += [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
        ordered = sorted(made, key=itemgetter(*map(JOINED.names.index, ORDER)))
        by_partition: dict[int, list[Row]] = {}
        for row in ordered:
            by_partition.setdefault(row[0], []).append(row[len(ORDER) :])
        copies: dict[TopicPartition, list[Row]] = {}
        named = topics(self.own.topics)
        for row in sorted(whole.to_pylist(), key=itemgetter("piece", "row")):
            if row["payload"] is not None:
                piece = pieces[row["piece"]]
                tp = (named[KEYED_BY_TASK[piece.topic]].name, piece.partition)
                copies.setdefault(tp, []).append((row["timestamp_ms"], row["key"], row["payload"]))
        return found, copies, by_partition


def cut(batches: list[pa.RecordBatch], schema: pa.Schema, draw: random.Random) -> list[pa.Table]:
    """Return the rows in any order, in tables of any size."""
    table = pa.Table.from_batches(batches, schema)
    rows = list(range(len(table)))
    draw.shuffle(rows)
    found = []
    while rows:
        size = draw.randint(1, len(rows))
        found.append(table.take(pa.array(rows[:size], pa.int64())))
        del rows[:size]
    return found


@given(
    st.lists(st.lists(st.sampled_from(TROUBLES), max_size=3), min_size=1, max_size=6),
    st.integers(0, 2**31),
    st.sampled_from((1, 3, 5000)),
)
@checked(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
def test_parts_in_any_order_give_the_bytes_of_one_piece(tasks: list[list[str]], seed: int, at_once: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_parts, "CHUNK_RECORDS", at_once)
        case = Case.of(Log(tasks, seed), Path(folder), draw)
        expected = case.in_one_piece()
        assert case.in_parts(draw) == expected


def test_the_log_of_all_troubles_has_what_the_property_is_about(tmp_path: Path) -> None:
    """Else the property could hold for want of groups, of letters, or of records that nobody can read."""
    case = Case.of(Log([[trouble] for trouble in TROUBLES], seed=1), tmp_path, random.Random(6))
    counts, copies, made = case.in_one_piece()
    rows = [row for found in made.values() for row in found]
    assert {len(rows) > 20, any(row[1] for row in rows), counts["unreadable"] > 0, len(copies) > 5} == {True}
    assert case.in_parts(random.Random(4)) == (counts, copies, made)


def test_times_that_go_back_are_read_as_the_merged_topics_are(tmp_path: Path) -> None:
    """A producer's clock that was set back: a partition keeps its order, whatever its times say."""
    log = Log([["another sampling"], [], ["everything twice"], ["a missing slot"]], seed=5)
    for records in log.records.values():
        records[:] = [
            record._replace(timestamp_ms=record.timestamp_ms - 400 * (number % 3))
            for number, record in enumerate(records)
        ]
    case = Case.of(log, tmp_path, random.Random(8))
    assert case.in_parts(random.Random(9)) == case.in_one_piece()


def test_an_archive_with_a_gap_is_refused_with_the_offsets(tmp_path: Path) -> None:
    log = Log([[], [], []], seed=2)
    case = Case.of(log, tmp_path, random.Random(1))
    end = len(log.records["responses", 0])
    beyond = SourceRange(topic="responses", partition=0, first=0, next=end + 3)
    with pytest.raises(LogError) as raised:
        pieces_of(case.source, [beyond], KEYED_BY_TASK)
    assert f"responses[0]: offsets {end} to {end + 2} are not in the archive in {tmp_path}" in str(raised.value)
    assert "Nothing was written" in str(raised.value)


def test_a_file_that_was_taken_out_of_the_table_is_a_gap(tmp_path: Path) -> None:
    source = Settings(topics=SETTINGS.topics, archive=Archive(store=str(tmp_path)))
    archive_records(source, Log([[]] * 6, seed=2).records, repeat(3))
    reader = ArchiveReader(source)
    state = reader.state("rewards")
    assert state is not None
    extent = state.extents[0]
    gone = extent.segments[1]
    assert reader.table("rewards").commit(state, Change(removed=(gone,)))
    whole = SourceRange(topic="rewards", partition=0, first=extent.first, next=extent.next)
    with pytest.raises(
        LogError, match=rf"rewards\[0\]: offsets {gone.first} to {gone.next - 1} are not in the archive"
    ):
        pieces_of(source, [whole], KEYED_BY_TASK)
