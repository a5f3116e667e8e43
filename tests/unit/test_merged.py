"""Partitions merged many records at once are those that are merged one by one."""

import heapq
from itertools import chain
from operator import attrgetter

from hypothesis import given, strategies as st

from schemas.events import Coordinates
from streams.kafka.record import Record
from streams.tools.replay.merge_by_time import merge_by_time

TIMES = st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=5)
"""Of the records of a partition, as they are read: equal ones, ones that go back, and reads that bring nothing."""


@given(st.lists(TIMES, min_size=1, max_size=4))
def test_the_order_is_that_of_heads_compared_one_by_one(partitions: list[list[list[int]]]) -> None:
    lists = []
    for number, reads in enumerate(partitions):
        offsets = iter(range(99))
        lists.append([[Record(Coordinates("t", number, next(offsets)), ms, None, None) for ms in one] for one in reads])
    expected = heapq.merge(*map(chain.from_iterable, lists), key=attrgetter("timestamp_ms"))
    assert list(chain.from_iterable(merge_by_time(lists))) == list(expected)
