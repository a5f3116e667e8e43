"""What a consumer may commit, and which record times are named."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from schemas.events import Coordinates
from streams.kafka.consumer import OffsetTracker
from streams.kafka.record import warn_of_time


def test_nothing_may_be_committed_before_the_first_record_is_done() -> None:
    progress = OffsetTracker()
    for offset in (3, 4, 5):
        progress.read(offset)
    progress.done(4)
    assert progress.next_offset is None
    progress.done(3)
    assert progress.next_offset == 5


def test_a_hole_in_the_log_holds_nothing_up() -> None:
    progress = OffsetTracker()
    for offset in (3, 7):
        progress.read(offset)
        progress.done(offset)
    assert progress.next_offset == 8


def test_markers_behind_the_last_record_are_done_with_it() -> None:
    progress = OffsetTracker()
    progress.read(3)
    progress.reach_end(6)
    assert (progress.next_offset, progress.left) == (None, 1)
    progress.done(3)
    progress.reach_end(6)
    assert (progress.next_offset, progress.left) == (6, 0)
    progress.read(6)
    progress.done(6)
    assert progress.next_offset == 7


def test_a_record_time_in_seconds_is_named_and_one_of_today_is_not(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_time(Coordinates("tasks", 0, 7), 1_795_655_773_000)
    warn_of_time(Coordinates("tasks", 0, 8), 1_795_655_773)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("tasks[0]@8: its record time is 1795655773 ms since 1970")


@given(st.permutations(range(6)))
def test_an_offset_is_committable_exactly_when_all_before_it_are_done(order: list[int]) -> None:
    progress, done = OffsetTracker(), set()
    for offset in range(6):
        progress.read(offset)
    for offset in order:
        progress.done(offset)
        done.add(offset)
        contiguous = next(n for n in range(7) if n not in done)
        assert progress.next_offset == (contiguous or None)
        assert progress.left == 6 - len(done)
