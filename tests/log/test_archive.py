"""The archive holds every record of its range, exactly as it was, however often and by whomever it was written."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import fsspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import admin
from factories import reward, task
from running import command, environment, until

from schemas.events import Coordinates, Reward
from schemas.serde import encode
from streams import cluster, history
from streams.archive import sync as archive_sync
from streams.archive.restore import PLACEHOLDER, restore
from streams.archive.segments import Archive, manifest_numbers
from streams.archive.sync import segment_schema, sync
from streams.archive.verify import verify
from streams.cli.root import cli
from streams.columns.decode import decode
from streams.errors import LogError, NotFoundError, RefusedError, StreamwardError
from streams.log import Producer, Record, client_config
from streams.settings import Settings, to_env
from streams.topics import topics
from tests.chaos.disks import NotShown, fill, free, read_only, small_disk, writable

pytestmark = pytest.mark.kafka

ONE = 1
"""The partition most of these records lie in."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings of few partitions: each costs time to create, and to look at."""
    shapes = settings.topics.model_copy(update={"partitions": 3, "policy_partitions": 1})
    return settings.model_copy(update={"topics": shapes})


def name(settings: Settings, label: str = "rewards") -> str:
    return topics(settings.topics)[label].name


def write(settings: Settings, count: int, *, first: int = 0, partition: int = ONE) -> None:
    """Write rewards with rising values, the newest an hour old."""
    begin_ms = int(time.time() * 1000) - 3_600_000
    with Producer(settings) as producer:
        for number in range(first, first + count):
            event = reward(task_id=f"t{number}", value=float(number))
            producer.send_bytes(
                name(settings), event.task_id.encode(), encode(event), timestamp_ms=begin_ms + number,
                partition=partition, headers=[("n", b"%d" % number)],
            )  # fmt: skip


def write_odd(settings: Settings) -> int:
    """Write what a topic may hold besides events of ours; return how many records that is."""
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, encode(reward()), []),
        (b"", encode(reward()), [("twice", b"1"), ("twice", b"2"), ("none", None), ("empty", b"")]),
        (b"\xff\xfe key", encode(reward()), []),
        (b"k", None, []),
        (b"k", b"", []),
        (b"k", b'{"not": "avro"}', []),
        (b"k", encode(task()), []),
        (b"k", encode(reward()) + b"x", []),
        (b"k", struct.pack(">bI", 0, 4_000_000_000) + b"x", []),
    ]
    with Producer(settings) as producer:
        for key, payload, headers in odd:
            producer.send_bytes(name(settings), key, payload, partition=ONE, headers=headers)
    return len(odd)


def cut(settings: Settings, before: int, partition: int = ONE, label: str = "rewards") -> None:
    """Delete every record before an offset, as retention does."""
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_records([ck.TopicPartition(name(settings, label), partition, before)]).values():
        future.result()


def deleted(settings: Settings, label: str = "rewards") -> None:
    """Delete the topic, and wait until it is gone."""
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_topics([name(settings, label)]).values():
        future.result()
    deadline = time.monotonic() + 60
    while name(settings, label) in cluster.describe(settings):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_the_log(settings: Settings, label: str = "rewards") -> list[Record]:
    return sorted(cluster.read_topic(settings, label), key=lambda record: record.at)


def held(source: history.History, label: str = "rewards") -> list[Record]:
    """Return every record of a history."""
    bounds = source.bounds([label])
    starts, ends = {tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()}
    return sorted(source.read(starts, ends), key=lambda record: record.at)


def small(settings: Settings, records: int = 10) -> Settings:
    """Return the settings with small segments."""
    return settings.model_copy(update={"archive": settings.archive.model_copy(update={"segment_records": records})})


def of(settings: Settings, source: Any = "archive") -> history.History:
    return history.of(settings, source)


def run(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["archive", *arguments], env=to_env(settings))


# --- every record, exactly --------------------------------------------------------------------------------------------


def test_what_is_archived_is_what_the_log_holds(made: Settings) -> None:
    write(made, 25)
    odd = write_odd(made)
    write(made, 7, partition=2)
    done = {each.partition: each for each in sync(small(made), ["rewards"])}
    assert (done[ONE].first, done[ONE].next, done[ONE].bad) == (0, 25 + odd, 6)
    assert done[0].records == 0
    assert held(of(made)) == in_the_log(made)
    assert len(held(of(made))) == 25 + odd + 7
    assert verify(made).findings == ()
    assert (verify(made).records, verify(made).bad) == (25 + odd + 7, 6)


