"""Answer tasks with the adapter version in force, or with a candidate that has a share of them.

    tasks ──► TaskQueue ──► round: one version, room to train on it? ──► load it ──► engine ──► responses ──► commit
    adapters, batches, groups of this policy ──► PolicyState ──┘

One sampling is one attempt at all slots of a task by one version, and the engine must report that it served that
version. Its responses are written one after the other and acknowledged before the task counts as done; offsets are
committed contiguously. If an agent dies in between, the task is sampled again under another sampling_id, and the
advantages stage takes the first complete sampling. While the broker is unreachable the agent waits.

`eval` and `serve` tasks never wait for the trainer, `train` tasks do (streams/adapters/admission/admission.py); every
minute that they wait, the agent says for what.

A round has one version, which the oldest waiting task decides, so during a canary both versions get their turn. The log
is followed before each round, after loading a version, and after every longer pause, so that no round starts on a
version that was replaced; a round that has started finishes on its version.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from functools import partial
from itertools import count
from typing import Self

from schemas.events import derive_id
from streams.adapters import signing
from streams.adapters.admission.choose import SamplingBatch, WaitingTask, choose
from streams.adapters.admission.held_back import HeldBack, room
from streams.adapters.admission.queue import TaskQueue
from streams.adapters.admission.state import PolicyState, give_up_ms
from streams.adapters.router import route
from streams.engines.protocol import Completion, Engine, SamplingRequest
from streams.kafka import times
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.tracked import TrackedConsumer
from streams.observability import catalog, metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.adapter_cache import VersionLoader
from streams.stages.policy.responses import ResponseWriter, ServedVersion
from streams.stages.policy.sampling import Sampler, all_failed

STAGE = "policy"
HELD_POLL_S = 0.05
"""Longest wait for new tasks while others wait for room, which other topics bring."""
LINGER_S = 0.2
"""How long a train round that is not full waits for more tasks: room comes piecemeal, and larger rounds are cheaper."""
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
        self._settings, self._meter, self._outage, self._engine = settings, meter, outage, engine
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
        self._queue = TaskQueue(settings, self._consumer, self._state, outage, tracer)
        self._loader = VersionLoader(settings, engine, self._state, self._consumer, outage)
        self._sampler = Sampler(engine, settings.policy, meter)
        self._responses = ResponseWriter(settings.topics, self._producer, meter, tracer)
        self._nonce, self._samplings = uuid.uuid4().hex, count()
        self._lingers_until: float | None = None
        router, admission = self._state.router, self._state.admission
        self._room = partial(room, router, admission)
        self._held_back = HeldBack(router, admission)
        meter.collect(self._report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._consumer.close()
        self._state.__exit__()
        self._loader.close()
        self._producer.__exit__(kind)

    def step(self) -> bool:
        """Read tasks, answer one round if there is one, commit. Return whether a round was answered."""
        self._meter.begin("looks for tasks")
        self._state.follow(self._outage)
        self._loader.look()
        self._queue.read(POLL_S if not self._queue else 0.0 if self._next_round() else HELD_POLL_S)
        self._loader.retry_unreachable()
        self._queue.sweep()
        self._state.follow(self._outage)  # an event read while this waited may change who answers
        chosen = self._next_round()
        if chosen is not None:
            self._answer(chosen)
        self._held_back.look(self._queue.waiting, others=self._queue.set_aside)
        self._consumer.commit()
        return chosen is not None

    # --- the next round -----------------------------------------------------------------------------------------------

    def _next_round(self) -> SamplingBatch | None:
        """Return the round to answer now, or None. One that is not full and not urgent waits for more tasks."""
        chosen = self._choose()
        while chosen is not None and self._queue.drop_overtaken(chosen.tasks):
            chosen = self._choose()
        if chosen is None:
            self._lingers_until = None
            return None
        if len(chosen.tasks) == self._settings.policy.round_tasks or any(waiting.urgent for waiting in chosen.tasks):
            return chosen
        if self._lingers_until is None:
            self._lingers_until = time.monotonic() + LINGER_S
        return chosen if time.monotonic() >= self._lingers_until else None

    def _choose(self) -> SamplingBatch | None:
        version_for, most = partial(route, self._state.router.serving), self._settings.policy.round_tasks
        return choose(self._queue.waiting, version_for=version_for, room=self._room, most=most)

    # --- answering ----------------------------------------------------------------------------------------------------

    def _answer(self, chosen: SamplingBatch) -> None:
        self._lingers_until = None
        began = time.monotonic()
        refused = self._loader.serve(chosen.version)
        serving = self._state.router.serving
        if any(route(serving, waiting.task) != chosen.version for waiting in chosen.tasks):
            return  # another version answers them now: choose again
        requests = [self._request(waiting, chosen.version) for waiting in chosen.tasks]
        started = time.monotonic()
        if refused is None:
            answers = self._sampler.sample(requests, chosen.version)
        else:
            answers = [all_failed(request, refused) for request in requests]
        served = ServedVersion(
            adapter_version=chosen.version,
            engine=self._engine.name,
            base_digest=self._engine.base_digest,
            tokenizer_digest=self._engine.tokenizer_digest,
            created_at=times.now_ms(),
            latency_ms=(time.monotonic() - started) * 1000,
        )
        for waiting, request, completions in zip(chosen.tasks, requests, answers, strict=True):
            self._write(waiting, request, completions, served)
        self._producer.flush()
        for waiting in chosen.tasks:
            self._queue.answered(waiting)
        self._held_back.answered(chosen.tasks)
        self._meter.observe(catalog.PROCESSING, time.monotonic() - began, STAGE)
        log.info("version %d answered %d tasks in %.0f ms", chosen.version, len(chosen.tasks), served.latency_ms)

    def _request(self, waiting: WaitingTask, version: int) -> SamplingRequest:
        sampling_id = derive_id(waiting.task.task_id, version, *waiting.at, self._nonce, next(self._samplings))
        return SamplingRequest(sampling_id=sampling_id, task=waiting.task, trace=waiting.trace)

    def _write(
        self, waiting: WaitingTask, request: SamplingRequest, completions: list[Completion], served: ServedVersion
    ) -> None:
        """Write the responses of one sampling; a train task is in flight from here on."""
        admission = self._state.admission
        if not waiting.urgent and not admission.hopeless(served.adapter_version):
            give_up = give_up_ms(self._settings, served.created_at, waiting.deadline_ms)
            admission.start(waiting.task.task_id, give_up_ms=give_up)
        for completion in completions:
            self._responses.write(request, completion, served)

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        policy, serving = self._settings.policy.name, self._state.router.serving
        self._meter.set(catalog.WAITING, len(self._queue), policy)
        self._meter.set(catalog.ADAPTER, 1, policy, "served", str(self._engine.served_version))
        self._meter.set(catalog.PRIMARY, serving.primary, policy)
        self._meter.set(catalog.CANDIDATE, serving.candidate, policy)
        self._meter.set(catalog.SHARE, serving.share, policy)
