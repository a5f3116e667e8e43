"""Metrics of `agents run`, and the alert about them: the runs of one agent, and the tasks that wait for one.

AgentRunner ──► runs begun, ended, their time ──► counters; once a second open runs and waiting tasks ──► gauges
"""

from __future__ import annotations

import time
from collections.abc import Collection

from streams.adapters.admission.task_queue import TaskQueue
from streams.kafka import times
from streams.observability.catalog import AGES, Metric
from streams.observability.grafana.alerts import Alert, Limit
from streams.observability.grafana.promql import select, share, total
from streams.observability.metrics import Meter

LOOK_EVERY_S = 1.0
RUNS_OPEN = Metric("streamward_agent_runs_open", "gauge", ("agent",), "Runs in progress.", ("agents",))
RUNS_STARTED = Metric(
    "streamward_agent_runs_started_total", "counter", ("agent",), "Runs that began in this process.", ("agents",)
)
RUNS_ENDED = Metric(
    "streamward_agent_runs_ended_total",
    "counter",
    ("agent", "ending"),
    "Runs by ending: completed, failed, timeout, cancelled, refused by the server, or unfinished; runs of an earlier "
    "process are included if their task is read again.",
    ("agents",),
)
RUN_SECONDS = Metric(
    "streamward_agent_run_seconds",
    "histogram",
    ("agent",),
    "Time of a run of this process, from the program's start to its end in the log.",
    ("agents",),
    buckets=AGES,
)
AGENT_TASKS = Metric(
    "streamward_agent_tasks_waiting", "gauge", ("agent",), "Tasks that were read and have no run yet.", ("agents",)
)
AGENT_TASK_AGE = Metric(
    "streamward_agent_tasks_oldest_age_seconds",
    "gauge",
    ("agent",),
    "Age of the oldest of them, by its timestamp; 0 without any.",
    ("agents",),
)
METRICS = (RUNS_OPEN, RUNS_STARTED, RUNS_ENDED, RUN_SECONDS, AGENT_TASKS, AGENT_TASK_AGE)
ALERTS = (
    Alert(
        "AgentFailing",
        "warning",
        "15m",
        Limit(
            share(
                total(f"rate({select(RUNS_ENDED, ending='~failed|timeout|refused')}[15m])", "agent"),
                total(f"rate({select(RUNS_ENDED)}[15m])", "agent"),
            ),
            ">",
            0.5,
        ),
        "{{ $value | humanizePercentage }} of the runs of agent `{{ $labels.agent }}` failed.",
        do="`streamward agents list AGENT` says how each run ended, and the program's output is in the run's folder",
    ),
)


class AgentMetrics:
    """Reports the runs of one agent. Any thread may report that a run began or ended; only the stepping thread calls
    `look`."""

    def __init__(self, meter: Meter, agent_id: str) -> None:
        self._meter, self._agent, self._next_look = meter, agent_id, 0.0

    def began(self) -> None:
        """Count a run."""
        self._meter.add(RUNS_STARTED, self._agent)

    def took(self, seconds: float) -> None:
        """Record the duration of a run."""
        self._meter.observe(RUN_SECONDS, seconds, self._agent)

    def ended(self, ending: str) -> None:
        """Count how a run ended."""
        self._meter.add(RUNS_ENDED, self._agent, ending)

    def look(self, queues: Collection[TaskQueue], running: int) -> None:
        """Report progress, and once a second set the gauges."""
        self._meter.begin("looks for tasks, and for runs that ended")
        if not self._meter.on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        oldest_ms = min((ms for queue in queues if (ms := queue.oldest_ms()) is not None), default=None)
        age_s = 0.0 if oldest_ms is None else max(0.0, (times.now_ms() - oldest_ms) / 1000)
        self._meter.set(RUNS_OPEN, running, self._agent)
        self._meter.set(AGENT_TASKS, sum(len(queue.waiting) + queue.set_aside for queue in queues), self._agent)
        self._meter.set(AGENT_TASK_AGE, age_s, self._agent)
