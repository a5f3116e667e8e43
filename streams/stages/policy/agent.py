"""Answer tasks with the adapter version in force, or with a candidate that has a share of them.

    tasks ──► PolicyRounds ──► responses ──► commit
    adapters, batches, groups of this policy ──┘

One sampling is one attempt at all slots of a task by one version, and the engine must report that it served that
version. Its responses are written one after the other and acknowledged before the task counts as done; offsets are
committed contiguously. If an agent dies in between, the task is sampled again under another sampling_id, and the
advantages stage takes the first complete sampling. While the broker is unreachable the agent waits.

`eval` and `serve` tasks never wait for the trainer, `train` tasks do (streams/adapters/admission/admission.py); every
minute that they wait, the agent says for what.

Which round is next, and how it is answered: rounds.py. Agents of many policies in one process: fleet.py.
"""

from __future__ import annotations

import logging
import threading
from typing import Self

from streams.adapters import signing
from streams.adapters.admission.state import PolicyState
from streams.engines.protocol import Engine
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.tracked import TrackedConsumer
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.rounds import STAGE, AgentIO, PolicyRounds

HELD_POLL_S = 0.05
"""Longest wait for new tasks while others wait for room, which other topics bring."""
START_S = 3600.0
"""How long an engine may take to start before it counts as stuck: it may have a model to download."""

log = logging.getLogger("streamward.policy")


def run(settings: Settings, *, stop: threading.Event, engine: Engine | None = None) -> None:
    """Answer tasks until `stop` is set; a round that has started is finished, written and committed.

    Without `engine`, the one in the settings is built, and closed at the end. Raises SettingsError or NotFoundError if
    it cannot start, LogError if the broker refuses, EventError (store_unreachable) if an adapter cannot be fetched now,
    StreamwardError if the engine serves another version than asked.
    """
    with (
        metrics.served(settings, "policy", waits_for=("kafka", "engine")) as meter,
        tracing.opened(settings, "policy", meter) as tracer,
    ):
        if engine is not None:
            _run(settings, stop, engine, meter, tracer)
            return
        from streams.engines.build import build

        meter.begin("building the engine", within_s=START_S)
        built = build(settings)
        try:
            _run(settings, stop, built, meter, tracer)
        finally:
            built.close()


def _run(settings: Settings, stop: threading.Event, engine: Engine, meter: Meter, tracer: Tracer) -> None:
    signing.check_verify_key(settings.adapters)
    meter.ready("engine")
    try:
        schema_registry.wait(settings, meter, stop)
        with PolicyAgent(settings, engine, BrokerOutage(settings.kafka, stop, meter), meter, tracer) as agent:
            while not stop.is_set():
                agent.step()
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class PolicyAgent:
    """One policy agent. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, engine: Engine, outage: BrokerOutage, meter: Meter = OFF, tracer: Tracer = NO_TRACER
    ) -> None:
        self._meter = meter
        self._state = PolicyState(settings, outage)
        self._producer = Producer(settings, outage=outage, stage=STAGE)
        self._consumer = TrackedConsumer(
            settings,
            f"{STAGE}-{settings.policy.name}",
            "tasks",
            self._producer,
            outage,
            max_open=settings.policy.max_waiting,
        )
        io = AgentIO(self._producer, outage, meter, tracer)
        self._rounds = PolicyRounds(settings, engine, self._consumer, self._state, io)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._consumer.close()
        self._state.__exit__()
        self._rounds.close()
        self._producer.__exit__(kind)

    def step(self) -> bool:
        """Read tasks, answer one round if there is one, commit. Return whether a round was answered."""
        self._meter.begin("looks for tasks")
        self._state.follow()
        self._rounds.load()
        rounds = self._rounds
        rounds.read(POLL_S if not rounds.queue else 0.0 if rounds.next_round() else HELD_POLL_S)
        chosen = rounds.ready()
        if chosen is not None:
            rounds.answer(chosen)
        self._consumer.commit()
        return chosen is not None
