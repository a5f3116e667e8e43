"""The parts of the loop worker that need no broker: its tables, its epochs, and what waits for other topics."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.events import Coordinates
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.observability.metrics import OFF
from streams.settings.model import Topics
from streams.stages.advantages.loop import OpenGroups
from streams.stages.advantages.rows import dump
from streams.stages.advantages.state import ClosedGroup, OpenGroup
from streams.worker.batched.epoch import Epoch
from streams.worker.batched.loop_agent import MOST_WAITING, LoopAgent, TopicReading
from streams.worker.batched.loop_table import CurrentPartition, LoopTable
from streams.worker.batched.worker import _finish
from tests.support.factories import task
from tests.support.log.join_partition import Log, answers, scores

CHANGELOG = "streams-windows-changelog"


def row(number: int, offset: int, key: bytes, value: bytes | None, generation: int) -> Record:
    return Record(Coordinates(CHANGELOG, number, offset), 0, key, value, (("generation", b"%d" % generation),))


@pytest.fixture
def table() -> LoopTable:
    table = LoopTable(CHANGELOG, 2, CurrentPartition())
    table.begin(0)
    return table


def test_a_row_is_written_once_however_often_it_changed(table: LoopTable) -> None:
    for value in (b"1", b"2", b"3"):
        table[b"k"] = value
    assert list(table.take_changes()) == [(0, b"k", b"3")]
    assert list(table.take_changes()) == []
    assert table.get(b"k") == b"3"


def test_what_is_read_back_is_what_was_written_less_what_was_deleted(table: LoopTable) -> None:
    table.restore(row(0, 0, b"a", b"1", 1))
    table.restore(row(0, 1, b"b", b"2", 1))
    table.restore(row(0, 2, b"a", None, 2))
    table.end_restoring(0)
    assert (table.get(b"a"), table.get(b"b")) == (None, b"2")
    assert list(table.take_changes()) == []


def test_a_zombies_row_is_skipped_and_what_it_covers_is_written_again(table: LoopTable) -> None:
    table.restore(row(0, 0, b"a", b"right", 2))
    table.restore(row(0, 1, b"a", b"wrong", 1))
    table.end_restoring(0)
    assert table.get(b"a") == b"right"
    assert list(table.take_changes()) == [(0, b"a", b"right")]


def test_rows_of_a_partition_that_comes_back_are_kept_and_others_begin_empty(table: LoopTable) -> None:
    table[b"k"] = b"1"
    table.begin(0, keep=True)
    assert table.get(b"k") == b"1"
    table.begin(0)
    assert table.get(b"k") is None


def test_an_open_group_stays_an_object_and_a_closed_one_becomes_its_row() -> None:
    dumped: list[str] = []
    groups, log, slots = OpenGroups(CHANGELOG, 1, lambda task_id, _: dumped.append(task_id)), Log(), answers()
    groups.begin(0)
    log.read_all([task(), *slots])
    assert isinstance(log.state, OpenGroup)
    groups.decide(0, "t", log.state)
    assert list(groups.take_changes()) == [(0, b"t", dump(log.state))]
    assert groups.state(0, "t") is log.state
    log.read_all(scores(slots))
    assert isinstance(log.state, ClosedGroup)
    groups.decide(0, "t", log.state)
    assert list(groups.states()) == [("t", log.state)]
    assert list(groups.take_changes()) == [(0, b"t", dump(log.state))]
    assert groups.state(0, "t") == log.state
    assert (list(groups.states()), list(groups.closed())) == ([], [("t", log.state.closed_ms)])
    groups.decide(0, "t", None)
    assert list(groups.take_changes()) == [(0, b"t", None)]
    assert groups.state(0, "t") is None
    assert dumped == ["t", "t", "t"]


def test_an_epoch_is_acknowledged_when_each_of_its_records_is() -> None:
    epoch, told = Epoch(), list[Coordinates]()
    first, second = epoch.sends(), epoch.sends(told.append)
    assert epoch.unacknowledged == 2
    at = Coordinates("groups", 0, 7)
    second(at)
    first(at)
    assert (epoch.unacknowledged, told) == (0, [at])


def control(offset: int, time_ms: int) -> Record:
    return Record(Coordinates("streamward.group-control", 0, offset), time_ms, b"k", b"")


@pytest.fixture
def handled() -> list[int]:
    return []


@pytest.fixture
def waiting(handled: list[int]) -> LoopAgent:
    named = topics(Topics())

    def handle(records: Sequence[Record]) -> None:
        handled.extend(record.at.offset for record in records)

    return LoopAgent(TopicReading(named["group-control"], "advantages.group-control", (named["tasks"],)), handle, OFF)


def test_a_record_waits_for_the_topics_before_it_and_those_behind_it_wait_too(
    waiting: LoopAgent, handled: list[int]
) -> None:
    waiting.take([control(4, 100), control(5, 50)])
    assert not waiting.take_waiting(lambda tp, time_ms: time_ms < 100)
    assert (handled, waiting.first_waiting(0)) == ([], 4)
    assert waiting.take_waiting(lambda tp, time_ms: True)
    assert (handled, waiting.first_waiting(0), waiting.waits) == ([4, 5], None, False)


def test_no_more_is_read_of_a_partition_of_which_much_waits(waiting: LoopAgent) -> None:
    waiting.take([control(offset, 0) for offset in range(MOST_WAITING)])
    assert waiting.full() == {0}
    waiting.forget([0])
    assert (waiting.full(), waiting.waits) == (set(), False)


def test_a_fault_names_the_record_and_a_handler_that_waits_is_a_fault() -> None:
    def handle(records: Sequence[Record]) -> None:
        raise RuntimeError("a fault")

    agent = LoopAgent(TopicReading(topics(Topics())["tasks"], "advantages.tasks"), handle, OFF)
    with pytest.raises(RuntimeError, match="a fault") as caught:
        agent.take([control(4, 0), control(5, 0)])
    assert caught.value.__notes__ == [f"{control(4, 0).at}, or one of 1 others: not processed, and the worker ends"]

    class Forever:
        def __await__(self) -> object:
            yield

    async def waits() -> None:
        await Forever()  # type: ignore[misc]

    with pytest.raises(RuntimeError, match="may only emit"):
        _finish(waits())
