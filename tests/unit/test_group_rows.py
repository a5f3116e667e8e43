"""The table row of a group: small, and what is read is what was written."""

from __future__ import annotations

import pytest

from streams.stages.advantages.rows import ROW_VERSION, GroupRows, closed_ms, dump, load
from streams.stages.advantages.state import ClosedGroup, OpenGroup
from tests.support.factories import task
from tests.support.log.join_partition import Log, answers, scores


def test_a_closed_marker_is_small_whatever_the_group_was() -> None:
    log, slots = Log(), answers(text="x" * 100_000)
    log.read_all([task(), *slots])
    assert isinstance(log.state, OpenGroup)
    assert len(dump(log.state)) < 2000
    log.read_all(scores(slots))
    assert isinstance(log.state, ClosedGroup)
    assert len(dump(log.state)) < 500


def test_when_a_group_closed_is_read_from_its_row_without_the_rest() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots])
    assert isinstance(log.state, OpenGroup) and closed_ms(dump(log.state)) is None
    log.read_all(scores(slots))
    assert isinstance(log.state, ClosedGroup) and closed_ms(dump(log.state)) == log.state.closed_ms


def test_a_row_that_somebody_exchanged_is_parsed_and_not_remembered() -> None:
    rows, log = GroupRows(), Log()
    log.read_all([task(), *answers()])
    assert isinstance(log.state, OpenGroup)
    row = rows.dump(b"t1", log.state)
    assert rows.load(b"t1", row) is log.state
    assert rows.load(b"t1", dump(OpenGroup(first_seen_ms=7))) == OpenGroup(first_seen_ms=7)
    assert rows.load(b"t1", None) is None
    assert rows.load(b"t2", row) == log.state


def test_a_row_of_another_version_is_refused_with_the_way_out() -> None:
    row = dump(OpenGroup()).replace(b'"v":%d' % ROW_VERSION, b'"v":99')
    with pytest.raises(ValueError, match=rf"version 99, expected {ROW_VERSION}.*start under another consumer group"):
        load(row)
