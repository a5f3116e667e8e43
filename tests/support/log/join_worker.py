"""A stream worker with one small join, run as a process of its own by tests/log/test_app.py.

    questions, answers ──► hold until ANSWERS different slots are there ──► joined      (key: group)

What it emits names the offsets it used, in the order in which it took them: an event that was lost, or worked on out
of order, shows in the payload.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from schemas import events
from streams.errors import EventError, StreamwardError
from streams.kafka import topic_ids
from streams.kafka.topics import Topic
from streams.settings.load import load
from streams.settings.model import Settings
from streams.worker.faust import faust_agent, faust_app as apps
from streams.worker.faust.faust_table import stale

ANSWERS = 4
PARTITIONS = 4


def topic(label: str, conf: Settings) -> Topic:
    return Topic(label, conf.topics.prefix + label, events.Task, "task_id", PARTITIONS, {})


def build(conf: Settings) -> apps.App:
    patience = {
        "stuck_s": float(os.environ.get("JOIN_STUCK_S", 60)),
        "frozen_s": float(os.environ.get("JOIN_FROZEN_S", 30)),
    }
    apps.fixes.install = partial(apps.fixes.install, **patience)
    app = apps.build_app(conf, worker_name=f"join-{os.getpid()}")
    groups = apps.table(app, "open-groups", PARTITIONS)
    joined = apps.source(app, topic("joined", conf))
    rejected = apps.source(app, topic("rejected", conf))

    async def take(event: Any) -> None:
        value = json.loads(event.value)
        if value.get("bad"):
            raise EventError("a bad event")
        if value.get("poison"):
            raise RuntimeError("a fault in the program")
        if pause := value.get("pause_s"):
            await asyncio.sleep(pause)
        if block := value.get("block_s"):
            time.sleep(block)
        if size := value.get("row_bytes"):
            groups.write(event, event.key, b"x" * size)
            return
        raw = groups.get(event.key)
        state = json.loads(raw) if raw else {"question": None, "answers": {}, "closed": False}
        if state["closed"]:
            return
        at = [event.message.topic.removeprefix(conf.topics.prefix), event.message.partition, event.message.offset]
        if event.message.topic.endswith("questions"):
            state["question"] = state["question"] or at
        else:
            state["answers"].setdefault(value["slot"], at)
        if state["question"] and len(state["answers"]) == ANSWERS:
            await apps.emit(joined, event.key, json.dumps(state, sort_keys=True).encode())
            state = {"closed": True}
        groups.write(event, event.key, json.dumps(state).encode())

    async def reject(event: Any, error: EventError) -> None:
        await apps.emit(rejected, event.key, json.dumps({"reason": error.reason, "text": str(error)}).encode())

    most = 0

    async def take_many(events: Sequence[Any]) -> None:
        nonlocal most
        most = max(most, len(events))
        for event in events:
            if stale(app, event):  # the row of one before it was not kept, for that one waited
                return
            try:
                await take(event)
            except EventError as exc:
                await reject(event, exc)

    faust_agent.agent(app, topic("questions", conf), take, reject)
    faust_agent.agent_of_many(app, topic("answers", conf), take_many, name="answers.take")

    async def look(_: Any) -> None:
        await asyncio.sleep(0.05)

    if os.environ.get("JOIN_LOOKER"):
        faust_agent.agent(app, topic("answers", conf), look, reject)

    @app.timer(0.5)
    async def tell() -> None:
        owned = sorted(apps.owned_partitions(app, topic("questions", conf).name))
        print(json.dumps({"owned": owned, "working": app.working, "most": most}), flush=True)

    return app


def main() -> int:
    topic_ids.LOOK_S = float(os.environ.get("JOIN_LOOK_S", topic_ids.LOOK_S))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        return apps.run_worker(build(load()), grace_s=20)
    except StreamwardError as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code


if __name__ == "__main__":
    sys.exit(main())
