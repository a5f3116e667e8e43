"""Follow a rule: fold its evidence, write its events, start its jobs.

    triggers, jobs ──► two threads that follow ──► RuleState, JobState
    adapters, groups, curation, rewards, trajectories ──► RuleEvidence ──► due ──► ticked, crossed ──► triggers
                                                                       crossed ──► order ──► created ──► jobs

The log is the only state. If a process is killed between a crossing and its job, the next one finds the crossing
without a job, and creates the same job: its id and its questions follow from the crossing. Several processes that
follow one rule decide independently; the first event in the log takes effect.

If the job of a crossing cannot be ordered (no question with a verifier, no build of the data set, a month's budget
spent), the crossing is not written; it is retried every RETRY_S, and evidence is still folded. While the broker is
unreachable it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from plugins.improve import improve_metrics
from plugins.improve.triggers.detector import THRESHOLD
from plugins.improve.triggers.evidence import RuleEvidence
from plugins.improve.triggers.retrain_orders import order_of
from plugins.improve.triggers.retrain_reducer import STAGE, due
from plugins.improve.triggers.rule import RetrainRule
from plugins.improve.triggers.rule_state import RuleState
from plugins.improve.triggers.trigger_log import TriggerLog
from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobLog
from schemas.events import TriggerEvent
from streams.errors import JobRequestError, NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.admin import outlast
from streams.kafka.client import POLL_S
from streams.kafka.history import LogHistory
from streams.kafka.reader import PartitionReader
from streams.kafka.record import TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import metrics
from streams.observability.metrics import OFF
from streams.settings.model import Settings

T = TypeVar("T")
RETRY_S = 10.0
"""How long after an order that could not be given it is tried again."""

log = logging.getLogger("streamward.triggers")


def run(settings: Settings, rule: RetrainRule, *, stop: threading.Event) -> None:
    """Follow a rule until `stop` is set.

    Raises NotFoundError for a missing topic, LogError if the broker refuses, SettingsError if metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "retrain") as meter:
            schema_registry.wait(settings, meter, stop)
            outage = BrokerOutage(settings.kafka, stop, meter)
            meter.begin(f"follows rule {rule.name}")
            with (
                TriggerLog(settings, outage) as trigger_log,
                JobLog(settings, outage) as job_log,
                RetrainController(settings, rule, trigger_log, job_log, outage) as controller,
            ):
                while not stop.is_set():
                    outlast(settings, outage, controller.step)
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class RetrainController:
    """One process that follows a rule. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self,
        settings: Settings,
        rule: RetrainRule,
        trigger_log: TriggerLog,
        job_log: JobLog,
        outage: BrokerOutage | None = None,
    ) -> None:
        self._settings, self._rule = settings, rule
        self._triggers, self._jobs = trigger_log, job_log
        self._history, self._meter = LogHistory(settings, outage), OFF if outage is None else outage.meter
        self._crossing_id: str | None = None
        """The crossing after which the evidence begins."""
        self._retry_at = 0.0
        self._why_not = ""
        """Why the last order could not be given."""
        self._ends: dict[TopicPartition, int] = {}
        self._reader = PartitionReader(settings, self._begin(trigger_log.state(rule.name)), outage=outage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def state(self) -> RuleState:
        """The rule as the log has it."""
        return self._triggers.state(self._rule.name)

    @property
    def job_runs(self) -> bool:
        """Whether the job of the last crossing has not ended; it may not be there yet."""
        crossing = self.state.crossing
        if crossing is None or crossing.job_id is None:
            return False
        job = self._jobs.find(crossing.job_id)
        return job is None or not job.has_ended

    def step(self, now_ms: int | None = None) -> None:
        """Take in new records; then write what is due. `now_ms`: default is the wall clock."""
        if self._take_in():
            self._act(times.now_ms() if now_ms is None else now_ms)

    def catch_up(self) -> RuleEvidence:
        """Take in what is in the log now, write nothing, and return it."""
        while not self._take_in():
            pass
        return self.evidence

    # --- taking in ----------------------------------------------------------------------------------------------------

    def _begin(self, state: RuleState) -> dict[TopicPartition, int]:
        """Forget what was read, take in all versions, and return the offsets to read from.

        Which groups count depends on the primary, so versions come before them.
        """
        crossing = state.crossing
        self.evidence = RuleEvidence(self._rule, self._settings, () if crossing is None else crossing.ranges)
        starts = self.evidence.starts(self._history.bounds(self.evidence.sources()))
        versions = {tp: end for tp, (_, end) in self._history.bounds(["adapters"]).items() if tp in starts}
        for record in self._history.read({tp: starts[tp] for tp in versions}, versions):
            self.evidence.take(record)
        self._ends = {tp: end for tp, (_, end) in self._history.bounds(self.evidence.sources()).items()}
        self._crossing_id = None if crossing is None else crossing.event_id
        return starts | versions

    def _take_in(self) -> bool:
        """Read on; return whether everything was read that was there when it began."""
        self._meter.heartbeat()
        state = self.state
        if (None if state.crossing is None else state.crossing.event_id) != self._crossing_id:
            self._reader.assign(self._begin(state))
        for record in self._reader.poll(timeout_s=POLL_S):
            self.evidence.take(record)
        return all(position >= self._ends.get(tp, 0) for tp, position in self._reader.position.items())

    # --- acting -------------------------------------------------------------------------------------------------------

    def _act(self, now_ms: int) -> None:
        state = self.state
        self._report()
        crossing = state.crossing
        if crossing is not None and crossing.job_id is not None and self._jobs.find(crossing.job_id) is None:
            self._try_to_start(crossing)
        event = due(self._rule, state, self.evidence, now_ms, job_runs=self.job_runs)
        if event is None:
            return
        if event.kind == "crossed":
            if not self._can_order(event):
                return
            log.info("rule %s: %s: %s", event.rule, event.action, event.reason)
        if self._triggers.append(event) and event.kind == "crossed":
            self._meter.add(improve_metrics.RETRAIN_CROSSINGS, event.rule, event.signal or "", event.action or "")

    def _report(self) -> None:
        """Report how far the rule is from a crossing."""
        if self._rule.when.promotable is not None:
            share = len(self.evidence.promoted) / self._rule.when.promotable
            self._meter.set(improve_metrics.RETRAIN_DUE, share, self._rule.name, "promotable")
        for signal, detector in self.evidence.detectors.items():
            self._meter.set(improve_metrics.RETRAIN_DUE, detector.peak / THRESHOLD, self._rule.name, signal)

    def _can_order(self, event: TriggerEvent) -> bool:
        """Return whether the job of a crossing can be ordered; if not, report why, at most once in a while."""
        return self._if_possible(lambda: order_of(event, self._rule, self._settings)) is not None

    def _try_to_start(self, crossing: TriggerEvent) -> None:
        """Order the job that a crossing names, unless another process has."""

        def start() -> JobState:
            order = order_of(crossing, self._rule, self._settings)
            return self._jobs.start(order, actor=STAGE, key=crossing.event_id)

        if (job := self._if_possible(start)) is not None:
            log.info("rule %s: job %s is ordered", crossing.rule, job.job_id)

    def _if_possible(self, order: Callable[[], T]) -> T | None:
        """Return the order or its job; None if it cannot be given, or could not be a moment ago."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            return order()
        except (JobRequestError, NotFoundError, RefusedError) as exc:
            self._retry_at = time.monotonic() + RETRY_S
            if self._why_not != str(exc):
                log.warning("rule %s: nothing is started: %s", self._rule.name, exc)
            self._why_not = str(exc)
            return None
