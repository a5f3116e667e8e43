"""What a consumer may commit."""

from __future__ import annotations

from hypothesis import given, strategies as st

from streams.kafka.consumer import OffsetTracker


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
