"""The table row of a group: small, and what is read is what was written."""

from __future__ import annotations

import json

import pytest

from streams.stages.advantages.rows import GroupRows, dump, load
from streams.stages.advantages.state import ClosedGroup, OpenGroup
from tests.support.factories import reward, task
from tests.support.log.join_partition import Log, answers, scores


def test_a_closed_marker_is_small_whatever_the_group_was() -> None:
    log, slots = Log(), answers(text="x" * 100_000)
    log.read_all([task(), *slots])
    assert isinstance(log.state, OpenGroup)
    assert len(dump(log.state)) < 2000
    log.read_all(scores(slots))
    assert isinstance(log.state, ClosedGroup)
    assert len(dump(log.state)) < 500


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
    row = dump(OpenGroup()).replace(b'"v":1', b'"v":99')
    with pytest.raises(ValueError, match=r"row has version 99, expected 1.*start under another consumer group"):
        load(row)


def test_a_row_of_the_first_release_is_read_and_what_it_does_not_tell_is_not_compared() -> None:
    slots = answers()
    log = Log()
    log.read_all([task(), *slots, *scores(slots)])
    assert isinstance(log.state, ClosedGroup)
    row = json.loads(dump(log.state))
    del row["memory"]  # as the first release wrote it
    old = load(json.dumps(row).encode())
    assert old == ClosedGroup(log.state.closed_ms, log.state.seen, "s1")
    log.state = old
    log.read_all([task(group_size=8), *slots, *scores(slots), reward(slots[0], value=9.0)])
    assert (log.state, log.rejects) == (old, [])
    log.read(answers(sampling_id="s2")[0])
    assert log.reasons() == [("responses@8", "superseded")]


def test_what_the_first_release_reads_of_a_row_is_where_it_was() -> None:
    # old and new workers may share a group while it is upgraded; an old one unpacks exactly these three
    log, slots = Log(), answers(2, error="oom")
    log.read_all([task(group_size=2), *slots, task(group_size=8)])
    assert isinstance(log.state, ClosedGroup)
    row = json.loads(dump(log.state))
    closed_ms, seen, sampling_id = row["closed"]
    assert (row["v"], closed_ms, sampling_id) == (1, log.state.closed_ms, "s1")
    assert set(seen) == log.state.seen
