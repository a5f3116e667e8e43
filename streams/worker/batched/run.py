"""Run stages in a loop worker until it should stop.

    settings, stages ──► LoopWorker ──► step, step, … ──► stop: settle, leave the group, exit code 0

To scale, start more workers: they share the partitions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from streams.kafka import admin
from streams.kafka.registry import client as registry
from streams.kafka.retry import StoppedWaiting
from streams.observability import metrics
from streams.observability.tracing import tracer
from streams.settings.model import Settings
from streams.worker import garbage
from streams.worker.batched.worker import LoopWorker

log = logging.getLogger("streamward.worker")


def run(settings: Settings, stages: Iterable[Callable[[LoopWorker], None]], *, stop: threading.Event) -> None:
    """Run until `stop` is set; work in progress is finished and committed. `stages` holds the functions that register
    stages.

    Raises LogError if the broker does not answer or refuses, or records were deleted before they were read;
    NotFoundError or SettingsError if topics are missing or misconfigured.
    """
    admin.check_topics(settings, patient=True)
    with metrics.serve_meter(settings, "streams") as meter, tracer.open_tracer(settings, "streams", meter) as traces:
        registry.wait(settings, meter, stop)
        worker = LoopWorker(settings, stop, meter=meter, tracer=traces)
        for register in stages:
            register(worker)
        garbage.settle()
        meter.begin("runs")
        try:
            with worker:
                while not stop.is_set():
                    worker.step()
        except StoppedWaiting as exc:
            log.warning("%s", exc)
