"""An archive is read like the log, and with it; and where it is damaged, that is named before anything is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.events import Coordinates
from streams.errors import LogError, NotFoundError
from streams.kafka import admin
from streams.settings.load import to_env
from streams.settings.model import Settings
from streams.tools.archive.restore import restore
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.sync import sync
from streams.tools.archive.verify import verify
from tests.support.log.archived import (
    ONE,
    cut,
    deleted,
    elsewhere,
    held,
    in_the_log,
    name,
    of,
    run,
    settings,
    small,
    write,
)

__all__ = ["settings"]
pytestmark = pytest.mark.kafka


THREADS = f"""
import os
from schemas.events import Coordinates
from streams.settings.load import load
from streams.tools.archive import history, segments, verify
settings = load()
topic = segments.ArchiveReader(settings).folder("rewards")
def threads():  # of Python and Arrow: those of Delta's driver hold nothing of Python's
    names = [open("/proc/self/task/" + each + "/comm").read() for each in os.listdir("/proc/self/task")]
    return len([name for name in names if "tokio" not in name and "jemalloc" not in name])
before = threads()
assert verify.verify(settings, ["rewards"]).records == 20
read = list(history.of(settings, "archive").read({{(topic, {ONE}): 0}}, {{(topic, {ONE}): 20}}))
segments.ArchiveReader(settings).fetch([Coordinates(topic, {ONE}, 3)])
print(before, threads(), len(read))
"""
"""Counts the threads of a process before and after it reads an archive in each way."""

# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def first_segment(settings: Settings) -> Path:
    return Path(ArchiveReader(settings).segments("rewards", ONE)[0].path)


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_changed_byte_is_named_by_verify_and_by_every_reader(made: Settings, place: float) -> None:
    write(made, 20)
    sync(small(made), ["rewards"])
    path = first_segment(made)
    damaged(path, int(place * path.stat().st_size))
    (finding,) = verify(made).findings
    assert finding.file == str(path) and "has sha256" in finding.what
    for source in ("archive", "auto"):
        with pytest.raises(LogError, match=rf"{path.name}: has sha256 .*it was changed.*offsets 0 to 9"):
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
    folder = first_segment(made).parents[1]
    shutil.rmtree(folder)
    (finding,) = verify(made).findings
    assert (finding.partition, Path(finding.file).parents[1]) == (ONE, folder)
    log = folder.parent / "_delta_log"
    log.rename(log.with_name("elsewhere"))
    (finding,) = verify(made).findings
    assert finding.partition is None and finding.what.endswith("and no Delta log")
    with pytest.raises(NotFoundError, match=r"does not hold .*rewards"):
        of(made).bounds(["rewards"])


@pytest.mark.parametrize(
    ("said", "changed", "what"),
    [
        (r"\"numRecords\": 3", r"\"numRecords\": 2", "has 3 records, expected 2"),
        ('"version":3', '"version":4', "is archived up to offset 4, but its files end at 3"),
        ('{"add"', '{"ad', "its Delta log cannot be read"),
        ("_day=", "_day=../", "which is no segment's file"),
    ],
)
def test_a_changed_log_of_the_table_is_named(made: Settings, said: str, changed: str, what: str) -> None:
    write(made, 3)
    sync(made, ["rewards"])
    path = first_segment(made).parents[2] / "_delta_log" / f"{2:020d}.json"
    assert said in path.read_text()
    path.write_text(path.read_text().replace(said, changed))
    assert any(what in finding.what for finding in verify(made).findings)


def test_a_cut_off_footer_is_seen_by_the_quick_look_too(made: Settings) -> None:
    write(made, 3)
    sync(made, ["rewards"])
    (segment,) = ArchiveReader(made).segments("rewards", ONE)
    ArchiveReader(made).sound(segment)
    damaged(Path(segment.path), segment.bytes - 20)
    with pytest.raises(LogError, match="has another footer"):
        ArchiveReader(made).sound(segment)


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
    with pytest.raises(NotFoundError, match=r"does not hold .*rewards; run `streamward admin archive sync`"):
        of(made, "archive").bounds(["rewards"])


def test_the_archive_is_read_without_a_broker_and_says_what_it_does_not_have(made: Settings) -> None:
    write(made, 4)
    sync(made, ["rewards"])
    there = in_the_log(made)
    gone = made.model_copy(update={"kafka": made.kafka.model_copy(update={"bootstrap": "127.0.0.1:1"})})
    assert held(of(gone)) == there
    tp = (name(made), ONE)
    with pytest.raises(
        LogError, match=rf"rewards\[{ONE}\]: offsets 2 to 8 were asked for, but the archive .* holds 0 to 3"
    ):
        list(of(gone).read({tp: 2}, {tp: 9}))
    with pytest.raises(LogError, match="offsets 4 to 4 were asked for"):
        of(gone).fetch([Coordinates(*tp, 4)])


def test_reading_an_archive_starts_no_thread_that_the_end_of_the_process_could_abort(made: Settings) -> None:
    """A thread of Arrow's that gives back a buffer of Python's during finalization ends it with SIGABRT, at times."""
    write(made, 20)
    sync(small(made), ["rewards"])
    ran = subprocess.run([sys.executable, "-c", THREADS], env=os.environ | to_env(made), capture_output=True, text=True,
                         timeout=300, check=True)  # fmt: skip
    before, after, read = map(int, ran.stdout.split())
    assert read == 20 and after == before


def test_a_topic_that_was_deleted_is_read_from_the_archive(made: Settings) -> None:
    write(made, 4)
    sync(made, ["rewards"])
    there = in_the_log(made)
    deleted(made)
    assert held(of(made, "auto")) == there
    admin.apply_topics(made)
    assert held(of(made, "auto")) == there
