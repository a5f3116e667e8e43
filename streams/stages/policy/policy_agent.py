"""Answer tasks with the adapter version in force, or with a candidate that has a share of them.

    tasks ──► TaskReader, by policy ──► PolicyRounds of each: is a round ready? ──► next_turn ──► responses ──► commit
    adapters, batches, groups ──► PolicyLog ──┘                                         ▲   │
                                                                    fleet.weights ──────┘   └──► SharedEngine

One sampling is one attempt at all slots of a task by one version, and the engine must report that it served that
version. Its responses are written one after the other and acknowledged before the task counts as done; offsets are
committed contiguously. If an agent dies in between, the task is sampled again under another sampling_id, and the
advantages stage takes the first complete sampling. While the broker is unreachable the agent waits.

An agent answers for one policy, or round-robin for every policy of a fleet (fleet.policies). Up to fleet.mixed policies
are sampled together if the engine can, each row with its own adapter. Samples depend on the sampling's id, the slot and
the step, and not on the rounds of other policies. A fleet skips a policy if its newest version was trained on another
base model: another fleet answers its tasks. If the adapter of a policy cannot be fetched now, a fleet sets the policy
aside and tries again later, while an agent of one policy ends, and its supervisor starts it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Self

from schemas.events import Task
from streams.adapters import signing
from streams.adapters.admission.policy_log import PolicyLog
from streams.adapters.admission.sampling_batch import SamplingBatch
from streams.adapters.admission.task_queue import settings_of
from streams.adapters.admission.task_reader import TaskReader
from streams.engines.fair_share import Turns, next_turn, take_turn
from streams.engines.protocol import Engine
from streams.engines.sampling_step import build_steps
from streams.engines.sharing import SharedEngine
from streams.engines.task_guard import build_task_guard
from streams.errors import EventError
from streams.kafka.client import POLL_S
from streams.kafka.group_names import GroupScope
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import catalog, metrics
from streams.observability.metrics import OFF
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.adapter_cache import CACHED
from streams.stages.policy.rounds import STAGE, AgentIO, BegunRound, PolicyRounds
from streams.stages.policy.sampling import sample_mixed

HELD_POLL_S = 0.05
"""Longest wait for new tasks while others wait for room, which is announced in other topics."""
START_S = 3600.0
"""How long an engine may take to start before it counts as stuck: it may have a model to download."""
RETRY_S = 30.0
"""Delay before a fleet retries a policy with an adapter that could not be fetched."""
FLEET_CACHED = 1
"""Adapters of a fleet's policy that stay on disk in addition to primary and candidate."""

log = logging.getLogger("streamward.policy")


def run(settings: Settings, *, stop: threading.Event, engine: Engine | None = None, fleet: bool = False) -> None:
    """Answer tasks until `stop` is set; a round that has started is finished, written and committed.

    `fleet`: of every policy of fleet.policies; otherwise only of policy.name. Without `engine`, the one in the settings
    is built, and closed at the end. Raises SettingsError or NotFoundError if it cannot start, LogError if the broker
    refuses, EventError (store_unreachable) if the adapter of the only policy cannot be fetched now, StreamwardError if
    the engine serves another version than asked.
    """
    with ExitStack() as stack:
        meter = stack.enter_context(metrics.serve_meter(settings, "policy", waits_for=("kafka", "engine")))
        tracer = stack.enter_context(tracing.open_tracer(settings, "policy", meter))
        signing.check_verify_key(settings.adapters)
        if engine is None:
            from streams.engines.build import build

            meter.begin("building the engine", within_s=START_S)
            engine = build(settings, settings.fleet.states if fleet else None)
            stack.callback(engine.close)
        meter.ready("engine")
        try:
            schema_registry.wait(settings, meter, stop)
            outage = BrokerOutage(settings.kafka, stop, meter)
            with PolicyAgent(settings, engine, outage, tracer, fleet=fleet) as agent:
                while not stop.is_set():
                    agent.step()
        except StoppedWaiting as exc:
            log.warning("%s", exc)


