"""Tasks at a steady rate, and a ledger of them that lies outside Kafka.

    seed, n ──► task n ──► a producer of its own ──► topic tasks
                   └──► ledger: sent ──► acknowledged | failed | unknown ──► ledger.jsonl

The ledger is what the rest is held against: what was acknowledged must have its effect, and what has an effect must
stand in it. It shares nothing with the log's own producer but the address of the broker.

Not covered: a harness that is killed. Its run is no run.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import confluent_kafka as ck

from schemas import key_source, serde
from schemas.events import Message, RewardSource, Sampling, Task, derive_id
from streams.kafka.client import client_config
from streams.kafka.topics import topics
from streams.settings.model import Settings

State = Literal["sent", "acknowledged", "failed", "unknown"]
SLOTS = 8
RATE = 50.0
"""Tasks a second. Each makes 17 records: itself, and for each slot a response and a reward."""
PERSONS = 20
"""Persons whose words tasks are, if the world seals words."""


class Ledger:
    """What became of each task that was sent, by id. Use as a context manager."""

    def __init__(self, file: Path) -> None:
        self.states: dict[str, State] = {}
        self._lines = file.open("a")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def note(self, task_id: str, state: State) -> None:
        """Write down what is known now."""
        with self._lock:
            self.states[task_id] = state
            self._lines.write(json.dumps({"task_id": task_id, "state": state}) + "\n")

    def count(self) -> Counter[str]:
        """Return how many tasks are in each state."""
        with self._lock:
            return Counter(self.states.values())

    def ids(self, *states: State) -> set[str]:
        """Return the tasks in any of these states."""
        return {task_id for task_id, state in self.states.items() if state in states}

    def settle(self) -> None:
        """What was never answered for may be in the log, or not."""
        for task_id in self.ids("sent"):
            self.note(task_id, "unknown")


def a_task(seed: int, number: int, **changes: Any) -> Task:
    """Return task `number` of a run: a sum, asked eight times, judged by one source."""
    whole: dict[str, Any] = {
        "task_id": derive_id("chaos", seed, number),
        "created_at": int(time.time() * 1000),
        "policy": "default",
        "group_size": SLOTS,
        "sampling": Sampling(max_tokens=16),
        "reward_sources": (RewardSource(name="exact"),),
        "verifier": json.dumps({"answer": str(number + seed)}),
        "messages": (Message(role="user", content=f"{number} + {seed} ="),),
    }
    return Task(**whole | changes)


def person(number: int) -> str | None:
    """Return whose words record `number` has; None: no words are sealed."""
    return key_source.current().subject_of(None, f"person-{number % PERSONS}", None)


class Load:
    """Sends `groups` tasks at `rate` a second, and goes on until `enough` is said. Use as a context manager."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        seed: int,
        groups: int,
        rate: float = RATE,
        special: Callable[[int], Mapping[str, Any]] = lambda number: {},
    ) -> None:
        self._topic = topics(settings.topics)["tasks"].name
        self.ledger, self.seed = ledger, seed
        self.groups, self._rate, self._special = groups, rate, special
        self._enough = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.sent = 0
        self.seconds = 0.0
        self._producer = ck.Producer(
            {
                **client_config(settings.kafka),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": 240_000,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,  # that the broker is away is meant
            }
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def share(self) -> float:
        """Return the share of the tasks that was sent; above 1 once more than asked for."""
        return self.sent / self.groups

    def until(self, share: float) -> None:
        """Return once that share of the tasks was sent."""
        while self.share() < share and self._thread.is_alive():
            time.sleep(0.05)

    def finish(self) -> None:
        """Return once all tasks were sent, and each was answered for or given up."""
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stopped.is_set() and not (self._enough.is_set() and self.sent >= self.groups):
            due = begun + self.sent / self._rate - time.monotonic()
            if due > 0:
                self._producer.poll(min(due, 0.05))
                continue
            self._send(a_task(self.seed, self.sent, subject=person(self.sent), **self._special(self.sent)))
            self.sent += 1
        self.seconds = time.monotonic() - begun
        while len(self._producer) and not self._stopped.is_set():
            self._producer.flush(0.5)

    def _send(self, task: Task) -> None:
        task_id = task.task_id
        self.ledger.note(task_id, "sent")

        def answered(error: ck.KafkaError | None, _: object) -> None:
            if error is None:
                self.ledger.note(task_id, "acknowledged")
            else:  # a request that timed out may have been done
                unknown = error.code() in (ck.KafkaError._MSG_TIMED_OUT, ck.KafkaError._TIMED_OUT)
                self.ledger.note(task_id, "unknown" if unknown else "failed")

        self._producer.produce(self._topic, serde.encode(task), task_id.encode(), on_delivery=answered)
        self._producer.poll(0)
