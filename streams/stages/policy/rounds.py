"""The rounds of one policy: choose the next tasks and their version, and write the answers.

    PolicyTasks ──► TaskQueue ──► round: one version, room to train on it? ──► load it ──► engine ──► responses
    adapters, batches, groups of this policy ──► PolicyState ──┘

A round has one version, which the oldest waiting task decides, so during a canary both versions get their turn. The log
is followed before each round, after loading a version, and after every longer pause, so that no round starts on a
version that was replaced; a round that has started finishes on its version.

`eval` and `serve` tasks never wait for the trainer, `train` tasks do (streams/adapters/admission/admission.py); each
minute the agent logs why they wait. The tasks of all policies are read and committed by agent.py.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from schemas.conventions import OUTSIDE_ENGINE
from schemas.events import Event, OutsideModel, Task, derive_id
from streams.adapters.admission.held_back import HeldBack, room
from streams.adapters.admission.policy_log import PolicyLog, give_up_ms
from streams.adapters.admission.sampling_batch import SamplingBatch, WaitingTask, choose
from streams.adapters.admission.task_queue import TaskQueue
from streams.adapters.admission.task_reader import PolicyTasks
from streams.adapters.router import route
from streams.engines.outside import outside_model
from streams.engines.outside.outside_model import OutsideModels
from streams.engines.protocol import NONE, Completion, Engine, SamplingRequest, failed_slots
from streams.engines.sampling_step import RoundVersion, SamplingStep, passes_steps, sample_through
from streams.engines.task_guard import GuardedRequest, TaskGuard
from streams.engines.token_stream import AnswerOrigin
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.observability.trace_context import sending
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.adapter_cache import VersionLoader
from streams.stages.policy.response_writer import ResponseWriter, ServedVersion
from streams.stages.policy.sampling import Sampler

STAGE = "policy"
LINGER_S = 0.2
"""How long a partly filled train round waits for more tasks: room comes piecemeal, and larger rounds are cheaper."""

log = logging.getLogger("streamward.policy")


@dataclass(frozen=True, slots=True)
class AgentIO:
    """Connections of a policy agent to the log, and its meter."""

    producer: Producer
    log: PolicyLog
    meter: Meter = OFF
    tracer: Tracer = NO_TRACER
    steps: Sequence[SamplingStep] = ()
    """Steps in front of the engine."""
    guard: TaskGuard | None = None
    """Looks at tasks and answers."""


@dataclass(frozen=True, slots=True)
class BegunRound:
    """A round with its version loaded."""

    batch: SamplingBatch
    guarded: list[GuardedRequest]
    """Its tasks as they are sampled."""
    refused: str | None
    """Why its version cannot answer, so that its slots fail."""
    outside: OutsideModel | None
    """The outside model that answers; None: the engine does."""
    began: float
    started: float
    """Clock readings in seconds: when it was chosen, and when its version was loaded."""

    @property
    def requests(self) -> list[SamplingRequest]:
        """The tasks to sample: those that no guard refused."""
        return [guarded.request for guarded in self.guarded if guarded.refused is None]


class PolicyRounds:
    """The rounds of one policy: `queue.read`, `ready`, `answer`, again and again. Call `close` at the end."""

    def __init__(self, settings: Settings, engine: Engine, tasks: PolicyTasks, io: AgentIO, *, cached: int) -> None:
        """`cached`: number of adapters that stay on disk in addition to primary and candidate."""
        self._settings, self._meter, self._engine = settings, io.meter, engine
        self._io_steps, self._guard = io.steps, io.guard
        self._producer, self._state = io.producer, io.log.state(settings.policy.name)
        self.queue = TaskQueue(settings, tasks, io.log, io.meter, io.tracer)
        self._loader = VersionLoader(settings, engine, io.log, tasks.consumer, io.tracer, cached)
        self._sampler = Sampler(engine, settings.policy, io.meter)
        self._outside = OutsideModels(settings.outside)
        self._responses = ResponseWriter(settings.topics, io.producer, io.meter, io.tracer)
        self._nonce, self._samplings = uuid.uuid4().hex, count()
        self._lingers_until: float | None = None
        self._passed_steps = False
        """Whether the tasks of the last round passed the steps."""
        self._answered_by = NONE
        """The version that answered last."""
        self._room = partial(room, self._state.router, self._state.admission)
        self._held_back = HeldBack(self._state.router, self._state.admission)
        io.meter.collect(self._report)

    def close(self) -> None:
        """Remove the local copies of adapters, and release outside models."""
        self._loader.close()
        self._outside.close()

    def load(self) -> None:
        """Load the versions that answer from now on. Raises as `VersionLoader.serve`."""
        self._loader.load_new()

    # --- the next round -----------------------------------------------------------------------------------------------

    def ready(self) -> SamplingBatch | None:
        """Return the round that may be answered now, if any; log now and then why others wait."""
        self._loader.retry_unreachable()
        self.queue.sweep()
        self._held_back.look(self.queue.waiting, set_aside=self.queue.set_aside)
        return self.next_round()

    def next_round(self) -> SamplingBatch | None:
        """Return the round to answer now, or None. One that is not full and not urgent waits for more tasks."""
        batch = self._choose()
        while batch is not None and self.queue.drop_overtaken(batch.tasks):
            batch = self._choose()
        if batch is None:
            self._lingers_until = None
            return None
        if len(batch.tasks) == self._settings.policy.round_tasks or any(waiting.urgent for waiting in batch.tasks):
            return batch
        if self._lingers_until is None:
            self._lingers_until = time.monotonic() + LINGER_S
        return batch if time.monotonic() >= self._lingers_until else None

    def _choose(self) -> SamplingBatch | None:
        """Return the next tasks. Where there are steps, those that pass them and others take turns, a round each: only
        the former may be answered while the engine fails."""
        limit = self._settings.policy.round_tasks
        batch = choose(self.queue.waiting, version_for=self._version_for, room=self._room, limit=limit)
        if batch is None or not self._steps:
            return batch
        turn = not self._passed_steps
        in_turn = tuple(waiting for waiting in batch.tasks if passes_steps(waiting.task) == turn)
        return replace(batch, tasks=in_turn) if in_turn else batch

    def _version_for(self, task: Task) -> int | None:
        """Return the version that answers a task; None while its pinned version is unknown."""
        router = self._state.router
        return route(router.serving if self._settings.outside.takes(task.tenant) else router.serving_here, task)

    # --- answering ----------------------------------------------------------------------------------------------------

    def answer(self, batch: SamplingBatch) -> None:
        """Answer a round that is `ready`, unless another version answers its tasks by now."""
        current = self.begin(batch)
        if current is None:
            return
        if not current.requests:
            answers = list[list[Completion]]()
        elif current.refused is None and current.outside is not None:
            answers = self._outside.sample(current.outside, current.requests)
        elif current.refused is None:
            sample = partial(self._sampler.sample, version=batch.version)
            served = RoundVersion(batch.version, self._loader.folder(batch.version))
            answers = sample_through(self._steps, current.requests, served, sample)
        else:
            answers = [failed_slots(request, current.refused) for request in current.requests]
        self.finish(current, answers)

    @property
    def _steps(self) -> Sequence[SamplingStep]:
        """Steps in front of the engine: none while a canary is in progress, which compares what versions answer."""
        return self._io_steps if self._state.router.candidate is None else ()

    def samples_with_others(self, current: BegunRound) -> bool:
        """Return whether a round may be sampled with those of other policies: the engine answers it, and no step."""
        has_steps = bool(self._steps) and any(passes_steps(request.task) for request in current.requests)
        return bool(current.requests) and current.refused is None and current.outside is None and not has_steps

    def begin(self, batch: SamplingBatch) -> BegunRound | None:
        """Load the version of a round that is `ready`; None if another version answers its tasks by now."""
        self._lingers_until = None
        began = time.monotonic()
        refused = self._loader.serve(batch.version)
        if any(self._version_for(waiting.task) != batch.version for waiting in batch.tasks):
            return None  # choose again
        self._passed_steps = passes_steps(batch.tasks[0].task)
        requests = [self._request(waiting, batch.version) for waiting in batch.tasks]
        outside = self._state.router.outside(batch.version)
        guarded = [self._admit(request) for request in requests]
        return BegunRound(batch, guarded, refused, outside, began, time.monotonic())

    def _admit(self, request: SamplingRequest) -> GuardedRequest:
        with sending(request.trace):
            return GuardedRequest(request) if self._guard is None else self._guard.admit(request)

    def finish(self, current: BegunRound, answers: list[list[Completion]]) -> None:
        """Write the engine's answers to the requests of a round, after what the guard found."""
        batch, reviewed = current.batch, self._review(current, answers)
        served = ServedVersion(
            adapter_version=batch.version,
            trained_batches=self._state.router.adapters.versions[batch.version].recorded_batches,
            outside=current.outside,
            **self._model_of(current.outside),
            created_at=times.now_ms(),
            latency_ms=(time.monotonic() - current.started) * 1000,
        )
        if current.refused is None and current.outside is None:
            self._answered_by = batch.version
        for waiting, guarded, completions in zip(batch.tasks, current.guarded, reviewed, strict=True):
            self._write(waiting, guarded.request, completions, self._as_answered(served, completions[0].origin))
        self._producer.flush()
        for waiting in batch.tasks:
            self.queue.finish_answered(waiting)
        self._held_back.note_answered(batch.tasks)
        self._meter.observe(catalog.PROCESSING, time.monotonic() - current.began, STAGE)
        text = "%s: version %d answered %d tasks in %.0f ms"
        log.info(text, self._settings.policy.name, batch.version, len(batch.tasks), served.latency_ms)

    def _review(self, current: BegunRound, answers: list[list[Completion]]) -> list[list[Completion]]:
        """Return the answers to all tasks of a round as the guard lets them be given, once the log has its events."""
        sampled, reviewed, events = iter(answers), list[list[Completion]](), list[Event]()
        for guarded in current.guarded:
            completions = next(sampled) if guarded.refused is None else guarded.refused
            events += guarded.events
            if self._guard is not None and guarded.refused is None:
                with sending(guarded.request.trace):
                    completions, found = self._guard.review(guarded.request, completions)
                events += found
            reviewed.append(completions)
        for event in events:
            self._producer.send(event)
        if events:
            self._producer.flush()
        return reviewed

    def _as_answered(self, served: ServedVersion, origin: AnswerOrigin | None) -> ServedVersion:
        """Return the values about the version and the engine that answered a task."""
        if origin is None or origin.version is None:
            return served
        batches = self._state.router.adapters.versions[origin.version].recorded_batches
        return replace(
            served,
            adapter_version=origin.version,
            trained_batches=batches,
            engine=origin.engine or served.engine,
            base_digest=origin.base_digest or served.base_digest,
        )

    def _model_of(self, outside: OutsideModel | None) -> dict[str, str]:
        """Return the values about the answering model that responses record."""
        if outside is not None:
            digest = outside_model.identity(outside)
            return {"engine": OUTSIDE_ENGINE, "base_digest": digest, "tokenizer_digest": digest}
        digests = {"base_digest": self._engine.base_digest, "tokenizer_digest": self._engine.tokenizer_digest}
        return {"engine": self._engine.name, **digests}

    def _request(self, waiting: WaitingTask, version: int) -> SamplingRequest:
        sampling_id = derive_id(waiting.task.task_id, version, *waiting.at, self._nonce, next(self._samplings))
        return SamplingRequest(sampling_id=sampling_id, task=waiting.task, trace=waiting.trace)

    def _write(
        self, waiting: WaitingTask, request: SamplingRequest, completions: list[Completion], served: ServedVersion
    ) -> None:
        """Write the responses of one sampling; a train task is in flight from here on."""
        admission = self._state.admission
        if not waiting.urgent and not admission.hopeless(self._state.batches_of(served.adapter_version)):
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
