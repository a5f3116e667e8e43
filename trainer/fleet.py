"""Train one policy or many: one base model, and one batch per turn.

    BatchSource ──► BatchQueue ──► next_turn ──► ResidentPolicies.enter ──► PolicyTrainer.train ──► adapters ──► commit
                                      ▲              its adapter and optimizer state, in one learner
                                      └── fleet.weights

Each policy has a trainer (trainer/policy_trainer.py) with its own folder of checkpoints, so its versions have the same
bytes alone and in a fleet. Processes of one fleet.name are a consumer group over `batches`: each policy belongs to the
process that owns its partition, and moves with it. They share trainer.checkpoints, or a policy that moves is trained
again from its first batch, which takes time and changes no byte.

A fleet sets aside a policy that cannot be trained now (locked by another process, of another base model, a checkpoint
that does not fit, a batch that is missing) with its reason, and tries it again later; the others continue. For one
policy alone the same reason ends the process. An unreachable log or a full disk ends a fleet, too.

A policy that is being tuned on this machine waits: its trainer takes a step only while no tuner holds or awaits the
lock of its versions (trainer/versions/checkpoint.py). So neither makes a version in vain. On two machines both may;
then the log decides, and the policy is opened again from the version that counts.

Not covered: more processes than `batches` has partitions: those beyond have nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from streams.adapters import signing
from streams.engines.fair_share import Turns, next_turn, take_turn
from streams.errors import NotFoundError, OtherBaseError, RefusedError, SettingsError
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import catalog, metrics
from streams.observability.metrics import OFF
from streams.observability.tracing import tracer as tracing
from streams.settings.model import Settings
from trainer.batch_source import STAGE, BatchSource, FleetBatches, PolicyBatches, WaitingBatch, partition_for
from trainer.policy_states import ResidentPolicies
from trainer.policy_trainer import BatchCheck, OvertakenError, PolicyTrainer, TrainerIO, check_nothing, other_base
from trainer.ranks import exchange
from trainer.ranks.launcher import Place
from trainer.step.model import pin
from trainer.versions import checkpoint
from trainer.versions.learner import Learner, base_of

START_S = 3600.0
"""How long loading may take before it counts as stuck: a model may have to be downloaded."""
TUNED_S = 0.5
"""Delay before a policy that is being tuned is checked again."""
SOONEST_S, LATEST_S = 1.0, 60.0
"""First and maximum delay before a policy that was set aside is tried again; it doubles each time."""

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    *,
    is_fleet: bool = False,
    steps: int | None = None,
    stop: threading.Event,
    place: Place | None = None,
    check: BatchCheck = check_nothing,
) -> None:
    """Train the batches of policy.name, or of every policy of the fleet, until `stop` is set or `steps` are trained.

    A step that began is finished. With `place` this is rank 0 of several that share the work; without it all shares are
    computed here. While the broker is unreachable it waits (streams/kafka/retry.py); a version that has a checkpoint by
    then is announced later, by the next process if necessary.

    Raises SettingsError if the base model or the signing key cannot be used, or the checkpoint of policy.name is of
    another model; RefusedError if another process trains policy.name, if a batch of it is missing or refused by
    `check`, or if a version has other bytes than in the log; LogError if the log fails; LostProcessError if another
    rank is lost; StreamwardError if a disk is full.
    """
    batches = FleetBatches if is_fleet else PolicyBatches
    with connect(settings, stop, place, is_fleet=is_fleet) as io, ExitStack() as stack:
        io = replace(io, check=check)
        source = batches(settings, io.producer, io.outage, stack)
        schema_registry.wait(settings, io.meter, stop)
        io.meter.begin("loading the base model", within_s=START_S)
        learner = Learner(settings, base_of(settings), io.others)
        with TrainerFleet(settings, learner, io, source) as fleet:
            trained = 0
            while trained != steps and not stop.is_set():
                trained += fleet.turn()


@contextmanager
def connect(
    settings: Settings,
    stop: threading.Event,
    place: Place | None,
    *,
    is_fleet: bool,
    process: str = "train",
) -> Iterator[TrainerIO]:
    """Yield the clients of this process's trainers. Ends quietly if it is stopped during an outage.

    Raises SettingsError for a signing key that cannot be used, StreamwardError if a disk is full in the block.
    """
    folders = f"{settings.trainer.checkpoints} or {settings.adapters.store}"
    advice = "Fix that and start the trainer again: it resumes from its newest complete checkpoint, and loses nothing"
    with checkpoint.explaining_disks(folders, advice):
        signing.check_signing_key(settings.adapters)
        pin(settings)
        with metrics.serve_meter(settings, process) as meter, tracing.open_tracer(settings, process, meter) as tracer:
            outage = BrokerOutage(settings.kafka, stop, meter)
            try:
                with (
                    Producer(settings, outage=outage, stage=STAGE) as producer,
                    exchange.other_ranks(place, settings.metrics.stuck_s) as others,
                ):
                    yield TrainerIO(producer, outage, meter, tracer, others, is_fleet)
            except StoppedWaiting as exc:
                log.warning("%s", exc)


@dataclass(slots=True)
class SetAside:
    """Why a policy is not trained now, and when it is tried again (a time of time.monotonic)."""

    error: str
    retry_at: float
    wait_s: float


class TrainerFleet:
    """The policies of this process. Use as a context manager."""

    def __init__(self, settings: Settings, learner: Learner, io: TrainerIO, source: BatchSource) -> None:
        """`learner` is at version 0."""
        self._settings, self._learner, self._io, self._source = settings, learner, io, source
        self._queue = source.queue
        states, meter = (settings.fleet.states, io.meter) if io.is_fleet else (1, OFF)
        self._resident = ResidentPolicies(learner, states, self._open, meter)
        self._aside: dict[str, SetAside] = {}
        self._tuned: dict[str, float] = {}
        """Policies that are being tuned on this machine, and when to check again (a time of time.monotonic)."""
        self._turns = Turns()
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        """Begin to read batches. Raises as `PolicyTrainer.resume` for policy.name."""
        self._source.start(lambda policy: self._resident.enter(policy).next_offset, self._lose)
        if self._io.is_fleet:
            self._io.meter.collect(self._report)
        return self

    def __exit__(self, *_: object) -> None:
        self._resident.close()

    @property
    def resident(self) -> list[str]:
        """The policies in memory, the least recently used first."""
        return self._resident.policies()

    def turn(self) -> bool:
        """Take in new batches, and train one of the policy that is next in turn. Return whether one was trained."""
        self._io.meter.begin("waits for a batch")
        self._source.poll(0.0 if self._ready() else POLL_S)
        policy = next_turn(self._turns, self._ready())
        is_trained = False
        if policy is not None:
            self._turns = take_turn(self._turns, policy, self._settings.fleet.weight_of)
            is_trained = self._train_or_set_aside(policy)
        self._source.commit(is_trained=is_trained)
        return is_trained

    def _ready(self) -> list[str]:
        """Return the policies that have a batch waiting and are not set aside, or were for long enough."""
        now = time.monotonic()
        aside = {policy for policy, reason in self._aside.items() if reason.retry_at > now}
        aside |= {policy for policy, retry_at in self._tuned.items() if retry_at > now}
        return [policy for policy in self._queue.policies() if policy not in aside]

    def _train_or_set_aside(self, policy: str) -> bool:
        try:
            waiting = self._train(policy)
        except OvertakenError:
            self._resident.close([policy])
            return False
        except (NotFoundError, RefusedError, SettingsError) as exc:
            if not self._io.is_fleet:
                raise
            self._resident.close([policy])
            self._set_aside(policy, exc)
            return False
        if self._aside.pop(policy, None) is not None and waiting is not None:
            log.info("policy %s is trained again", policy)
        return waiting is not None

    def _train(self, policy: str) -> WaitingBatch | None:
        """Train the next batch of a policy, and return it; None if none waits. Raises as `PolicyTrainer`."""
        trainer = self._resident.enter(policy)
        waiting = self._queue.next(policy, trainer.next_sequence, trainer.batches_before)
        if waiting is None:
            return None
        trainer.refuse_gap(waiting.at, waiting.batch)
        with checkpoint.take_turn(self._settings.trainer.checkpoints / policy) as is_ours:
            self._tuned.pop(policy, None)
            if not is_ours:
                self._tuned[policy] = time.monotonic() + TUNED_S
                return None
            trainer.train(waiting.at, waiting.batch, waiting.trace)
        self._queue.remove(policy, waiting.batch.sequence)
        return waiting

    def _set_aside(self, policy: str, exc: NotFoundError | RefusedError | SettingsError) -> None:
        before = self._aside.get(policy)
        wait_s = SOONEST_S if before is None else min(LATEST_S, 2 * before.wait_s)
        self._aside[policy] = SetAside(str(exc), time.monotonic() + wait_s, wait_s)
        if before is None or before.error != str(exc):
            log.error("policy %s is set aside, the others continue: %s", policy, exc)
            reason = "other_base" if isinstance(exc, OtherBaseError) else "refused"
            self._io.meter.add(catalog.FLEET_SET_ASIDE, policy, reason)

    def _open(self, policy: str, stack: ExitStack) -> PolicyTrainer:
        """Return the trainer of a policy; its folder is locked until `stack` is closed.

        Raises RefusedError if another process holds it, OtherBaseError if its versions are of another base model.
        """
        policy_settings = self._settings.policy.model_copy(update={"name": policy})
        settings = self._settings.model_copy(update={"policy": policy_settings})
        folder = self._source.open(policy, stack)
        trainer = PolicyTrainer(settings, folder, self._learner, self._io, partial(self._source.versions, policy))
        if self._io.is_fleet and trainer.newest_base not in (None, self._learner.base_digest):
            raise other_base(policy, trainer.newest_base, self._learner.base_digest)
        return trainer

    def _lose(self, partitions: set[int]) -> None:
        """Close the policies of partitions that another process owns now."""

        def is_lost(policy: str) -> bool:
            return partition_for(self._settings, policy)[1] in partitions

        self._resident.close([policy for policy in self.resident if is_lost(policy)])
        self._aside = {policy: reason for policy, reason in self._aside.items() if not is_lost(policy)}

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        backlog = self._queue.backlog()
        for policy in self._reported - backlog.keys():  # another process owns it now
            self._io.meter.set(catalog.FLEET_WAITING, None, policy)
            self._io.meter.set(catalog.FLEET_WAITING_SECONDS, None, policy)
        self._reported = set(backlog)
        for policy, (count, age_s) in backlog.items():
            self._io.meter.set(catalog.FLEET_WAITING, count, policy)
            self._io.meter.set(catalog.FLEET_WAITING_SECONDS, age_s, policy)
        self._io.meter.set(catalog.FLEET_ASIDE, len(self._aside))
