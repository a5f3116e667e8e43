"""Metrics of `agents run`: the runs of one agent, and the tasks that wait for one.

AgentRunner ──► runs begun, ended, their time ──► counters; once a second open runs and waiting tasks ──► gauges
"""

from __future__ import annotations

import time
from collections.abc import Collection

from streams.adapters.admission.task_queue import TaskQueue
from streams.kafka import times
from streams.observability import catalog
from streams.observability.metrics import Meter

LOOK_EVERY_S = 1.0


class AgentMetrics:
    """Reports the runs of one agent. Any thread may report that a run began or ended; only the stepping thread calls
    `look`."""

    def __init__(self, meter: Meter, agent_id: str) -> None:
        self._meter, self._agent, self._next_look = meter, agent_id, 0.0

    def began(self) -> None:
        """Count a run."""
        self._meter.add(catalog.RUNS_STARTED, self._agent)

    def took(self, seconds: float) -> None:
        """Record the duration of a run."""
        self._meter.observe(catalog.RUN_SECONDS, seconds, self._agent)

    def ended(self, ending: str) -> None:
        """Count how a run ended."""
        self._meter.add(catalog.RUNS_ENDED, self._agent, ending)

    def look(self, queues: Collection[TaskQueue], running: int) -> None:
        """Report progress, and once a second set the gauges."""
        self._meter.begin("looks for tasks, and for runs that ended")
        if not self._meter.on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        oldest_ms = min((ms for queue in queues if (ms := queue.oldest_ms()) is not None), default=None)
        age_s = 0.0 if oldest_ms is None else max(0.0, (times.now_ms() - oldest_ms) / 1000)
        self._meter.set(catalog.RUNS_OPEN, running, self._agent)
        self._meter.set(catalog.AGENT_TASKS, sum(len(queue.waiting) + queue.set_aside for queue in queues), self._agent)
        self._meter.set(catalog.AGENT_TASK_AGE, age_s, self._agent)
