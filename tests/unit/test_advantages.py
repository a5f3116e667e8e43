"""When the advantages stage writes the control records that let time act."""

from __future__ import annotations

from typing import Any

from factories import T0, control, task
from joining import Log

from streams.advantages import Timers
from streams.settings import Advantages, Settings


def timers(now_ms: int = 0, **rule: Any) -> tuple[Timers, Log]:
    made = Timers(Settings(advantages=Advantages(**rule)))
    made.rebuild(set(range(8)), [], Log().join, now_ms)
    return made, Log(**rule)


def test_a_group_expires_when_its_deadline_and_the_grace_have_passed() -> None:
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 + 5099) == []
    (record,) = clock.due(T0 + 5100)
    assert (record.task_id, record.kind) == ("t1", "expire")
    assert clock.due(T0 + 9999) == []


def test_a_closed_group_is_evicted_when_it_was_remembered_long_enough() -> None:
    clock, log = timers(evict_after_s=60)
    log.read_all([task(), control()])
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 + 59_999) == []
    assert [record.kind for record in clock.due(T0 + 60_000)] == ["evict"]


def test_a_group_that_left_no_longer_expires() -> None:
    clock, log = timers(evict_after_s=0)
    log.read(task())
    clock.note("t1", log.state, log.join)
    log.read(control())
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 * 2) == []


def test_no_time_passes_while_a_backlog_is_read() -> None:
    # after an outage the answers that came in time are in the log, and not read yet
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state, log.join)
    now = T0 + 3_600_000
    clock.saw(T0 + 50, now)
    assert clock.due(now + 4999) == []
    clock.saw(T0 + 60, now + 4000)
    assert clock.due(now + 8999) == []
    assert [record.kind for record in clock.due(now + 9000)] == ["expire"]


def test_a_worker_that_has_just_begun_looks_for_a_backlog_first() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = Timers(Settings())
    now = T0 + 3_600_000
    clock.rebuild(set(range(8)), [("t1", log.state)], log.join, now)
    assert clock.due(now + 1000) == []
    assert len(clock.due(now + 5000)) == 1


def test_rows_of_partitions_owned_by_others_have_no_timers_here() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = Timers(Settings())
    clock.rebuild(set(), [("t1", log.state)], log.join, T0)
    assert clock.due(T0 * 2) == []
