"""The archive holds every record of its range, exactly as it was, however often and by whomever it was written."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from schemas import versions
from schemas.events import Reward, Task
from streams.arrow.decode import decode
from streams.errors import LogError, StreamwardError
from streams.kafka import admin
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.tools.archive import sync as archive_sync
from streams.tools.archive.columns import as_archived, segment_schema
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.store import HALF
from streams.tools.archive.sync import sync
from streams.tools.archive.tables import Change, TableState
from streams.tools.archive.verify import verify
from tests.chaos.disks import NotShown, fill, free, read_only, small_disk, writable
from tests.chaos.proxy import free_ports
from tests.support.log.archived import ONE, cut, deleted, held, in_the_log, name, of, settings, small, write, write_odd
from tests.support.processes import command, environment, running, spawn, until
from tests.support.scrape import get, parse

__all__ = ["settings"]
pytestmark = pytest.mark.kafka


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
    (segment,) = ArchiveReader(made).segments("rewards", ONE)
    table = as_archived(pq.ParquetFile(segment.path).read())
    assert table.schema.equals(segment_schema(Reward))
    decoded = decode(Reward, in_the_log(made))
    names = [name for name in decoded.table.column_names if name != "_partition"]
    good = table.filter(table["_bad"].is_null()).select(names).cast(decoded.table.select(names).schema)
    assert good.equals(decoded.table.select(names))
    bad = table.filter(table["_bad"].is_valid())
    assert list(zip(bad["_offset"].to_pylist(), bad["_bad"].to_pylist(), strict=True)) == [
        (each.at.offset, each.reason) for each in decoded.bad
    ]
    assert set(bad["reward_id"].to_pylist()) == {None}
    ids = sorted(versions.files().newest(event).id for event in (Reward, Task))
    assert segment.schema_ids == tuple(ids)


def test_segments_are_cut_by_size_and_the_next_sync_goes_on(made: Settings) -> None:
    write(made, 25)
    sync(small(made), ["rewards"])
    write(made, 3, first=25)
    sync(small(made), ["rewards"])
    sync(small(made), ["rewards"])
    segments = ArchiveReader(made).segments("rewards", ONE)
    assert [(each.first, each.next) for each in segments] == [(0, 10), (10, 20), (20, 25), (25, 28)]
    assert [each.records for each in segments] == [10, 10, 5, 3]
    assert held(of(made)) == in_the_log(made)


def test_an_archive_begins_where_the_log_does(made: Settings) -> None:
    write(made, 10)
    cut(made, 4)
    sync(made, ["rewards"])
    assert [record.at.offset for record in held(of(made))] == list(range(4, 10))


# --- killed, and two at once ------------------------------------------------------------------------------------------


def started(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    return spawn(
        command("admin", "archive", "sync", "rewards"), env=environment(settings), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def files(settings: Settings) -> set[str]:
    return {path.name for path in (Path(settings.archive.store) / name(settings)).glob("_partition=*/*/*.parquet")}


@pytest.mark.kills
def test_a_killed_sync_leaves_nothing_that_the_next_one_does_not_put_right(made: Settings, tmp_path: Path) -> None:
    settings = small(made, 10)
    write(settings, 500)
    rng = random.Random(5)
    for _ in range(2):
        seen = len(files(settings))
        process = started(settings, tmp_path)
        deadline = time.monotonic() + 300
        while len(files(settings)) <= seen and process.poll() is None:  # it has begun to write
            assert time.monotonic() < deadline
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # and had not ended
    sync(settings, ["rewards"])
    assert verify(settings).findings == ()
    assert held(of(settings)) == in_the_log(settings)
    table = ArchiveReader(settings).table("rewards")
    table.vacuum(0)
    segments = ArchiveReader(settings).segments("rewards", ONE)
    assert files(settings) == {segment.path.rsplit("/", 1)[-1] for segment in segments}
    assert not list((Path(settings.archive.store) / name(settings)).glob(f"{HALF}*"))


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
    assert [process.wait(300) for process in both] == [0, 0]
    assert verify(made).findings == ()
    assert held(of(made)) == in_the_log(made)


def test_another_sync_may_be_first_after_any_commit(made: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits then has been read already, and is read again from where the other one ends."""
    write(made, 5)
    sync(made, ["rewards"])
    write(made, 295, first=5)
    bounds = admin.offsets(made, ["rewards"])
    with ThreadPoolExecutor(archive_sync.WRITERS) as writers:
        slow = archive_sync.TopicSync(small(made, 29), "rewards", writers)
        commit = slow._table.commit

        def commit_before_another(state: TableState, change: Change) -> bool:
            committed = commit(state, change)
            if other:
                sync(other.pop(), ["rewards"])
            return committed

        other = [small(made, 17)]
        monkeypatch.setattr(slow._table, "commit", commit_before_another)
        (done,) = slow.archive_new({ONE: bounds[name(made), ONE]}, threading.Event())
    assert (done.next, slow.troubles) == (300, [])
    assert verify(made).findings == ()
    assert held(of(made)) == in_the_log(made)


def test_another_sync_may_have_seen_a_longer_log(made: Settings) -> None:
    write(made, 5)
    bounds = admin.offsets(made, ["rewards"])
    write(made, 2, first=5)
    sync(made, ["rewards"])
    with ThreadPoolExecutor(1) as writers:
        slow = archive_sync.TopicSync(made, "rewards", writers)
        (done,) = slow.archive_new({ONE: bounds[name(made), ONE]}, threading.Event())
    assert (done.next, slow.troubles) == (7, [])


