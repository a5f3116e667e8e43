"""The metrics of the job in a process: progress, age of the newest step, loss and gradient.

    taken up ──► begin ──► step, after each ──► end           ──► gauges, counters, /healthz
                                                              ──► the age of the newest step, at each scrape

The alert for a stuck job uses the age of the newest step, since a tuning job has no event before its end.
"""

from __future__ import annotations

import time
from typing import Literal

from plugins.jobs.controller.gauges import JOB_STEP_AGE
from streams.observability.catalog import Metric
from streams.observability.metrics import OFF, Meter

DONE = Metric(
    "streamward_tuning_done_ratio",
    "gauge",
    ("policy",),
    "Completed share of the steps of the fine-tuning job in progress.",
    ("tune",),
    "a fine-tuning job",
)
STEPS = Metric(
    "streamward_tuning_steps_total", "counter", ("policy",), "Steps taken for jobs.", ("tune",), "a fine-tuning job"
)
LOSS = Metric(
    "streamward_tuning_loss", "gauge", ("policy",), "The loss. Of the last step.", ("tune",), "a fine-tuning job"
)
GRADIENT = Metric(
    "streamward_tuning_gradient_norm",
    "gauge",
    ("policy",),
    "Norm of the gradient before it is clipped. Of the last step.",
    ("tune",),
    "a fine-tuning job",
)
ATTEMPTS = Metric(
    "streamward_tuning_attempts_total",
    "counter",
    ("policy", "outcome"),
    "Started fine-tuning jobs by outcome: completed, failed, or stopped between two steps.",
    ("tune",),
    "a fine-tuning job",
)
METRICS = (DONE, STEPS, LOSS, GRADIENT, ATTEMPTS)
BEGIN_S = 3600.0
"""Within which a job's first step has to be there, seconds: the base model may have to be downloaded before."""
TuningOutcome = Literal["completed", "failed", "stopped"]


class TuningMetrics:
    """Reports the job of one process. For the thread that runs it."""

    def __init__(self, meter: Meter = OFF) -> None:
        self._meter = meter
        self._newest: tuple[str, float] | None = None
        """Policy, and the time of time.monotonic of its newest step; None while no job runs."""
        meter.collect(self._report)

    def wait(self) -> None:
        """Report that there is no job."""
        self._meter.begin("waits for a job")

    def begin(self, policy: str) -> None:
        """Report that a job is taken up."""
        self._newest = (policy, time.monotonic())
        self._meter.begin(f"begins a job of {policy}", within_s=BEGIN_S)
        self._meter.set(DONE, 0.0, policy)
        self._meter.add(STEPS, policy, by=0)

    def step(self, policy: str, number: int, count: int, *, loss: float, grad_norm: float) -> None:
        """Report a step, counted from 1."""
        self._newest = (policy, time.monotonic())
        self._meter.begin(f"tunes {policy}: step {number} of {count} is done")
        self._meter.add(STEPS, policy)
        self._meter.set(DONE, number / count, policy)
        self._meter.set(LOSS, loss, policy)
        self._meter.set(GRADIENT, grad_norm, policy)

    def end(self, policy: str, outcome: TuningOutcome) -> None:
        """Report that nothing more is done for a job here."""
        self._newest = None
        self._meter.add(ATTEMPTS, policy, outcome)
        for metric in (DONE, JOB_STEP_AGE):
            self._meter.set(metric, None, policy)

    def _report(self) -> None:
        """Set the age. Called in the metrics server's thread."""
        if (newest := self._newest) is not None:
            self._meter.set(JOB_STEP_AGE, time.monotonic() - newest[1], newest[0])
