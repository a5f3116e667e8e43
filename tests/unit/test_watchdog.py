"""What makes a stream worker give up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from faust.types import TP

from streams.errors import EXIT_RESTART
from streams.processes import watchdog
from streams.worker.faust import stall_watch
from streams.worker.faust.stall_watch import Sight, StallDetector, StallWatch

TASKS = TP("streamward.tasks", 3)


def sight(**changes: Any) -> Sight:
    return Sight(
        **{
            "committed": {TASKS: 7},
            "lagging": frozenset(),
            "holes": {},
            "rebalancing": False,
            "recovered": {},
            **changes,
        }
    )


def looks(patience: StallDetector, seen: Sight, times: int) -> tuple[str | None, str | None]:
    return [patience.look(seen, 1.0) for _ in range(times)][-1]


def test_hole_that_stays_is_named_and_ends_the_process() -> None:
    patience = StallDetector(hole_s=10, stuck_s=60)
    assert looks(patience, sight(holes={TASKS: 9}), 11) == (None, None)
    hole, _ = looks(patience, sight(holes={TASKS: 9}), 1)
    assert hole is not None and hole.startswith("streamward.tasks[3]@7 is not done, though 9 is")


def test_hole_that_closes_in_time_is_none() -> None:
    patience = StallDetector(hole_s=10, stuck_s=60)
    for committed in range(7, 40):  # never twice the same
        assert patience.look(sight(committed={TASKS: committed}, holes={TASKS: committed + 2}), 5.0) == (None, None)


def test_lag_without_a_commit_is_stuck_and_lag_with_commits_is_not() -> None:
    patience = StallDetector(hole_s=10, stuck_s=60)
    waiting = frozenset({TASKS})
    for committed in range(100):
        assert patience.look(sight(committed={TASKS: committed}, lagging=waiting), 1.0) == (None, None)
    _, stuck = looks(patience, sight(lagging=waiting), 62)
    assert stuck is not None and stuck.startswith("streamward.tasks[3]@7 has waited for 61 s")


def test_busy_partition_does_not_hide_a_stuck_one() -> None:
    patience = StallDetector(hole_s=10, stuck_s=60)
    other = TP("streamward.tasks", 4)
    both = frozenset({TASKS, other})
    verdicts = [patience.look(sight(committed={TASKS: 7, other: n}, lagging=both), 1.0) for n in range(62)]
    assert verdicts[-1][1] is not None


def test_rebalance_is_stuck_only_while_changelogs_come_no_further() -> None:
    patience = StallDetector(hole_s=10, stuck_s=60)
    for offset in range(100):
        assert patience.look(sight(rebalancing=True, recovered={TASKS: offset}), 1.0) == (None, None)
    _, stuck = looks(patience, sight(rebalancing=True, recovered={TASKS: 99}), 62)
    assert stuck is not None and "rebalance" in stuck


async def _nothing(_: Any) -> None: ...


def test_frozen_event_loop_ends_the_process_and_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The loop blocks in a sleep that is not asyncio's; only a thread can see that.
    ended: list[int] = []
    monkeypatch.setattr(stall_watch, "LOOK_EVERY_S", 0.01)

    class Idle:
        should_stop, _consumer = False, None

    async def freeze() -> None:
        dog = StallWatch(Idle(), _nothing, hole_s=10, stuck_s=60, frozen_s=0.2)
        monkeypatch.setattr(watchdog.os, "_exit", lambda code: (ended.append(code), dog._loop_watchdog.close()))
        await dog.start()
        await asyncio.sleep(0.5)  # a loop that runs is left alone
        assert ended == []
        time.sleep(0.5)
        await dog.stop()

    asyncio.run(freeze())
    assert ended == [EXIT_RESTART]
    assert "time.sleep(0.5)" in capfd.readouterr().err


@pytest.mark.parametrize("error", [IllegalStateError, ConsumerStoppedError])
def test_a_look_that_meets_a_rebalance_or_a_stop_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A worker that was told to end while it looked ended with exit code 1."""
    monkeypatch.setattr(stall_watch, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(stall_watch, "sight_of", lambda app: sight())
    looked = asyncio.Event()

    async def look_behind(_: Any) -> None:
        looked.set()
        raise error

    class Busy:
        should_stop, rebalancing, _consumer, consumer = False, False, True, None
        ids = SimpleNamespace(look=lambda: None)

    async def watch() -> BaseException | None:
        dog = StallWatch(Busy(), look_behind, hole_s=10, stuck_s=60, frozen_s=60)
        await dog.start()
        await asyncio.wait_for(looked.wait(), 60)
        await asyncio.sleep(0)
        reason: BaseException | None = dog.crash_reason
        await dog.stop()
        return reason

    assert asyncio.run(watch()) is None


def test_a_stuck_worker_says_where_each_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watch, "_NAMED_FILES", (__file__,))

    class Actor:
        """What Faust puts around an agent."""

        def __await__(self) -> Any:
            return agent().__await__()

    async def stream() -> AsyncIterator[int]:
        yield 1
        await asyncio.get_running_loop().create_future()

    async def agent() -> None:
        async for _ in stream():
            pass

    async def outermost() -> None:
        await Actor()

    async def told() -> list[str]:
        task = asyncio.create_task(outermost())
        await asyncio.sleep(0)
        lines = stall_watch.await_chains()
        task.cancel()
        return lines

    assert any(line.startswith("  outermost > agent > stream (test_watchdog.py:") for line in asyncio.run(told()))