def test_a_segment_has_the_events_as_columns_and_says_why_a_record_is_none(made: Settings) -> None:
    write(made, 5)
    write_odd(made)
    sync(made, ["rewards"])
    (segment,) = Archive(made).segments("rewards", ONE)
    table = pq.read_table(segment.path)
    assert table.schema == segment_schema(Reward)
    decoded = decode(Reward, in_the_log(made))
    good = table.filter(table["_bad"].is_null()).select(decoded.table.column_names)
    assert good.equals(decoded.table)
    bad = table.filter(table["_bad"].is_valid())
    assert list(zip(bad["_offset"].to_pylist(), bad["_bad"].to_pylist(), strict=True)) == [
        (each.at.offset, each.reason) for each in decoded.bad
    ]
    assert set(bad["reward_id"].to_pylist()) == {None}
    assert segment.schema_ids == (1, 3)


def test_segments_are_cut_by_size_and_the_next_sync_goes_on(made: Settings) -> None:
    write(made, 25)
    sync(small(made), ["rewards"])
    write(made, 3, first=25)
    sync(small(made), ["rewards"])
    sync(small(made), ["rewards"])
    segments = Archive(made).segments("rewards", ONE)
    assert [(each.first, each.next) for each in segments] == [(0, 10), (10, 20), (20, 25), (25, 28)]
    assert [each.records for each in segments] == [10, 10, 5, 3]
    assert held(of(made)) == in_the_log(made)


def test_an_archive_begins_where_the_log_does(made: Settings) -> None:
    write(made, 10)
    cut(made, 4)
    sync(made, ["rewards"])
    assert [record.at.offset for record in held(of(made))] == list(range(4, 10))


def test_many_syncs_keep_few_manifests(made: Settings) -> None:
    write(made, 40)
    sync(small(made, 1), ["rewards"])
    folder = Path(made.archive.store) / name(made) / str(ONE)
    assert len(Archive(made).segments("rewards", ONE)) == 40
    assert len(manifest_numbers([path.name for path in folder.iterdir()])) <= 17


# --- killed, and two at once ------------------------------------------------------------------------------------------