def test_follow_archives_what_comes_until_it_is_stopped(made: Settings) -> None:
    write(made, 3)
    stop = threading.Event()
    quick = made.model_copy(update={"archive": made.archive.model_copy(update={"follow_s": 0.05})})
    following = threading.Thread(target=sync, args=(quick, ["rewards"]), kwargs={"stop": stop, "follow": True})
    following.start()
    until(lambda: ArchiveReader(made).next_offset("rewards", ONE) == 3, "three records in the archive")
    write(made, 2, first=3)
    until(lambda: ArchiveReader(made).next_offset("rewards", ONE) == 5, "five records in the archive")
    stop.set()
    following.join(300)
    assert held(of(made)) == in_the_log(made)


def test_while_it_archives_it_says_how_many_records_are_left_and_how_old_they_are(made: Settings) -> None:
    meter = Meter("archive")
    told: list[tuple[float, float]] = []

    class Asked(threading.Event):
        """Asks for the metrics whenever the sync asks whether to stop."""

        def is_set(self) -> bool:
            found = parse(meter.text())
            if found.samples:
                told.append(
                    (
                        found.total(catalog.ARCHIVE_LAG_RECORDS.name, topic="rewards"),
                        found.total(catalog.ARCHIVE_LAG_SECONDS.name, topic="rewards"),
                    )
                )
            return super().is_set()

    small = made.model_copy(update={"archive": made.archive.model_copy(update={"segment_records": 2})})
    write(made, 5)
    sync(small, ["rewards"], stop=Asked(), meter=meter)
    records = [left for left, _ in told]
    assert records == sorted(records, reverse=True) and set(records) == {5, 3, 1, 0}
    assert all(age == 0 or 3_600 < age < 3_700 for _, age in told) and {age > 0 for _, age in told} == {False, True}
    write(made, 2, first=5)
    told.clear()
    sync(made, ["rewards"], stop=Asked(), meter=meter)
    assert told[0] == (2, 0), "one that was never read has no age"
    found = parse(meter.text())
    for metric in (catalog.ARCHIVE_LAG_RECORDS, catalog.ARCHIVE_LAG_SECONDS):
        assert [sample.value for sample in found.family(metric.name)] == [0]


def test_what_cannot_be_archived_is_still_counted(made: Settings) -> None:
    meter = Meter("archive")
    write(made, 5)
    sync(made, ["rewards"], meter=meter)
    write(made, 6, first=5)
    cut(made, 8)
    with pytest.raises(LogError, match="retention has deleted"):
        sync(made, ["rewards"], meter=meter)
    assert parse(meter.text()).total(catalog.ARCHIVE_LAG_RECORDS.name) == 6


def test_a_process_that_follows_is_watched_like_the_others(made: Settings, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    watched = made.model_copy(
        update={
            "archive": made.archive.model_copy(update={"follow_s": 0.1}),
            "metrics": made.metrics.model_copy(update={"port": port}),
        }
    )
    url = f"http://127.0.0.1:{port}"
    write(made, 4)
    with running(watched, tmp_path, "admin archive sync rewards --follow"):
        until(lambda: get(f"{url}/readyz") == (200, "ok\n"), "it to be ready", folder=tmp_path)
        until(lambda: ArchiveReader(made).next_offset("rewards", ONE) == 4, "four records", folder=tmp_path)
        assert get(f"{url}/healthz")[0] == 200
        found = parse(get(f"{url}/metrics")[1])
        own = {metric.name for metric in catalog.all_metrics() if "archive" in metric.processes and not metric.needs}
        assert (
            own
            <= set(found.kinds)
            <= {metric.name for metric in catalog.all_metrics() if "archive" in metric.processes}
        )
        assert found.total(catalog.PROCESS.name, process="archive") == 1
        assert {sample.labels["topic"] for sample in found.family(catalog.ARCHIVE_LAG_RECORDS.name)} == {"rewards"}


# --- a log that does not go on where the archive ends -----------------------------------------------------------------


def test_what_retention_cut_before_it_was_archived_is_an_error_and_the_rest_is_archived(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    write(made, 6, first=5)
    write(made, 4, partition=2)
    cut(made, 8)
    expected = rf"rewards\[{ONE}\]: begins at offset 8, but the archive in .* ends at 5: .*deleted 3 rec"
    with pytest.raises(LogError, match=expected):
        sync(made, ["rewards"])
    assert (ArchiveReader(made).next_offset("rewards", ONE), ArchiveReader(made).next_offset("rewards", 2)) == (5, 4)
    with pytest.raises(
        LogError, match=rf"rewards\[{ONE}\]: offsets 5 to 7 are neither in the archive .*3 records are lost"
    ):
        held(of(made, "auto"))


@pytest.mark.parametrize("records", [3, 9])
def test_a_topic_that_was_made_anew_is_not_mixed_with_the_archive_of_the_old_one(made: Settings, records: int) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    deleted(made)
    admin.apply_topics(made)
    write(made, records, first=100)
    with pytest.raises(LogError, match=rf"rewards\[{ONE}\].*the topic was recreated"):
        sync(made, ["rewards"])
    with pytest.raises(LogError, match=rf"rewards\[{ONE}\].*the topic was recreated"):
        held(of(made, "auto"))
    assert verify(made).findings == ()
    assert len(held(of(made, "archive"))) == 5
