"""The trainer of many policies: one base model, and one batch a turn.

    batches ──► WaitingBatches, by policy ──► next_turn ──► ResidentPolicies.enter ──► PolicyTrainer.train ──► adapters
                                                  ▲              its adapter and optimizer state, in one learner
                                                  └── fleet.weights

Each policy has the trainer that it would have alone (trainer/consumer.py), with its own folder of checkpoints, so its
versions have the same bytes. Processes of one fleet.name are a consumer group over `batches`: each policy belongs to
the process that owns its partition, and moves with it. They share trainer.checkpoints, or a policy that moves is
trained again from its first batch, which changes nothing but takes its time.

A policy that cannot be trained now (locked by another process, of another base model, a checkpoint that does not fit, a
batch that is missing) is set aside with its reason, and tried again later; the others continue. What ends a trainer for
another reason, as an unreachable log or a full disk, ends the fleet.

Not covered: more processes than `batches` has partitions: those beyond have nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from streams.engines.fair_share import Turns, next_turn, took
from streams.errors import OtherBaseError, RefusedError, SettingsError
from streams.kafka.client import POLL_S
from streams.observability import catalog
from streams.settings.model import Settings
from trainer.batch_queue import WaitingBatches
from trainer.consumer import PolicyTrainer, TrainerIO, learner_of, other_base, running
from trainer.policy_states import ResidentPolicies
from trainer.ranks.launch import Place
from trainer.versions import checkpoint
from trainer.versions.learner import Learner

SOONEST_S, LATEST_S = 1.0, 60.0
"""When a policy that was set aside is tried again: at first, and at most; each time it takes twice as long."""

log = logging.getLogger(__name__)


def run(settings: Settings, *, steps: int | None = None, stop: threading.Event, place: Place | None = None) -> None:
    """Train the batches of every policy until `stop` is set or `steps` batches are trained.

    `place` as in `trainer.consumer.run`. Raises SettingsError for a base model or a signing key that cannot be used,
    LogError if the log fails, LostProcessError if another rank is lost, StreamwardError if a disk is full.
    """
    with running(settings, stop, place) as io, TrainerFleet(settings, learner_of(settings, io, stop), io) as fleet:
        done = 0
        while done != steps and not stop.is_set():
            done += fleet.turn()


@dataclass(slots=True)
class SetAside:
    """Why a policy is not trained now, and when it is tried again (a time of time.monotonic)."""

    why: str
    reason: str
    again_at: float
    wait_s: float


class TrainerFleet:
    """The policies of this process. Use as a context manager."""

    def __init__(self, settings: Settings, learner: Learner, io: TrainerIO) -> None:
        """Join the group of the fleet. `learner` is at version 0."""
        self._settings, self._learner, self._io = settings, learner, io
        self._resident = ResidentPolicies(learner, settings.fleet.states, self._make, io.meter)
        self._waiting = WaitingBatches(settings, io.producer, io.outage, self._lost)
        self._aside: dict[str, SetAside] = {}
        self._turns = Turns()
        self._reported: set[str] = set()
        io.meter.collect(self._report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        self._resident.close()

    @property
    def resident(self) -> list[str]:
        """The policies in memory, the one unused for longest first."""
        return self._resident.opened()

    def turn(self) -> bool:
        """Take in new batches, and train one of the policy whose turn it is. Return whether one was trained."""
        self._io.meter.begin("waits for a batch")
        self._waiting.poll(0.0 if self._due() else POLL_S)
        policy = next_turn(self._turns, self._due())
        trained = False
        if policy is not None:
            self._turns = took(self._turns, policy, self._settings.fleet.weight_of)
            trained = self._train(policy)
        self._waiting.commit()
        return trained

    def _due(self) -> list[str]:
        """Return the policies that have a batch waiting, and are not set aside, or long enough."""
        now = time.monotonic()
        aside = {policy for policy, one in self._aside.items() if one.again_at > now}
        return [policy for policy in self._waiting.policies() if policy not in aside]

    def _train(self, policy: str) -> bool:
        try:
            trainer = self._resident.enter(policy)
            one = self._waiting.next(policy, trainer.version, trainer.recorded)
            if one is None:
                self._aside.pop(policy, None)
                return False
            if one.batch.sequence != trainer.version:
                trainer.refuse_gap(one.at, one.batch, trainer.bounds("batches")[0])
            trainer.train(one.at, one.batch, one.trace)
        except (RefusedError, SettingsError) as exc:
            self._resident.close([policy])
            self._set_aside(policy, exc)
            return False
        self._waiting.done(policy, one.batch.sequence)
        if self._aside.pop(policy, None) is not None:
            log.info("policy %s is trained again", policy)
        return True

    def _set_aside(self, policy: str, exc: RefusedError | SettingsError) -> None:
        before = self._aside.get(policy)
        wait_s = SOONEST_S if before is None else min(LATEST_S, 2 * before.wait_s)
        reason = "other_base" if isinstance(exc, OtherBaseError) else "refused"
        self._aside[policy] = SetAside(str(exc), reason, time.monotonic() + wait_s, wait_s)
        if before is None or before.why != str(exc):
            log.error("policy %s is set aside, the others continue: %s", policy, exc)
            self._io.meter.add(catalog.FLEET_SET_ASIDE, policy, reason)

    def _make(self, policy: str, stack: ExitStack) -> PolicyTrainer:
        """Return the trainer of a policy, whose folder is held until `stack` is closed.

        Raises RefusedError if another process holds it, OtherBaseError if its versions are of another base model.
        """
        own = self._settings.policy.model_copy(update={"name": policy})
        settings = self._settings.model_copy(update={"policy": own})
        folder = stack.enter_context(checkpoint.hold(settings.trainer.checkpoints, policy))
        self._waiting.adapters.catch_up(
            self._waiting.partition(policy)
        )  # whoever held it before announces nothing more
        versions = self._waiting.adapters.of(policy).versions
        base = versions[max(versions)].base_digest
        if base not in (None, self._learner.base_digest):
            raise other_base(policy, base, self._learner.base_digest)
        return PolicyTrainer(settings, folder, self._learner, self._io, versions)

    def _lost(self, partitions: set[int]) -> None:
        """Close the policies of partitions that another process owns now."""
        self._resident.close([one for one in self._resident.opened() if self._waiting.partition(one) in partitions])
        self._aside = {one: why for one, why in self._aside.items() if self._waiting.partition(one) not in partitions}

    def _report(self) -> None:
        """Set the gauges. Called in the metrics server's thread, so it only reads."""
        waiting = self._waiting.oldest_s()
        for policy in self._reported - waiting.keys():  # another process owns it now
            self._io.meter.set(catalog.FLEET_WAITING, None, policy)
            self._io.meter.set(catalog.FLEET_WAITING_SECONDS, None, policy)
        self._reported = set(waiting)
        for policy, (count, age_s) in waiting.items():
            self._io.meter.set(catalog.FLEET_WAITING, count, policy)
            self._io.meter.set(catalog.FLEET_WAITING_SECONDS, age_s, policy)
        self._io.meter.set(catalog.FLEET_ASIDE, len(self._aside))
