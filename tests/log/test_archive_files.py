"""An archive stays in few files, and no longer than it is wanted; what it holds is the same before and after."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from streams.settings.model import Settings
from streams.tools.archive.compact import MERGED_RANGES, Compacted, compact, expire
from streams.tools.archive.restore import restore
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.sync import sync
from streams.tools.archive.verify import verify
from tests.support.log.archived import (
    ONE,
    elsewhere,
    held,
    in_the_log,
    of,
    renamed,
    run,
    settings,
    small,
    write,
    write_odd,
)
from tests.support.processes import command, environment, spawn

__all__ = ["settings"]
pytestmark = pytest.mark.kafka


def ranges(settings: Settings) -> list[tuple[int, int]]:
    return [(each.first, each.next) for each in ArchiveReader(settings).segments("rewards", ONE)]


def written(settings: Settings, syncs: int) -> None:
    """Write ten records before each of so many syncs, and what is no event before the last."""
    for number in range(syncs):
        write(settings, 10, first=10 * number)
        if number == syncs - 1:
            write_odd(settings)
        sync(settings, ["rewards"])


def test_small_files_become_one_and_what_they_hold_stays(made: Settings) -> None:
    written(made, 3)
    before = of(made)
    there = held(before)
    assert ranges(made) == [(0, 10), (10, 20), (20, 39)]
    assert compact(made, ["rewards"]) == [Compacted("rewards", 3, 1, 0)]
    assert ranges(made) == [(0, 39)]
    assert held(of(made)) == there == in_the_log(made)
    assert held(before) == there, "who began before reads the files that were there"
    assert verify(made).findings == ()
    write(made, 3, first=99)
    sync(made, ["rewards"])
    assert held(of(made)) == in_the_log(made)


def test_a_sync_merges_many_small_files_by_itself(made: Settings) -> None:
    write(made, 10 * (MERGED_RANGES - 1))
    sync(small(made), ["rewards"])
    assert len(ranges(made)) == MERGED_RANGES - 1
    write(made, 10, first=1000)
    sync(made, ["rewards"])
    assert len(ranges(made)) == 1
    assert held(of(made)) == in_the_log(made)


def test_files_are_merged_up_to_their_most_and_full_ones_stay(made: Settings) -> None:
    written(made, 5)
    compact(small(made, 25), ["rewards"])
    assert ranges(made) == [(0, 20), (20, 40), (40, 59)]
    compact(small(made, 25), ["rewards"])
    assert ranges(made) == [(0, 20), (20, 40), (40, 59)]


def test_two_at_once_and_a_sync_beside_them_neither_lose_nor_double_a_record(made: Settings, tmp_path: Path) -> None:
    written(made, 6)
    write(made, 50, first=500)
    started = [
        spawn(command("admin", "archive", what, "rewards"), env=environment(made), cwd=tmp_path)
        for what in ("compact", "compact", "sync")
    ]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    assert verify(made).findings == ()
    assert held(of(made)) == in_the_log(made)


@pytest.mark.kills
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5])
def test_a_killed_one_leaves_a_readable_archive(made: Settings, tmp_path: Path, after_s: float) -> None:
    written(made, 4)
    process = spawn(command("admin", "archive", "compact", "rewards"), env=environment(made), cwd=tmp_path)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    assert verify(made).findings == ()
    assert held(of(made)) == in_the_log(made)
    compact(made, ["rewards"])
    assert (len(ranges(made)), held(of(made))) == (1, in_the_log(made))


def test_what_is_older_is_removed_from_the_beginning_and_only_shown_in_a_dry_run(made: Settings) -> None:
    written(made, 3)
    there = [record for record in in_the_log(made) if record.at.partition == ONE]
    before_ms = there[20].timestamp_ms
    for dry_run in (True, False):
        (gone,) = expire(made, before_ms, ["rewards"], dry_run=dry_run)
        assert (gone.partition, gone.first, gone.records, gone.segments) == (ONE, 20, 20, 2)
        assert ranges(made)[0] == ((0, 10) if dry_run else (20, 39))
    assert expire(made, before_ms, ["rewards"]) == []
    assert held(of(made)) == there[20:]
    assert held(of(made, "auto")) == there, "the log still has what the archive has not"
    assert verify(made).findings == ()
    restore(made, ["rewards"], into=elsewhere(made))
    assert in_the_log(elsewhere(made)) == renamed(there[20:], elsewhere(made))


def test_the_commands_say_what_they_did(made: Settings) -> None:
    written(made, 3)
    result = run(made, "compact", "rewards")
    assert (result.exit_code, json.loads(result.stdout)) == (
        0, {"topic": "rewards", "before": 3, "after": 1, "removed": 0},
    )  # fmt: skip
    result = run(made, "expire", "rewards", "--older-than", "90d", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    result = run(made, "expire", "rewards", "--older-than", "0s", "--dry-run")
    assert json.loads(result.stdout)["records"] == 39 and "39 records in 1 segments would be removed" in result.stderr
    assert run(made, "expire", "rewards", "--older-than", "soon").exit_code == 2
    assert ranges(made) == [(0, 39)]
