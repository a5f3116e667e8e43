"""The stream worker: one Faust app that runs the stages it is given.

    settings ──► app ◄── each stage registers ──► runs until SIGTERM or SIGINT

To scale, start more workers: they share the partitions.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from itertools import count

from aiokafka.errors import IllegalStateError

from streams.kafka import admin
from streams.kafka.registry import client as registry
from streams.observability import catalog, metrics
from streams.observability.tracing import tracer
from streams.settings.model import Settings
from streams.worker.faust.faust_app import App, build_app, run_worker
from streams.worker.faust.faust_driver import FaustDriver
from streams.worker.faust.membership import membership
from streams.worker.faust.stall_watch import broker_answers

PROBE_EVERY = 5
"""The broker is probed once in so many reports of the meter."""


def run(settings: Settings, stages: Iterable[Callable[[FaustDriver], None]]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0 drained, 1 crashed, 75 stopped by a watchdog.

    `stages` holds the `register` function of each stage to run. Raises LogError if the broker does not answer, or
    records were deleted before they were read; NotFoundError or SettingsError if topics are missing or misconfigured.
    """
    admin.check_topics(settings, patient=True)
    with metrics.serve_meter(settings, "streams") as meter, tracer.open_tracer(settings, "streams", meter) as traces:
        registry.wait(settings, meter)
        name = f"streams-{socket.gethostname()}-{os.getpid()}"
        app = build_app(settings, worker_name=name, meter=meter, tracer=traces)
        driver = FaustDriver(app)
        for register in stages:
            register(driver)
        if meter.on:
            _report(app)
        return run_worker(app)


def _report(app: App) -> None:
    """Report to the meter each second the values that only the event loop may read; this is the sign of life."""
    meter, looks = app.meter, count()
    meter.begin("runs")
    answers = False

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]  # faust is not typed
    async def on_assigned(_: object, *__: object, **___: object) -> None:
        meter.add(catalog.REBALANCES, "streams")

    @app.timer(1.0)  # type: ignore[untyped-decorator]
    async def look() -> None:
        nonlocal answers
        meter.heartbeat()
        if not answers or next(looks) % PROBE_EVERY == 0:
            answers = await broker_answers(app)
        if membership.waits:
            meter.ready("kafka")  # it takes over when the workers of the other driver have left
        elif app.rebalancing or not app.tables.recovery.completed.is_set():
            meter.not_ready("kafka", "a rebalance is under way, or tables are being recovered from their changelogs")
        elif not answers:
            meter.not_ready("kafka", f"{app.settings.kafka.bootstrap} does not answer")
        else:
            meter.ready("kafka")
            with contextlib.suppress(IllegalStateError):  # revoked meanwhile
                for lag in app.lag_meters:
                    lag.report()
