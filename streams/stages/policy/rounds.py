"""The rounds of one policy: which tasks are answered next, by which version, and what is written.

    tasks ──► TaskQueue ──► round: one version, room to train on it? ──► load it ──► engine ──► responses
    adapters, batches, groups of this policy ──► PolicyState ──┘

A round has one version, which the oldest waiting task decides, so during a canary both versions get their turn. The log
is followed before each round, after loading a version, and after every longer pause, so that no round starts on a
version that was replaced; a round that has started finishes on its version.

Who reads the tasks and commits them, for one policy or for many, is agent.py or fleet.py.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from functools import partial
from itertools import count

from schemas.events import derive_id
from streams.adapters.admission.choose import SamplingBatch, WaitingTask, choose
from streams.adapters.admission.held_back import HeldBack, room
from streams.adapters.admission.queue import TaskQueue
from streams.adapters.admission.state import PolicyState, give_up_ms
from streams.adapters.router import route
from streams.engines.protocol import NONE, Completion, Engine, SamplingRequest
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.kafka.tracked import RecordSource
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.adapter_cache import KEPT, VersionLoader
from streams.stages.policy.responses import ResponseWriter, ServedVersion
from streams.stages.policy.sampling import Sampler, all_failed

STAGE = "policy"
LINGER_S = 0.2
"""How long a train round that is not full waits for more tasks: room comes piecemeal, and larger rounds are cheaper."""

log = logging.getLogger("streamward.policy")


@dataclass(frozen=True, slots=True)
class AgentIO:
    """What a policy agent talks to."""

    producer: Producer
    outage: BrokerOutage
    meter: Meter = OFF
    tracer: Tracer = NO_TRACER


@dataclass(frozen=True, slots=True)
class BegunRound:
    """A round whose version is loaded."""

    chosen: SamplingBatch
    requests: list[SamplingRequest]
    refused: str | None
    """Why its version cannot answer; its slots fail."""
    began: float
    started: float
    """Seconds of a clock: when it was chosen, and when its version was loaded."""


class PolicyRounds:
    """The rounds of one policy: `read`, `ready`, `answer`, again and again. Call `close` at the end."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        tasks: RecordSource,
        state: PolicyState,
        io: AgentIO,
        *,
        kept: int = KEPT,
    ) -> None:
        """`kept`: how many adapters stay on disk, besides those of primary and candidate."""
        self._settings, self._meter, self._engine = settings, io.meter, engine
        self._producer, self._state = io.producer, state
        self.queue = TaskQueue(settings, tasks, state, io.outage, io.tracer)
        self._loader = VersionLoader(settings, engine, state, tasks, io.outage, kept)
        self._sampler = Sampler(engine, settings.policy, io.meter)
        self._responses = ResponseWriter(settings.topics, io.producer, io.meter, io.tracer)
        self._nonce, self._samplings = uuid.uuid4().hex, count()
        self._lingers_until: float | None = None
        self._answered_by = NONE
        """The version that answered last."""
        router, admission = state.router, state.admission
        self._room = partial(room, router, admission)
        self._held_back = HeldBack(router, admission)
        io.meter.collect(self._report)

    def close(self) -> None:
        """Remove the local copies of adapters."""
        self._loader.close()

    def read(self, wait_s: float = 0.0) -> None:
        """Take in new tasks, waiting at most `wait_s` for the first."""
        self.queue.read(wait_s)

    def ready(self) -> SamplingBatch | None:
        """Return the round that may be answered now, if there is one; say now and then what others wait for."""
        self._loader.retry_unreachable()
        self.queue.sweep()
        self._state.follow()  # an event read while this waited may change who answers
        self._held_back.look(self.queue.waiting, others=self.queue.set_aside)
        return self.next_round()

    def load(self) -> None:
        """Load what answers from now on. Raises as `VersionLoader.serve`."""
        self._loader.look()

    # --- the next round -----------------------------------------------------------------------------------------------

    def next_round(self) -> SamplingBatch | None:
        """Return the round to answer now, or None. One that is not full and not urgent waits for more tasks."""
        chosen = self._choose()
        while chosen is not None and self.queue.drop_overtaken(chosen.tasks):
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
        return choose(self.queue.waiting, version_for=version_for, room=self._room, most=most)

    # --- answering ----------------------------------------------------------------------------------------------------

    def answer(self, chosen: SamplingBatch) -> None:
        """Answer a round that is `ready`, unless another version answers its tasks by now."""
        begun = self.begin(chosen)
        if begun is None:
            return
        if begun.refused is None:
            answers = self._sampler.sample(begun.requests, chosen.version)
        else:
            answers = [all_failed(request, begun.refused) for request in begun.requests]
        self.finish(begun, answers)

    def begin(self, chosen: SamplingBatch) -> BegunRound | None:
        """Load the version of a round that is `ready`; None if another version answers its tasks by now."""
        self._lingers_until = None
        began = time.monotonic()
        refused = self._loader.serve(chosen.version)
        serving = self._state.router.serving
        if any(route(serving, waiting.task) != chosen.version for waiting in chosen.tasks):
            return None  # choose again
        requests = [self._request(waiting, chosen.version) for waiting in chosen.tasks]
        return BegunRound(chosen, requests, refused, began, time.monotonic())

    def finish(self, begun: BegunRound, answers: list[list[Completion]]) -> None:
        """Write what the engine answered to a round."""
        chosen = begun.chosen
        served = ServedVersion(
            adapter_version=chosen.version,
            engine=self._engine.name,
            base_digest=self._engine.base_digest,
            tokenizer_digest=self._engine.tokenizer_digest,
            created_at=times.now_ms(),
            latency_ms=(time.monotonic() - begun.started) * 1000,
        )
        self._answered_by = chosen.version if begun.refused is None else self._answered_by
        for waiting, request, completions in zip(chosen.tasks, begun.requests, answers, strict=True):
            self._write(waiting, request, completions, served)
        self._producer.flush()
        for waiting in chosen.tasks:
            self.queue.answered(waiting)
        self._held_back.answered(chosen.tasks)
        self._meter.observe(catalog.PROCESSING, time.monotonic() - begun.began, STAGE)
        what = "%s: version %d answered %d tasks in %.0f ms"
        log.info(what, self._settings.policy.name, chosen.version, len(chosen.tasks), served.latency_ms)

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
        self._meter.set(catalog.WAITING, len(self.queue), policy)
        if (served := self._engine.served_version) == NONE:
            served = self._answered_by
        self._meter.set(catalog.ADAPTER, None if served == NONE else 1, policy, "served", str(served))
        self._meter.set(catalog.PRIMARY, serving.primary, policy)
        self._meter.set(catalog.CANDIDATE, serving.candidate, policy)
        self._meter.set(catalog.SHARE, serving.share, policy)
