"""The join of join_worker.py in a loop worker, run as a process of its own.

    questions, answers ──► hold until ANSWERS different slots are there ──► joined      (key: group)

It keeps its rows in the same changelog and in the same form, so either takes over from the other.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streams.cli.runtime import until_stopped
from streams.errors import EventError, StreamwardError
from streams.kafka import topic_ids, topics as topic_shapes
from streams.kafka.record import Record
from streams.kafka.retry import StoppedWaiting
from streams.kafka.topics import topics
from streams.settings.load import load
from streams.worker.batched import worker as loop
from streams.worker.batched.loop_agent import TopicReading
from tests.support.log.join_worker import ANSWERS, PARTITIONS

SOURCES = ("questions", "answers")


def add_topics() -> None:
    """Have the sources counted among the topics of every deployment: a member of a group knows no others."""
    tasks = topic_shapes.SHAPES["tasks"]
    topic_shapes.SHAPES = {**topic_shapes.SHAPES, **{label: replace(tasks, label=label) for label in SOURCES}}
    topic_shapes.LABELS += SOURCES
    topic_shapes.PARTITIONED_AS_TASKS += SOURCES


class Join:
    """The join, in one worker."""

    def __init__(self, worker: loop.LoopWorker) -> None:
        self.worker, self.prefix = worker, worker.settings.topics.prefix
        self.groups = worker.table("open-groups", PARTITIONS)
        self.named = topics(worker.settings.topics)
        self.most = self.working = 0

    def register(self) -> None:
        for label in SOURCES:
            self.worker.agent_of_many(TopicReading(self.named[label], f"join.{label}"), self.take_many)

    def take_many(self, records: Sequence[Record]) -> None:
        self.most = max(self.most, len(records))
        for record in records:
            self.worker._place.number = record.at.partition
            try:
                self.take(record)
            except EventError as exc:
                self.send("rejected", record, {"reason": exc.reason, "text": str(exc)})

    def take(self, record: Record) -> None:
        value = json.loads(record.payload or b"")
        key = record.key or b""
        if value.get("bad"):
            raise EventError("a bad event")
        if value.get("poison"):
            raise RuntimeError("a fault in the program")
        if block := value.get("pause_s") or value.get("block_s"):
            self.working = 1
            self.tell()
            time.sleep(block)
            self.working = 0
        if size := value.get("row_bytes"):
            self.groups[key] = b"x" * size
            return
        raw = self.groups.get(key)
        state = json.loads(raw) if raw else {"question": None, "answers": {}, "closed": False}
        if state["closed"]:
            return
        label = record.at.topic.removeprefix(self.prefix)
        at = [label, record.at.partition, record.at.offset]
        if label == "questions":
            state["question"] = state["question"] or at
        else:
            state["answers"].setdefault(value["slot"], at)
        if state["question"] and len(state["answers"]) == ANSWERS:
            self.send("joined", record, state)
            state = {"closed": True}
        self.groups[key] = json.dumps(state).encode()

    def send(self, label: str, record: Record, value: dict[str, Any]) -> None:
        self.worker.send(self.prefix + label, record.key, json.dumps(value, sort_keys=True).encode(), headers={})

    def tell(self) -> None:
        owned = sorted(self.worker.owned(self.named["questions"]))
        print(json.dumps({"owned": owned, "working": self.working, "most": self.most}), flush=True)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    add_topics()
    loop.STUCK_S = float(os.environ.get("JOIN_STUCK_S", 60))
    loop.FROZEN_S = float(os.environ.get("JOIN_FROZEN_S", 60))
    loop.TICK_S = 0.5
    topic_ids.LOOK_S = float(os.environ.get("JOIN_LOOK_S", topic_ids.LOOK_S))
    told = 0.0
    try:
        with until_stopped() as stop:
            join = Join(loop.LoopWorker(load(), stop))
            join.register()
            with join.worker as worker:
                while not stop.is_set():
                    worker.step()
                    if time.monotonic() > told + 0.5:
                        told = time.monotonic()
                        join.tell()
    except StoppedWaiting as exc:
        print(exc, file=sys.stderr)
    except StreamwardError as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
