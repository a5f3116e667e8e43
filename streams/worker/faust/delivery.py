"""Track the delivered offsets of a partition, and the offset below which all are done.

    records, as they come ──► admit ──► deliver | drop | read again          acknowledged ──► contiguous ──► commit

Pure bookkeeping, without a clock and without Kafka; `fixes.py` replaces Faust's own by it. Changelogs are
compacted, so only their first record after a seek can be checked.
"""

from __future__ import annotations

import logging

from streams.kafka.record import TopicPartition

log = logging.getLogger("streamward.faust")


class Delivery:
    """The offsets that each partition of one consumer has delivered since its last seek."""

    def __init__(self) -> None:
        self.expected: dict[TopicPartition, int] = {}
        self.holes: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Ranges [from, to) that were accepted as empty and are not committed yet, ascending."""
        self.delivering = False
        """Whether records from aiokafka are still on their way to the queues."""
        self.reads_again = 0
        self.holes_accepted = 0
        self._doubted: dict[TopicPartition, tuple[int, int]] = {}
        self._just_sought: set[TopicPartition] = set()
        self._passed: dict[TopicPartition, tuple[tuple[int, int], int]] = {}

    def position(self, tp: TopicPartition, offset: int) -> None:
        """Expect `offset` next from `tp`, after the consumer's seek."""
        self.expected[tp] = offset
        self._doubted.pop(tp, None)
        self._just_sought.add(tp)

    def begin(self, tp: TopicPartition, offset: int) -> None:
        """As `position`, for a partition that starts over at `offset`."""
        self.position(tp, offset)
        self.holes.pop(tp, None)
        self._passed.pop(tp, None)

    def admit(self, tp: TopicPartition, offset: int, *, changelog: bool) -> bool | None:
        """Return True to deliver, False to drop (delivered before), None to drop and read again from `expected`."""
        expected = self.expected.get(tp)
        if expected is None or (changelog and tp not in self._just_sought):
            return True
        if offset < expected and not changelog:
            return False
        if offset > expected and self._doubted.get(tp) != (expected, offset):
            self._doubted[tp] = (expected, offset)
            self.reads_again += 1
            return None
        if offset > expected and not changelog:
            self._accept_hole(tp, expected, offset)
        self._just_sought.discard(tp)
        self._doubted.pop(tp, None)
        self.expected[tp] = offset + 1
        return True

    def passed(self, tp: TopicPartition, position: int) -> bool | None:
        """Return what to do when the reader is at `position`, beyond `expected`, and nothing is on its way.

        False: check once more. None: read again from `expected`. True: a hole up to `position` is accepted, since two
        looks before and two after the second read found the same.
        """
        state = (self.expected[tp], position)
        before, looks = self._passed.get(tp, (None, 0))
        looks = looks + 1 if before == state else 1
        self._passed[tp] = (state, looks)
        if looks == 2:
            self.reads_again += 1
            return None
        if looks < 4:
            return False
        self._accept_hole(tp, *state)
        self.expected[tp] = position
        return True

    def _accept_hole(self, tp: TopicPartition, begin: int, end: int) -> None:
        log.warning("%s[%d]: offsets %d to %d are not in the log (read twice)", *tp, begin, end - 1)
        self.holes.setdefault(tp, []).append((begin, end))
        self.holes_accepted += 1


def contiguous(base: int, acked: list[int], holes: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Return (the first offset not covered from `base` on, how many of `acked` and of `holes` are below it).

    Both lists ascend. `holes` are [from, to) ranges, so a hole of millions of offsets costs one entry.
    """
    offset, used, filled = base, 0, 0
    while True:
        if filled < len(holes) and holes[filled][0] <= offset:
            offset = max(offset, holes[filled][1])
            filled += 1
        elif used < len(acked) and acked[used] <= offset:
            offset = max(offset, acked[used] + 1)
            used += 1
        else:
            return offset, used, filled
