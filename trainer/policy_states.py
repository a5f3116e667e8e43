"""The policies whose adapter and optimizer state are in memory: one learner, as many states as fleet.states.

    enter(policy) ──► in the learner already ──────────────────────────────────────────────► its PolicyTrainer
                 ├──► in memory: its state and that of the learner are swapped ───────────► …
                 └──► neither: lock its folder, read its versions, restore its checkpoint ► …
                                  └── too many: the least recently used is closed; its checkpoint has everything

Open means: its folder is locked, so no other process of this machine trains it, and its versions were read from the log
since. So a policy that moves from one process to another is opened by the second after the first has closed it, or has
died, and continues from what that one saved and announced.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from streams.observability import catalog
from streams.observability.metrics import Meter
from trainer.policy_trainer import OvertakenError, PolicyTrainer
from trainer.versions.learner import Learner, TrainingState

OpenTrainer = Callable[[str, ExitStack], PolicyTrainer]
"""Makes the trainer of a policy; the stack owns its resources, and is closed with it."""


@dataclass(slots=True)
class OpenPolicy:
    """A policy that this process trains; its state, unless it is in the learner."""

    trainer: PolicyTrainer
    stack: ExitStack
    """Its resources, such as the lock of its folder."""
    state: TrainingState | None = None


class ResidentPolicies:
    """At most `limit` open policies, with one learner between them."""

    def __init__(self, learner: Learner, limit: int, open_trainer: OpenTrainer, meter: Meter) -> None:
        """`learner` is at version 0."""
        self._learner, self._limit, self._open_trainer, self._meter = learner, limit, open_trainer, meter
        self._initial = learner.present().copy()
        """The state with which every policy begins."""
        self._open: OrderedDict[str, OpenPolicy] = OrderedDict()
        """Open policies, in the order in which they were last used."""
        self._current: str | None = None

    def enter(self, policy: str) -> PolicyTrainer:
        """Return the trainer of a policy, with its state in the learner.

        Raises as `open_trainer` and `PolicyTrainer.resume`, and then the policy is closed. It is opened again as long
        as another process is faster with a version.
        """
        if policy == self._current:
            return self._open[policy].trainer
        began = time.perf_counter()
        if (resident := self._open.get(policy)) is not None:
            self._swap_in(policy, resident)
            self._observe_swap("memory", began)
            return resident.trainer
        while True:
            trainer = self._open_at_start(policy)
            try:
                trainer.resume()
            except OvertakenError:
                self.close([policy])
                continue
            except BaseException:  # KeyboardInterrupt too: a policy half resumed is not kept open
                self.close([policy])
                raise
            self._observe_swap("checkpoint", began)
            return trainer

    def close(self, policies: Collection[str] | None = None) -> None:
        """Close those of these policies that are open, or all. Their checkpoints have everything."""
        for policy in list(self._open) if policies is None else policies:
            if (closed := self._open.pop(policy, None)) is not None:
                closed.stack.close()
                self._current = None if policy == self._current else self._current
        self._meter.set(catalog.FLEET_HELD, len(self._open))

    def policies(self) -> list[str]:
        """Return the open policies, the least recently used first."""
        return list(self._open)

    def _open_at_start(self, policy: str) -> PolicyTrainer:
        """Open a policy at version 0, and close the least recently used if too many are open."""
        with ExitStack() as stack:
            trainer = self._open_trainer(policy, stack)
            while len(self._open) >= self._limit:
                self.close([next(iter(self._open))])
                self._meter.add(catalog.FLEET_EVICTIONS)
            resident = OpenPolicy(trainer, stack.pop_all(), self._initial.copy())
        self._swap_in(policy, resident)
        self._meter.set(catalog.FLEET_HELD, len(self._open))
        return trainer

    def _swap_in(self, policy: str, resident: OpenPolicy) -> None:
        """Exchange the learner's state for that of this policy."""
        assert resident.state is not None  # noqa: S101 - it is not in the learner
        previous, resident.state = self._learner.exchange(resident.state), None
        if self._current is not None:
            self._open[self._current].state = previous
        self._open[policy] = resident
        self._open.move_to_end(policy)
        self._current = policy

    def _observe_swap(self, source: str, began: float) -> None:
        self._meter.add(catalog.FLEET_SWAPS, source)
        self._meter.observe(catalog.FLEET_SWAP_SECONDS, time.perf_counter() - began, source)