class PolicyAgent:
    """Answers for one policy, or for a fleet. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        outage: BrokerOutage,
        tracer: Tracer = NO_TRACER,
        *,
        fleet: bool = False,
    ) -> None:
        self._settings, self._engine, self._meter = settings, engine, outage.meter
        self._single = None if fleet else settings.policy.name
        """The only policy; None for a fleet."""
        self._shared = SharedEngine(engine, settings.fleet.states, self._meter if fleet else OFF)
        self._log = PolicyLog(settings, outage, self._single)
        steps, producer = build_steps(settings, engine), Producer(settings, outage=outage, stage=STAGE)
        guard = build_task_guard(settings, self._meter)
        self._io = AgentIO(producer, self._log, self._meter, tracer, steps, guard)
        base = engine.base_digest if fleet and engine.name != "scripted" else None
        serving = GroupScope(stage=STAGE, fleet=settings.fleet, policy=self._single, base=base)
        self._tasks = TaskReader(settings, serving, self._io.producer, outage, self._log, self._note_other_base)
        self._rounds: dict[str, PolicyRounds] = {}
        self._refused: set[str] = set()
        """Policies of another base model."""
        self._retry_at: dict[str, float] = {}
        """When policies that were set aside are retried."""
        self._turns = Turns()
        if fleet:
            self._meter.collect(self._report)
        else:
            self._rounds[settings.policy.name] = self._new_rounds(settings.policy.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tasks.close()
        self._log.close()
        for rounds in self._rounds.values():
            rounds.close()
        for step in self._io.steps:
            step.close()
        self._io.producer.__exit__(kind)

    def step(self) -> bool:
        """Read tasks, answer one round of the next policy in turn, commit. Return whether a round was answered."""
        self._meter.begin("looks for tasks")
        self._log.follow()
        if self._single is not None:
            self._rounds[self._single].load()  # now, since no other policy needs the engine
        policies = self._read_tasks()
        self._log.follow()  # an event that came meanwhile may change which version answers
        ready = self._ready(policies)
        chosen = self._next(ready)
        if len(chosen) == 1:
            self._answer(chosen[0], ready[chosen[0]])
        elif chosen:
            self._answer_mixed({policy: ready[policy] for policy in chosen})
        self._tasks.commit()
        return bool(chosen)

    def _read_tasks(self) -> set[str]:
        """Take in new tasks, waiting for the first if no round is ready; return the policies that have any."""
        queued = {policy for policy, rounds in self._rounds.items() if rounds.queue}
        is_ready = any(self._rounds[policy].next_round() for policy in queued if not self._is_aside(policy))
        arrived = self._tasks.poll(0.0 if is_ready else HELD_POLL_S if queued else POLL_S)
        for policy in arrived | queued:
            if policy not in self._rounds:
                self._rounds[policy] = self._new_rounds(policy)
            self._rounds[policy].queue.read()
        return arrived | queued

    def _ready(self, policies: Iterable[str]) -> dict[str, SamplingBatch]:
        """Return the round that each policy may answer now."""
        ready = {}
        for policy in policies:
            batch = None if self._is_aside(policy) else self._rounds[policy].ready()
            if batch is not None:
                ready[policy] = batch
        return ready

    def _is_aside(self, policy: str) -> bool:
        return self._retry_at.get(policy, 0.0) > time.monotonic()

    def _next(self, ready: Mapping[str, SamplingBatch]) -> list[str]:
        """Return the policies that are next in turn, and count their turn."""
        limit, chosen = self._settings.fleet.mixed if self._shared.mixes else 1, list[str]()
        while len(chosen) < limit:
            policy = next_turn(self._turns, ready.keys() - set(chosen))
            if policy is None:
                break
            self._turns = take_turn(self._turns, policy, self._settings.fleet.weight_of)
            chosen.append(policy)
        return chosen

    def _answer(self, policy: str, batch: SamplingBatch) -> None:
        rounds = self._rounds[policy]
        with self._setting_aside(policy):
            rounds.load()
            rounds.answer(batch)

    def _answer_mixed(self, ready: Mapping[str, SamplingBatch]) -> None:
        """Sample rounds of several policies together; if the engine fails on that, each is answered alone."""
        begun: dict[str, BegunRound] = {}
        for policy, batch in ready.items():
            rounds = self._rounds[policy]
            with self._setting_aside(policy):
                rounds.load()
                current = rounds.begin(batch)
                if current is not None and rounds.samples_with_others(current):
                    begun[policy] = current
                elif current is not None:
                    rounds.answer(batch)
        if not begun:
            return
        requests = {policy: current.requests for policy, current in begun.items()}
        try:
            answers = sample_mixed(self._shared, requests, self._settings.policy, self._meter)
        except Exception as exc:  # engines may raise anything
            log.warning("a round of %d policies failed, each is tried alone: %r", len(begun), exc)
            for policy, current in begun.items():
                self._answer(policy, current.batch)
            return
        for policy, current in begun.items():
            self._rounds[policy].finish(current, answers[policy])

    @contextmanager
    def _setting_aside(self, policy: str) -> Iterator[None]:
        """Set aside a policy of a fleet with an adapter that cannot be fetched now."""
        try:
            yield
        except EventError as exc:
            if self._single is not None:
                raise
            self._retry_at[policy] = time.monotonic() + RETRY_S
            self._meter.add(catalog.FLEET_SET_ASIDE, policy, "refused")
            log.error("policy %s is set aside for %g s, the others continue: %s", policy, RETRY_S, exc)
        else:
            self._retry_at.pop(policy, None)

    def _new_rounds(self, policy: str) -> PolicyRounds:
        tasks = self._tasks.tasks(policy)
        if self._single is not None:
            return PolicyRounds(self._settings, self._engine, tasks, self._io, cached=CACHED)
        return PolicyRounds(
            settings_of(self._settings, policy), self._shared.share(policy), tasks, self._io, cached=FLEET_CACHED
        )

    def _note_other_base(self, task: Task) -> None:
        """Log once for each policy of another base model that its tasks are skipped."""
        policy = task.policy
        if self._single or task.agent is not None or policy in self._refused or not self._settings.fleet.serves(policy):
            return
        self._refused.add(policy)
        self._meter.add(catalog.FLEET_SET_ASIDE, policy, "other_base")
        log.error(
            "policy %s is of base model %s, and this fleet has %s: it is left alone. Run a fleet of that model "
            "under another fleet.name, and tell them apart by fleet.policies",
            policy,
            (self._log.state(policy).router.adapters.newest_base or "")[:12],
            self._engine.base_digest[:12],
        )

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        now_s = time.time()
        for policy, rounds in list(self._rounds.items()):
            oldest_ms = rounds.queue.oldest_ms()
            age_s = 0.0 if oldest_ms is None else max(0.0, now_s - oldest_ms / 1000)
            self._meter.set(catalog.FLEET_WAITING, len(rounds.queue), policy)
            self._meter.set(catalog.FLEET_WAITING_SECONDS, age_s, policy)
        self._meter.set(catalog.FLEET_ASIDE, len(self._retry_at) + len(self._refused))
