"""Which response completes its group: the last of its slots in the log, whatever was read when."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, strategies as st

from schemas.events import Response
from streams.stages.scoring.whole_groups import OpenSampling
from tests.support.factories import changed, response


def slot(number: int, *, size: int = 3, error: str | None = None) -> Response:
    one = changed(response(group_size=size), response_id=f"r{number}", slot=number, text=f"answer {number}")
    return changed(one, error=error, finish_reason="stop" if error is None else "error")


def read_in(order: list[tuple[int, Response]]) -> OpenSampling:
    sampling = OpenSampling()
    for offset, one in order:
        sampling.add(offset, one)
    return sampling


def test_the_last_response_in_the_log_completes_its_group_in_whatever_order_they_are_read() -> None:
    log = list(enumerate(map(slot, (2, 0, 1))))
    for order in permutations(log):
        sampling = read_in(list(order))
        groups = {offset: sampling.group(offset, one) for offset, one in log}
        assert (groups[0], groups[1]) == (None, None)
        assert [one.slot for one in groups[2] or ()] == [0, 1, 2]


def test_a_group_that_misses_a_slot_is_completed_by_none() -> None:
    sampling = read_in([(4, slot(0)), (9, slot(2))])
    assert [sampling.group(offset, one) for offset, one in ((4, slot(0)), (9, slot(2)))] == [None, None]


def test_a_response_that_failed_completes_a_group_and_is_not_in_it() -> None:
    failed = slot(2, error="no")
    sampling = read_in([(0, slot(0)), (1, slot(1)), (2, failed)])
    assert [one.slot for one in sampling.group(2, failed) or ()] == [0, 1]


def test_of_two_responses_of_a_slot_the_first_counts_and_the_second_has_the_group_ranked_again() -> None:
    other = changed(slot(1), text="another answer")
    sampling = read_in([(7, other), (0, slot(0)), (1, slot(1)), (2, slot(2))])
    assert [one.text for one in sampling.group(7, other) or ()] == ["answer 0", "answer 1", "answer 2"]
    assert sampling.group(1, slot(1)) is None


@given(st.permutations(range(6)), st.data())
def test_of_responses_that_are_read_once_each_just_one_completes_the_group(
    slots: list[int], data: st.DataObject
) -> None:
    """Whichever part was read back, and whichever part came by itself."""
    log = [(offset, slot(number, size=6)) for offset, number in enumerate(slots)]
    sampling = read_in(data.draw(st.permutations(log)))
    assert [sampling.group(offset, one) is not None for offset, one in log] == [False] * 5 + [True]
