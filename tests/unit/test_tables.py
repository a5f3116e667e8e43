"""Rows of a table, their generation, and what recovery makes of a zombie's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from streams.settings.model import Settings
from streams.worker.faust import faust_app as apps
from streams.worker.faust.faust_table import Fence, Table, generation_of
from streams.worker.faust.membership import membership

CHANGELOG = "streamward.streams-groups-changelog"


@pytest.fixture
def table() -> Iterator[Any]:
    app = apps.build_app(Settings(), worker_name="unit")
    table = apps.table(app, "groups", 4)
    assert isinstance(table, Table)
    yield table
    membership.reset(float("inf"))


def row(offset: int, key: bytes, value: bytes | None, generation: int | None, partition: int = 0) -> Any:
    headers = [] if generation is None else [("generation", b"%d" % generation)]
    message = SimpleNamespace(
        topic=CHANGELOG, partition=partition, offset=offset, key=key, value=value, headers=headers
    )  # fmt: skip
    return SimpleNamespace(key=key, value=value, message=message)


def written(table: Any) -> list[tuple[bytes, bytes | None, int, int | None]]:
    """What lies in the producer's buffer, which nobody empties: key, value, partition, generation."""
    waiting = [table.app.producer.buffer.pending.get_nowait() for _ in range(table.app.producer.buffer.pending.qsize())]
    return [(f.message.key, f.message.value, f.message.partition, generation_of(f.message.headers)) for f in waiting]


def test_row_of_an_older_generation_behind_a_newer_one_does_not_hold() -> None:
    fence = Fence()
    given = [(0, 5), (1, 5), (2, 7), (3, 5), (4, 7), (5, 6), (6, 8)]
    assert [fence.admits(0, *one) for one in given] == [True, True, True, False, True, False, True]
    assert fence.admits(1, 0, 5)  # another partition


def test_rows_that_say_no_generation_hold_in_the_order_in_which_they_lie() -> None:
    # Those of an earlier version of Streamward, before and after newer ones: two versions may share a group.
    fence = Fence()
    assert [fence.admits(0, offset, generation) for offset, generation in enumerate([None, 5, None, 5])] == [True] * 4


def test_changelog_that_is_read_again_from_its_start_holds_again() -> None:
    fence = Fence()
    assert [fence.admits(0, offset, generation) for offset, generation in [(0, 1), (1, 9)]] == [True, True]
    assert [fence.admits(0, offset, generation) for offset, generation in [(0, 1), (1, 9)]] == [True, True]


def test_rows_of_a_group_that_was_deleted_and_begins_again_come_after_the_old_ones() -> None:
    fence = Fence()
    assert fence.generation(0, current=3) == 3
    fence.admits(0, 0, 37)
    assert fence.generation(0, current=38) == 38
    assert fence.generation(0, current=1) == 38
    assert fence.generation(1, current=1) == 1


async def test_row_carries_its_generation_and_so_does_its_tombstone(table: Any) -> None:
    table.app.consumer_generation_id = 4
    table.send_changelog(2, b"k", b"row")
    table.send_changelog(2, b"k", None, value_serializer="raw")
    assert written(table) == [(b"k", b"row", 2, 4), (b"k", None, 2, 4)]


async def test_rows_and_tombstones_of_a_zombie_are_passed_over_and_what_they_cover_is_written_again(
    table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table.app.consumer_generation_id = 7
    table.apply_changelog_batch(
        [
            row(0, b"a", b"old", 5),
            row(1, b"a", b"new", 6),
            row(2, b"b", b"kept", 6),
            row(3, b"c", b"gone", 6),
            row(4, b"c", None, 6),
            row(5, b"a", b"stale", 5),  # a zombie's, flushed late, from here on
            row(6, b"b", None, 5),
            row(7, b"c", b"risen", 5),
        ]
    )
    assert dict(table.data) == {b"a": b"new", b"b": b"kept"}
    assert f"{CHANGELOG}[0]@5: a row of generation 5 comes after rows of a newer one" in caplog.text
    await table.on_recovery_completed({TP(CHANGELOG, 0)}, set())
    assert written(table) == [(b"a", b"new", 0, 7), (b"b", b"kept", 0, 7), (b"c", None, 0, 7)]
    await table.on_recovery_completed({TP(CHANGELOG, 0)}, set())
    assert written(table) == []


async def test_key_that_was_written_since_is_not_written_again(table: Any) -> None:
    table.apply_changelog_batch([row(0, b"a", b"1", 6), row(1, b"a", b"stale", 5), row(2, b"a", b"2", 6)])
    await table.on_recovery_completed({TP(CHANGELOG, 0)}, set())
    assert written(table) == []
    assert table.data[b"a"] == b"2"


async def test_state_of_a_membership_that_was_lost_is_forgotten_and_read_again_from_the_start(table: Any) -> None:
    # A zombie may get its partition back. Rows that it made and could not write are in its memory alone, and an event
    # that it then finds done writes none.
    table.apply_changelog_batch([row(0, b"a", b"1", 5)])
    offsets = table.app.tables.recovery.active_offsets
    offsets[TP(CHANGELOG, 0)] = offsets[TP("another", 0)] = 0
    await table.on_rebalance(set(), set(), set(), 6)
    assert dict(table.data) == {b"a": b"1"}
    membership.lose()
    await table.on_rebalance(set(), set(), set(), 8)
    assert dict(table.data) == {} and set(offsets) == {TP("another", 0)}
    table.apply_changelog_batch([row(0, b"a", b"1", 5)])
    await table.on_rebalance(set(), set(), set(), 9)
    assert dict(table.data) == {b"a": b"1"}
