"""The rest of the loop on a real log, in a thread: what jobs ask for is answered, and versions are made of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from schemas.events import AdapterEvent, Event, Task
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.support.log.rest_of_loop import RestOfLoop
from tests.support.processes import read


class LoopOnLog:
    """Answers the tasks of these policies: the real rule of batches, and versions without weights.

    `made` is what becomes of each event before it is written, e.g. a version with weights.
    """

    def __init__(
        self, settings: Settings, *policies: str, made: Callable[[Event], Event] = lambda event: event
    ) -> None:
        self._settings, self._made, self._over = settings, made, threading.Event()
        self._rest = {policy: RestOfLoop(settings.batches, policy) for policy in policies}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> LoopOnLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._settings) as producer:
            while not self._over.wait(0.1):
                for _, task in read(self._settings, Task):
                    if task.policy in self._rest:
                        for event in self._rest[task.policy].answer(task):
                            made: Any = self._made(event)
                            producer.send(made)
                for _, event in read(self._settings, AdapterEvent):
                    if event.kind == "retired":
                        self._rest[event.policy].take(event)
                producer.flush()
