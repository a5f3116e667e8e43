"""What the stage in the worker decides while a rebalance takes its partitions away, and after it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Event, GroupControl
from schemas.serde import encode
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.advantages import live
from streams.stages.advantages.live import LiveAdvantages
from streams.stages.advantages.rows import dump
from streams.worker.faust import faust_app as apps
from streams.worker.faust.faust_table import stale
from tests.support.factories import T0, control, response, reward, task
from tests.support.log.join_partition import Log

PARTITION = 1
"""Where the key "t" belongs, of eight."""


class Rows(dict[bytes, bytes]):
    """The table without its changelog: rows of an event that a rebalance has overtaken are not kept."""

    def __init__(self, app: apps.App) -> None:
        super().__init__()
        self._app = app

    def write(self, event: Any, key: bytes, row: bytes) -> None:
        if not stale(self._app, event):
            self[key] = row


async def test_nothing_is_decided_without_the_rows_that_a_rebalance_has_kept_from_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last reward closes a group; while that is acknowledged, a rebalance begins, and its deadline waits behind."""
    settings = Settings()
    app = apps.build_app(settings, worker_name="test")
    stage = LiveAdvantages(app)
    acknowledged, asked = asyncio.Event(), asyncio.Event()
    written: list[Event] = []

    async def emit(event: Event, *_: object, **__: object) -> None:
        written.append(event)
        asked.set()
        await acknowledged.wait()

    monkeypatch.setattr(stage, "_table", Rows(app))
    monkeypatch.setattr(stage._outlet, "emit_traced", emit)

    def event(offset: int, of: Event) -> Any:
        name = next(topic.name for topic in topics(settings.topics).values() if topic.event is type(of))
        message = SimpleNamespace(
            topic=name, partition=PARTITION, offset=offset, timestamp=T0 / 1000 + offset, key=b"t", value=encode(of),
            headers=(), generation_id=app.consumer_generation_id,
        )  # fmt: skip
        return SimpleNamespace(message=message, key=b"t", value=message.value)

    asked_for = task(task_id="t", group_size=2)
    answers = [response(task_id="t", slot=slot, group_size=2) for slot in range(2)]
    rewards = [reward(answer) for answer in answers]
    for offset, one in enumerate([asked_for, *answers, rewards[0]]):
        await stage._on_events([event(offset, one)])
    closing = asyncio.create_task(stage._on_events([event(9, rewards[1])]))
    await asked.wait()
    waiting = asyncio.create_task(stage._on_events([event(0, control(task_id="t"))]))
    await asyncio.sleep(0)
    app.rebalancing = True
    acknowledged.set()
    await asyncio.gather(closing, waiting)
    groups = [one for one in written if isinstance(one, AdvantagedGroup)]
    assert [len(group.responses) for group in groups] == [2]


def test_a_group_that_another_worker_opened_between_two_ticks_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition went to another worker and came back within a second: the timer sees the same partitions."""
    app = apps.build_app(Settings(), worker_name="test")
    stage, opened = LiveAdvantages(app), Log()
    opened.read(task(task_id="t", deadline_at=T0))
    rows, written, clock = Rows(app), list[Event](), [T0]

    async def emit(event: Event) -> None:
        written.append(event)

    monkeypatch.setattr(stage, "_table", rows)
    monkeypatch.setattr(stage._outlet, "emit", emit)
    monkeypatch.setattr(live, "owned_partitions", lambda *_: {PARTITION})
    monkeypatch.setattr(live, "now_ms", lambda: clock[0])
    asyncio.run(stage._on_timer())
    rows[b"t"] = dump(opened.state)  # recovered from the changelog
    app.consumer_generation_id += 2
    asyncio.run(stage._on_timer())
    clock[0] += 3_600_000
    asyncio.run(stage._on_timer())
    assert [(one.task_id, one.kind) for one in written if isinstance(one, GroupControl)] == [("t", "expire")]
