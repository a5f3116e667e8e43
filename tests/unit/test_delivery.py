"""The offset bookkeeping under the Faust fixes."""

from __future__ import annotations

from hypothesis import given, strategies as st

from streams.worker.faust.delivery import Delivery, contiguous

TP = ("streamward.tasks", 0)


def started(at: int = 10) -> Delivery:
    delivery = Delivery()
    delivery.begin(TP, at)
    return delivery


def test_records_that_follow_each_other_are_delivered() -> None:
    delivery = started()
    assert [delivery.admit(TP, offset, changelog=False) for offset in (10, 11, 12)] == [True, True, True]


def test_record_that_was_delivered_before_is_dropped() -> None:
    delivery = started()
    delivery.admit(TP, 10, changelog=False)
    assert delivery.admit(TP, 10, changelog=False) is False


def test_hole_is_read_again_and_believed_only_when_it_comes_again() -> None:
    delivery = started()
    assert delivery.admit(TP, 15, changelog=False) is None
    assert delivery.admit(TP, 15, changelog=False) is True
    assert delivery.holes[TP] == [(10, 15)]


def test_hole_that_the_second_read_fills_was_none() -> None:
    delivery = started()
    assert delivery.admit(TP, 15, changelog=False) is None
    assert [delivery.admit(TP, offset, changelog=False) for offset in range(10, 16)] == [True] * 6
    assert TP not in delivery.holes


def test_hole_that_looks_different_at_the_second_read_is_read_a_third_time() -> None:
    delivery = started()
    assert [delivery.admit(TP, offset, changelog=False) for offset in (15, 13, 13)] == [None, None, True]
    assert delivery.holes[TP] == [(10, 13)]


def test_compacted_changelog_is_checked_at_its_first_record_only() -> None:
    delivery = Delivery()
    delivery.position(TP, 10)
    assert delivery.admit(TP, 12, changelog=True) is None
    assert [delivery.admit(TP, offset, changelog=True) for offset in (12, 17, 40)] == [True, True, True]
    assert TP not in delivery.holes


def test_doubt_ends_with_a_new_position() -> None:
    delivery = started()
    delivery.admit(TP, 15, changelog=False)
    delivery.begin(TP, 10)
    assert delivery.admit(TP, 15, changelog=False) is None


@given(
    base=st.integers(0, 5),
    acked=st.sets(st.integers(0, 40)),
    holes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=4),
)
def test_commit_is_the_first_offset_that_is_neither_done_nor_in_a_hole(
    base: int, acked: set[int], holes: list[tuple[int, int]]
) -> None:
    ranges = sorted((begin, begin + length) for begin, length in holes)
    covered = acked | {offset for begin, end in ranges for offset in range(begin, end)}
    expected = next(offset for offset in range(base, 100) if offset not in covered)
    offset, used, filled = contiguous(base, sorted(acked), ranges)
    assert offset == expected
    assert used == sum(done < expected for done in acked)
    assert filled == sum(begin < expected for begin, _ in ranges)


def test_hole_of_a_billion_offsets_costs_one_entry() -> None:
    delivery = started(0)
    delivery.admit(TP, 10**9, changelog=False)
    delivery.admit(TP, 10**9, changelog=False)
    assert contiguous(0, [10**9], delivery.holes[TP]) == (10**9 + 1, 1, 1)
