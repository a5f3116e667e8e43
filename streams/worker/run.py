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
from streams.kafka.registry import client as schema_registry
from streams.observability import catalog, metrics
from streams.observability.tracing import tracer as tracing
from streams.settings.model import Settings
from streams.worker.app import App, build_app, run_worker
from streams.worker.faust.watchdog import broker_answers

ASK_EVERY = 5
"""Looks of the meter between two questions whether the broker is there."""


def run(settings: Settings, stages: Iterable[Callable[[App], None]]) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0 drained, 1 crashed, 75 stopped by a watchdog.

    `stages` holds the `register` function of each stage to run. Raises LogError if the broker does not answer, or
    records were deleted before they were read; NotFoundError or SettingsError if topics are missing or misconfigured.
    """
    admin.check_topics(settings)
    with metrics.served(settings, "streams") as meter, tracing.opened(settings, "streams", meter) as tracer:
        schema_registry.wait(settings, meter)
        name = f"streams-{socket.gethostname()}-{os.getpid()}"
        app = build_app(settings, worker_name=name, meter=meter, tracer=tracer)
        for register in stages:
            register(app)
        if meter.on:
            _report(app)
        return run_worker(app)


def _report(app: App) -> None:
    """Tell the meter each second what only the event loop may look at; that it does is the sign of life."""
    meter, looks = app.meter, count()
    meter.at("runs")
    answers = False

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]  # faust is not typed
    async def assigned(_: object, *__: object, **___: object) -> None:
        meter.add(catalog.REBALANCES, "streams")

    @app.timer(1.0)  # type: ignore[untyped-decorator]
    async def look() -> None:
        nonlocal answers
        meter.beat()
        if not answers or next(looks) % ASK_EVERY == 0:
            answers = await broker_answers(app)
        if app.rebalancing or not app.tables.recovery.completed.is_set():
            meter.ready("kafka", "a rebalance is under way, or tables are read from their changelogs")
        elif not answers:
            meter.ready("kafka", f"{app.settings.kafka.bootstrap} does not answer")
        else:
            meter.ready("kafka")
            with contextlib.suppress(IllegalStateError):  # revoked meanwhile
                for intake in app.intakes:
                    intake.report()