def started(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("archive", "sync", "rewards"), env=environment(settings), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def files(settings: Settings) -> set[str]:
    return {path.name for path in (Path(settings.archive.store) / name(settings) / str(ONE)).glob("*")}


def test_a_killed_sync_leaves_nothing_that_the_next_one_does_not_put_right(made: Settings, tmp_path: Path) -> None:
    settings = small(made, 10)
    write(settings, 1500)
    rng = random.Random(5)
    for _ in range(2):
        seen = len(files(settings))
        process = started(settings, tmp_path)
        deadline = time.monotonic() + 60
        while len(files(settings)) <= seen and process.poll() is None:  # it has begun to write
            assert time.monotonic() < deadline
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # and had not ended
    sync(settings, ["rewards"])
    assert verify(settings).findings == ()
    assert held(of(settings)) == in_the_log(settings)
    named = {segment.path.rsplit("/", 1)[-1] for segment in Archive(settings).segments("rewards", ONE)}
    assert {file for file in files(settings) if not file.endswith(".json")} == named


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_takes_nothing_is_named_and_nothing_is_missing_when_it_does_again(
    made: Settings, kind: str
) -> None:
    write(made, 3000)
    with _small_disk() as disk:
        there = made.model_copy(update={"archive": made.archive.model_copy(update={"store": str(disk)})})
        sync(there, ["tasks"])
        if kind == "full":
            fill(disk)
        else:
            read_only(disk)
        with pytest.raises(StreamwardError, match=f"{disk}.*(No space left|Read-only)"):
            sync(there, ["rewards"])
        free(disk) if kind == "full" else writable(disk)
        sync(there, ["rewards"])
        verified = verify(there, ["rewards"])
        assert (verified.records, verified.findings) == (3000, ())


@contextlib.contextmanager
def _small_disk() -> Iterator[Path]:
    try:
        with small_disk(8) as disk:
            yield disk
    except NotShown as exc:
        pytest.skip(f"NOT SHOWN: {exc}")


def test_two_syncs_at_once_archive_each_record_once(made: Settings, tmp_path: Path) -> None:
    write(made, 1000)
    both = [started(small(made, records), tmp_path) for records in (17, 29)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert verify(made).findings == ()
    assert held(of(made)) == in_the_log(made)


def test_another_sync_may_have_seen_a_longer_log(made: Settings) -> None:
    write(made, 5)
    bounds = cluster.offsets(made, ["rewards"])
    write(made, 2, first=5)
    sync(made, ["rewards"])
    slow = archive_sync._Partition(made, "rewards", (name(made), ONE), 3)
    assert slow.archived(*bounds[name(made), ONE], threading.Event()).next == 7


def test_follow_archives_what_comes_until_it_is_stopped(made: Settings) -> None:
    write(made, 3)
    stop = threading.Event()
    quick = made.model_copy(update={"archive": made.archive.model_copy(update={"follow_s": 0.05})})
    following = threading.Thread(target=sync, args=(quick, ["rewards"]), kwargs={"stop": stop, "follow": True})
    following.start()
    until(lambda: Archive(made).next_offset("rewards", ONE) == 3, "three records in the archive")
    write(made, 2, first=3)
    until(lambda: Archive(made).next_offset("rewards", ONE) == 5, "five records in the archive")
    stop.set()
    following.join(60)
    assert held(of(made)) == in_the_log(made)


# --- a log that does not go on where the archive ends -----------------------------------------------------------------


def test_what_retention_cut_before_it_was_archived_is_an_error_and_the_rest_is_archived(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    write(made, 6, first=5)
    write(made, 4, partition=2)
    cut(made, 8)
    expected = (
        rf"rewards\[{ONE}\]: the first record there is has offset 8, but the archive in .* ends at 5: .*cut 3 rec"
    )
    with pytest.raises(LogError, match=expected):
        sync(made, ["rewards"])
    assert (Archive(made).next_offset("rewards", ONE), Archive(made).next_offset("rewards", 2)) == (5, 4)
    with pytest.raises(
        LogError, match=rf"rewards\[{ONE}\]: offsets 5 to 7 are neither in the archive .*3 records are lost"
    ):
        held(of(made, "auto"))


@pytest.mark.parametrize("records", [3, 9])
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_archive_of_the_old_one(made: Settings, records: int) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    deleted(made)
    cluster.apply_topics(made)
    write(made, records, first=100)
    with pytest.raises(LogError, match=rf"rewards\[{ONE}\].*the topic was made anew"):
        sync(made, ["rewards"])
    with pytest.raises(LogError, match=rf"rewards\[{ONE}\].*the topic was made anew"):
        held(of(made, "auto"))
    assert verify(made).findings == ()
    assert len(held(of(made, "archive"))) == 5


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def first_segment(settings: Settings) -> Path:
    return Path(Archive(settings).segments("rewards", ONE)[0].path)


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_changed_byte_is_named_by_verify_and_by_every_reader(made: Settings, place: float) -> None:
    write(made, 20)
    sync(small(made), ["rewards"])
    path = first_segment(made)
    damaged(path, int(place * path.stat().st_size))
    (finding,) = verify(made).findings
    assert finding.file == str(path) and "has sha256" in finding.what
    for source in ("archive", "auto"):
        with pytest.raises(LogError, match=rf"{path.name}: has sha256 .*a byte was changed.*offsets 0 to 9"):
            held(of(made, source))
        with pytest.raises(LogError, match=path.name):
            of(made, source).fetch([Coordinates(name(made), ONE, 3)])
    assert run(made, "verify").exit_code == 1


def test_a_missing_segment_is_named_by_verify_and_by_every_reader(made: Settings) -> None:
    write(made, 20)
    sync(small(made), ["rewards"])
    path = first_segment(made)
    path.unlink()
    result = run(made, "verify", "rewards")
    assert (result.exit_code, json.loads(result.stdout)["file"]) == (1, str(path))
    with pytest.raises(
        LogError, match=rf"{path.name}: this segment is missing, and with it 10 records of rewards\[{ONE}\]"
    ):
        held(of(made))
    with pytest.raises(LogError, match="this segment is missing"):
        restore(made, ["rewards"], into=elsewhere(made))


def test_a_partition_that_is_gone_is_named(made: Settings) -> None:
    write(made, 3)
    sync(made, ["rewards"])
    folder = first_segment(made).parent
    for path in folder.iterdir():
        if path.suffix == ".json":
            path.unlink()
    assert [finding.what for finding in verify(made).findings] == ["holds 1 segments, and its manifest is gone"]
    shutil.rmtree(folder)
    (finding,) = verify(made).findings
    assert (finding.file, finding.partition) == (str(folder), ONE)
    with pytest.raises(LogError, match=r"holds 2 partitions of .*rewards, expected 3"):
        of(made).bounds(["rewards"])


def test_a_changed_manifest_is_named(made: Settings) -> None:
    write(made, 3)
    sync(made, ["rewards"])
    (path,) = (first_segment(made).parent).glob("00000002.json")
    path.write_text(path.read_text().replace('"records": 3', '"records": 2'))
    assert [finding.what for finding in verify(made).findings if "not the manifest that was written" in finding.what]
    with pytest.raises(LogError, match=r"00000002\.json: not the manifest that was written here: its sha256 is"):
        held(of(made))


def test_a_cut_off_footer_is_seen_by_the_quick_look_too(made: Settings) -> None:
    write(made, 3)
    sync(made, ["rewards"])
    (segment,) = Archive(made).segments("rewards", ONE)
    Archive(made).sound(segment)
    damaged(Path(segment.path), segment.bytes - 20)
    with pytest.raises(LogError, match="has another footer"):
        Archive(made).sound(segment)


# --- archive and log together -----------------------------------------------------------------------------------------


def test_archive_and_log_are_read_as_one_nothing_twice_and_nothing_missing(made: Settings) -> None:
    write(made, 30)
    sync(small(made), ["rewards"])
    write(made, 12, first=30)
    whole = in_the_log(made)
    cut(made, 21)
    both = of(made, "auto")
    tp = (name(made), ONE)
    assert both.bounds(["rewards"])[tp] == (0, 42)
    assert held(both) == whole
    for start, end in ((0, 5), (25, 35), (30, 42), (29, 30), (33, 33), (35, 40)):
        assert list(both.read({tp: start}, {tp: end})) == whole[start:end]
    wanted = [whole[n].at for n in (41, 3, 29, 30, 3)]
    assert both.fetch(wanted) == {at: whole[at.offset] for at in wanted}
    assert both.fetch([]) == {}


def test_without_an_archive_there_is_the_log_alone(made: Settings) -> None:
    write(made, 4)
    assert held(of(made, "auto")) == in_the_log(made) == held(of(made, "log"))
    with pytest.raises(NotFoundError, match=r"does not hold .*rewards; run `streamward archive sync`"):
        of(made, "archive").bounds(["rewards"])


def test_the_archive_is_read_without_a_broker_and_says_what_it_does_not_have(made: Settings) -> None:
    write(made, 4)
    sync(made, ["rewards"])
    there = in_the_log(made)
    gone = made.model_copy(update={"kafka": made.kafka.model_copy(update={"bootstrap": "127.0.0.1:1"})})
    assert held(of(gone)) == there
    tp = (name(made), ONE)
    with pytest.raises(
        LogError, match=rf"rewards\[{ONE}\]: offsets 2 to 8 are wanted, and the archive .* holds 0 to 3"
    ):
        list(of(gone).read({tp: 2}, {tp: 9}))
    with pytest.raises(LogError, match="offsets 4 to 4 are wanted"):
        of(gone).fetch([Coordinates(*tp, 4)])


def test_a_topic_that_was_deleted_is_read_from_the_archive(made: Settings) -> None:
    write(made, 4)
    sync(made, ["rewards"])
    there = in_the_log(made)
    deleted(made)
    assert held(of(made, "auto")) == there
    cluster.apply_topics(made)
    assert held(of(made, "auto")) == there


# --- back into the log ------------------------------------------------------------------------------------------------


def elsewhere(settings: Settings) -> Settings:
    """Return settings with other topics."""
    shapes = settings.topics.model_copy(update={"prefix": settings.topics.prefix + "again."})
    return settings.model_copy(update={"topics": shapes})


def renamed(records: list[Record], settings: Settings) -> list[Record]:
    return [record._replace(at=record.at._replace(topic=name(settings))) for record in records]


def test_what_is_restored_is_what_was_there_offsets_and_all(made: Settings) -> None:
    write(made, 30)
    write_odd(made)
    write(made, 5, partition=0)
    cut(made, 11)
    sync(small(made), ["rewards"])
    there = in_the_log(made)
    deleted(made)
    done = {each.partition: each for each in restore(made, ["rewards"])}
    assert (done[ONE].first, done[ONE].records) == (11, 28)
    assert cluster.offsets(made, ["rewards"])[name(made), ONE] == (11, 39)
    assert in_the_log(made) == there
    assert cluster.configs(made, [name(made)])[name(made)]["retention.ms"] == "-1"
    assert {each.records for each in restore(made, ["rewards"])} == {0}
    write(made, 1, first=99)  # and the archive goes on
    assert {each.partition: each.records for each in sync(made, ["rewards"])}[ONE] == 1
    assert held(of(made)) == in_the_log(made)


def test_an_interrupted_restore_goes_on_where_it_was(made: Settings) -> None:
    write(made, 30)
    cut(made, 6)
    sync(made, ["rewards"])
    there = in_the_log(made)
    into = elsewhere(made)
    cluster.apply_topics(into)
    with Producer(into) as producer:
        for _ in range(4):
            producer.send_bytes(name(into), None, PLACEHOLDER, partition=ONE)
    assert {each.partition: each.records for each in restore(made, ["rewards"], into=into)}[ONE] == 24
    third = elsewhere(into)
    cluster.apply_topics(third)
    with Producer(third) as producer:
        for _ in range(6):
            producer.send_bytes(name(third), None, PLACEHOLDER, partition=ONE)
        for record in there[:9]:
            producer.send_bytes(
                name(third), record.key, record.payload, partition=ONE, timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )  # fmt: skip
    assert {each.partition: each.records for each in restore(made, ["rewards"], into=third)}[ONE] == 15
    for target in (into, third):
        assert in_the_log(target) == renamed(there, target)


def test_a_topic_that_is_not_empty_is_refused_and_left_as_it_was(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    into = elsewhere(made)
    cluster.apply_topics(into)
    write(into, 2, first=50, partition=0)
    write(into, 2, first=50)
    before = in_the_log(into)
    with pytest.raises(RefusedError, match=r"rewards\[\d\]: holds offsets 0 to 1, expected an empty partition"):
        restore(made, ["rewards"], into=into)
    assert in_the_log(into) == before


def test_a_topic_with_other_partitions_is_refused(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    shapes = made.topics.model_copy(update={"prefix": made.topics.prefix + "again.", "partitions": 4})
    with pytest.raises(RefusedError, match="has 4 partitions, expected 3"):
        restore(made, ["rewards"], into=made.model_copy(update={"topics": shapes}))


def test_nothing_archived_is_nothing_to_restore(made: Settings) -> None:
    with pytest.raises(NotFoundError, match="holds nothing of rewards"):
        restore(made, ["rewards"])


# --- the commands -----------------------------------------------------------------------------------------------------


def test_the_commands_sync_list_verify_and_restore(made: Settings) -> None:
    write(made, 12)
    write_odd(made)
    result = run(made, "sync", "rewards")
    assert result.exit_code == 0, result.output
    (row,) = (row for row in map(json.loads, result.stdout.splitlines()) if row["partition"] == ONE)
    assert row == {"topic": "rewards", "partition": ONE, "first": 0, "next": 21, "records": 21, "bad": 6, "segments": 1}
    assert "21 records archived" in result.stderr and "6 of them are no event" in result.stderr
    (row,) = (row for row in map(json.loads, run(made, "list").stdout.splitlines()) if row["partition"] == ONE)
    assert (row["records"], row["segments"], row["schema_ids"]) == (21, 1, [1, 3])
    assert run(made, "verify").exit_code == 0
    result = run(made, "restore", "rewards", "--into-prefix", elsewhere(made).topics.prefix)
    assert result.exit_code == 0, result.output
    assert "21 records are back" in result.stderr and "retention.ms=-1" in result.stderr
    assert in_the_log(elsewhere(made)) == renamed(in_the_log(made), elsewhere(made))
    cut(made, 21)
    write(made, 3)
    cut(made, 23)
    assert run(made, "sync", "rewards").exit_code == 5


def test_an_archive_that_holds_nothing_says_so(made: Settings) -> None:
    result = run(made, "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "holds nothing" in result.stderr
    assert run(made, "restore").exit_code == 3


# --- an object store --------------------------------------------------------------------------------------------------


def test_an_object_store_holds_an_archive_too(made: Settings) -> None:
    store = f"memory://{made.topics.prefix}archive"
    there = made.model_copy(update={"archive": made.archive.model_copy(update={"store": store, "segment_records": 10})})
    write(there, 25)
    sync(there, ["rewards"])
    write(there, 4, first=25)
    sync(there, ["rewards"])
    segments = Archive(there).segments("rewards", ONE)
    assert [each.next for each in segments] == [10, 20, 25, 29]
    assert segments[0].path.startswith("memory://")
    assert verify(there).findings == ()
    assert held(of(there)) == held(of(there, "auto")) == in_the_log(there)
    restore(there, ["rewards"], into=elsewhere(there))
    assert in_the_log(elsewhere(there)) == renamed(in_the_log(there), elsewhere(there))
    fsspec.filesystem("memory").rm_file(segments[1].path)
    (finding,) = verify(there).findings
    assert finding.file == segments[1].path
