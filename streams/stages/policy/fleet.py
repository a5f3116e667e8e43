"""The policy agent of many policies: one base model, and a round of one or of several of them a turn.

    tasks ──► SharedTasks, by policy ──► PolicyRounds of each: is a round ready? ──► next_turn ──► responses ──► commit
    adapters, batches, groups ──► PolicyLog ──┘                                          ▲   │
                                                                     fleet.weights ──────┘   └──► SharedEngine

Each policy has the rounds that its own agent would have (rounds.py), each of one version. Up to fleet.mixed of them are
sampled together, where the engine can: the rows of each by their own adapter. What is sampled depends on the sampling's
id, the slot and the step, and not on whose rounds are beside it or were before.

A policy whose newest version was trained on another base model is left alone: its tasks are done here, and are another
fleet's to answer. If its adapter cannot be fetched now, it is set aside and tried again; the others continue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Self

from streams.adapters import signing
from streams.adapters.admission.choose import SamplingBatch
from streams.adapters.admission.state import PolicyLog, PolicyState
from streams.engines.fair_share import Turns, next_turn, took
from streams.engines.protocol import Engine
from streams.engines.sharing import SharedEngine
from streams.errors import EventError
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import catalog, metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.policy.agent import HELD_POLL_S, START_S
from streams.stages.policy.rounds import STAGE, AgentIO, BegunRound, PolicyRounds
from streams.stages.policy.sampling import sample_mixed
from streams.stages.policy.shared_tasks import SharedTasks

AGAIN_S = 30.0
"""When a policy is tried again whose adapter could not be fetched."""
SHARE = 100
"""Most tasks of one policy in memory are 1 / this of policy.max_waiting, or two rounds if that is more."""
KEPT_FOLDERS = 1
"""Adapters of a policy that stay on disk besides those of primary and candidate."""

log = logging.getLogger("streamward.policy")


def run(settings: Settings, *, stop: threading.Event, engine: Engine | None = None) -> None:
    """Answer the tasks of every policy until `stop` is set; a round that has started is finished and committed.

    Without `engine`, the one in the settings is built, and closed at the end. Raises as `agent.run`.
    """
    with ExitStack() as stack:
        meter = stack.enter_context(metrics.served(settings, "policy", waits_for=("kafka", "engine")))
        tracer = stack.enter_context(tracing.opened(settings, "policy", meter))
        signing.check_verify_key(settings.adapters)
        if engine is None:
            from streams.engines.build import build

            meter.begin("building the engine", within_s=START_S)
            engine = build(settings, settings.fleet.states)
            stack.callback(engine.close)
        meter.ready("engine")
        try:
            schema_registry.wait(settings, meter, stop)
            with PolicyFleet(settings, engine, BrokerOutage(settings.kafka, stop, meter), meter, tracer) as fleet:
                while not stop.is_set():
                    fleet.step()
        except StoppedWaiting as exc:
            log.warning("%s", exc)


class PolicyFleet:
    """The policies of one process. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, engine: Engine, outage: BrokerOutage, meter: Meter = OFF, tracer: Tracer = NO_TRACER
    ) -> None:
        self._settings, self._meter = settings, meter
        self._engine = SharedEngine(engine, settings.fleet.states, meter)
        self._log = PolicyLog(settings, outage)
        self._io = AgentIO(Producer(settings, outage=outage, stage=STAGE), outage, meter, tracer)
        self._tasks = SharedTasks(settings, self._io.producer, outage, self._log, self._serves)
        self._rounds: dict[str, PolicyRounds] = {}
        self._refused: set[str] = set()
        """Policies of another base model."""
        self._again_at: dict[str, float] = {}
        """When policies are tried again that are set aside."""
        self._turns = Turns()
        meter.collect(self._report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tasks.close()
        self._log.close()
        for rounds in self._rounds.values():
            rounds.close()
        self._io.producer.__exit__(kind)

    def step(self) -> bool:
        """Read tasks, answer one round of the policy whose turn it is, commit. Return whether a round was answered."""
        self._meter.begin("looks for tasks")
        self._log.follow()
        waiting = any(rounds.queue for rounds in self._rounds.values())
        ready = self._ready() if waiting else {}
        came = self._tasks.poll(0.0 if ready else HELD_POLL_S if waiting else POLL_S)
        for name in came | {name for name, rounds in self._rounds.items() if rounds.queue}:
            self._of(name).read()
        ready = self._ready()
        chosen = self._next(ready)
        if len(chosen) == 1:
            self._answer(chosen[0], ready[chosen[0]])
        elif chosen:
            self._answer_mixed({policy: ready[policy] for policy in chosen})
        self._tasks.commit()
        return bool(chosen)

    def _next(self, ready: Mapping[str, SamplingBatch]) -> list[str]:
        """Return the policies whose turn it is, each of which takes a turn."""
        most, chosen = self._settings.fleet.mixed if self._engine.mixes else 1, list[str]()
        while len(chosen) < most:
            policy = next_turn(self._turns, ready.keys() - set(chosen))
            if policy is None:
                break
            self._turns = took(self._turns, policy, self._settings.fleet.weight_of)
            chosen.append(policy)
        return chosen

    def _ready(self) -> dict[str, SamplingBatch]:
        """Return the round that each policy may answer now."""
        now = time.monotonic()
        found = {}
        for policy, rounds in self._rounds.items():
            if rounds.queue and self._again_at.get(policy, 0.0) <= now and (chosen := rounds.ready()) is not None:
                found[policy] = chosen
        return found

    def _answer(self, policy: str, chosen: SamplingBatch) -> None:
        rounds = self._rounds[policy]
        with self._setting_aside(policy):
            rounds.load()
            rounds.answer(chosen)

    def _answer_mixed(self, ready: Mapping[str, SamplingBatch]) -> None:
        """Sample rounds of several policies together; if the engine fails on that, each is answered alone."""
        begun: dict[str, BegunRound] = {}
        for policy, chosen in ready.items():
            with self._setting_aside(policy):
                self._rounds[policy].load()
                one = self._rounds[policy].begin(chosen)
                if one is not None and one.refused is None:
                    begun[policy] = one
                elif one is not None:
                    self._rounds[policy].answer(chosen)
        if not begun:
            return
        asked = {policy: one.requests for policy, one in begun.items()}
        try:
            answers = sample_mixed(self._engine, asked, self._settings.policy, self._meter)
        except Exception as exc:  # engines raise whatever is inside them
            log.warning("a round of %d policies failed, each is tried alone: %r", len(begun), exc)
            for policy, one in begun.items():
                self._answer(policy, one.chosen)
            return
        for policy, one in begun.items():
            self._rounds[policy].finish(one, answers[policy])

    @contextmanager
    def _setting_aside(self, policy: str) -> Iterator[None]:
        """Set a policy aside whose adapter cannot be fetched now."""
        try:
            yield
        except EventError as exc:
            self._again_at[policy] = time.monotonic() + AGAIN_S
            self._meter.add(catalog.FLEET_SET_ASIDE, policy, "refused")
            log.error("policy %s is set aside for %g s, the others continue: %s", policy, AGAIN_S, exc)
        else:
            self._again_at.pop(policy, None)

    def _of(self, policy: str) -> PolicyRounds:
        if policy not in self._rounds:
            rule = self._settings.policy
            most = max(2 * rule.round_tasks, rule.max_waiting // SHARE)
            own = rule.model_copy(update={"name": policy, "max_waiting": most})
            settings = self._settings.model_copy(update={"policy": own})
            state = PolicyState(settings, self._io.outage, self._log)
            share = self._tasks.share(policy)
            engine = self._engine.share(policy)
            self._rounds[policy] = PolicyRounds(settings, engine, share, state, self._io, kept=KEPT_FOLDERS)
        return self._rounds[policy]

    def _serves(self, policy: str) -> bool:
        """Whether tasks of a policy are answered here."""
        if not self._settings.fleet.serves(policy):
            return False
        adapters = self._log.of(policy).router.adapters
        base, ours = adapters.versions[adapters.newest].base_digest, self._engine.engine.base_digest
        if base in (None, ours) or self._engine.engine.name == "scripted":
            return True
        if policy not in self._refused:
            self._refused.add(policy)
            self._meter.add(catalog.FLEET_SET_ASIDE, policy, "other_base")
            log.error(
                "policy %s is of base model %s, and this fleet has %s: it is left alone. Run a fleet of that model "
                "under another fleet.name, and tell them apart by fleet.policies",
                policy,
                base[:12],
                ours[:12],
            )
        return False

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        now_s = time.time()
        for policy, rounds in list(self._rounds.items()):
            oldest_ms = rounds.queue.oldest_ms()
            age_s = 0.0 if oldest_ms is None else max(0.0, now_s - oldest_ms / 1000)
            self._meter.set(catalog.FLEET_WAITING, len(rounds.queue), policy)
            self._meter.set(catalog.FLEET_WAITING_SECONDS, age_s, policy)
        self._meter.set(catalog.FLEET_ASIDE, len(self._again_at) + len(self._refused))
