"""Ask a catalogue by schedule, or once.

    triggers[selfplay/NAME] ──► RuleState ──► a tick is due: ticked, crossed ──► triggers
    groups of a curriculum ──► success by cell ──► the crossing's evidence
    crossed ──► the run's tasks that the log has not yet ──► tasks

The log is the only state. Each of several schedulers writes the tick that is due; the first in the log counts, and its
writer sends the tasks. If that process is killed before, the others, or the next one, send the missing tasks after
GRACE_MS; ids are derived, so nothing is asked twice. While the broker is unreachable a scheduler waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from plugins.improve import improve_metrics
from plugins.improve.selfplay import catalogue_tasks, curriculum
from plugins.improve.selfplay.catalogue import Catalogue
from plugins.improve.triggers.retrain_reducer import tick_event
from plugins.improve.triggers.rule_state import RuleState
from plugins.improve.triggers.tick_schedule import TickSchedule
from plugins.improve.triggers.trigger_log import TriggerLog
from schemas.conventions import SELFPLAY_TASKS
from schemas.events import AdvantagedGroup, SourceRange, Task, TriggerEvent, derive_id
from schemas.serde import Poison
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.admin import outlast
from streams.kafka.client import POLL_S
from streams.kafka.history import LogHistory
from streams.kafka.record import partition_of
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import metrics
from streams.observability.metrics import OFF
from streams.output import moment
from streams.settings.model import Settings
from streams.stages.tasks.submit import submit

STAGE = "selfplay"
"""The actor of its events."""
GRACE_MS = 30_000
"""Time for the writer of the crossing to send its tasks, before other processes check."""
KEY = "idempotency_key"
"""Metadata of a crossing that was asked for with a key."""

log = logging.getLogger("streamward.selfplay")


def follow(settings: Settings, catalogue: Catalogue, schedule: TickSchedule, *, stop: threading.Event) -> None:
    """Ask a catalogue by schedule until `stop` is set, the first time at once.

    Raises NotFoundError for a missing topic, LogError if the broker refuses, SettingsError if metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "selfplay") as meter:
            schema_registry.wait(settings, meter, stop)
            outage = BrokerOutage(settings.kafka, stop, meter)
            meter.begin(f"asks catalogue {catalogue.name}")
            with TriggerLog(settings, outage) as trigger_log:
                runner = SelfPlayRunner(settings, catalogue, trigger_log, outage)
                while not stop.is_set():
                    outlast(settings, outage, lambda: runner.step(schedule, times.now_ms()))
                    stop.wait(POLL_S)
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class StartedRun(NamedTuple):
    """A run of a catalogue."""

    crossing: TriggerEvent
    tasks: Sequence[Task]
    is_new: bool
    """Whether this call started it."""


class SelfPlayRunner:
    """Asks one catalogue. Call it from one thread; `trigger_log` is open as long as it is used."""

    def __init__(
        self, settings: Settings, catalogue: Catalogue, trigger_log: TriggerLog, outage: BrokerOutage | None = None
    ) -> None:
        self._settings, self._catalogue, self._triggers = settings, catalogue, trigger_log
        self._history, self._meter = LogHistory(settings, outage), OFF if outage is None else outage.meter
        self._policy = catalogue.policy or settings.policy.name
        self._finished: set[str] = set()
        """Crossings whose tasks are all in the log."""

    @property
    def state(self) -> RuleState:
        """The catalogue's events as the log has them."""
        return self._triggers.state(self._catalogue.rule)

    def step(self, schedule: TickSchedule, now_ms: int) -> None:
        """Write what is due, and ask what the newest run is missing."""
        self._meter.heartbeat()
        state = self.state
        about = {"policy": self._policy, "tenant": self._catalogue.tenant, "digest": self._catalogue.digest}
        tick = tick_event(state, schedule, now_ms, **about)  # type: ignore[arg-type]
        if tick is not None:
            self._triggers.append(tick)
            state = self.state
        if state.has_open_tick:
            crossing = self._crossing(state, now_ms)
            if self._triggers.append(crossing):
                self._ask(crossing)
        elif state.crossing is not None and state.crossing.created_at + GRACE_MS <= now_ms:
            self._ask(state.crossing)

    def preview(self) -> Sequence[Task]:
        """Return the tasks that a run would ask now; none is written. Raises as `catalogue_tasks.tasks_of`."""
        return catalogue_tasks.tasks_of(self._crossing(self.state, times.now_ms(), "preview"), self._catalogue)

    def ask_once(self, actor: str, key: str | None = None) -> StartedRun:
        """Ask the catalogue now; with a key that was used before, return that run.

        Raises RefusedError if the key was used for another catalogue, LogError, and before anything is written as
        `catalogue_tasks.tasks_of` and `check`.
        """
        for event in self._triggers.events(self._catalogue.rule):
            if key is not None and event.kind == "crossed" and event.metadata.get(KEY) == key:
                if event.rule_digest != self._catalogue.digest:
                    raise RefusedError(f"Idempotency-Key {key!r} was used for another catalogue; take a new key")
                return StartedRun(event, self._ask(event), False)
        while True:
            crossing = self._crossing(self.state, times.now_ms(), actor, key)
            catalogue_tasks.check(catalogue_tasks.tasks_of(crossing, self._catalogue), self._settings)
            if self._triggers.append(crossing):
                return StartedRun(crossing, self._ask(crossing), True)

    def _ask(self, crossing: TriggerEvent) -> Sequence[Task]:
        """Send the tasks of a run that are not in the log; return all of them."""
        if crossing.event_id in self._finished:
            return ()
        if crossing.rule_digest != self._catalogue.digest:
            log.warning("%s: the run of event %d had another catalogue", crossing.rule, crossing.sequence)
            self._finished.add(crossing.event_id)
            return ()
        tasks = catalogue_tasks.tasks_of(crossing, self._catalogue)
        catalogue_tasks.check(tasks, self._settings)
        submitted = submit(self._settings, tasks)
        self._finished.add(crossing.event_id)
        self._meter.add(improve_metrics.SELFPLAY_QUESTIONS, self._catalogue.name, by=len(submitted.sent))
        if submitted.sent:
            log.info("%s: %d of %d questions are asked", crossing.rule, len(submitted.sent), len(tasks))
        return tasks

    def _crossing(self, state: RuleState, now_ms: int, actor: str = STAGE, key: str | None = None) -> TriggerEvent:
        """Return the next run: that of the newest tick, or one that a person asked for."""
        is_scheduled = actor == STAGE
        evidence, ranges = self._success()
        crossing = TriggerEvent(
            event_id=derive_id(state.rule, "crossed", state.sequence),
            rule=state.rule,
            created_at=now_ms,
            metadata={} if key is None else {KEY: key},
            kind="crossed",
            sequence=state.sequence,
            policy=self._policy,
            tenant=self._catalogue.tenant,
            actor=actor,
            reason=f"its time was {moment(state.last_tick_ms)}" if is_scheduled else f"{actor} asked for it",
            rule_digest=self._catalogue.digest,
            due_at=state.last_tick_ms if is_scheduled else None,
            signal="schedule" if is_scheduled else "asked",
            action="selfplay",
            evidence=evidence,
            ranges=ranges,
        )
        tasks = {task.task_id for task in catalogue_tasks.tasks_of(crossing, self._catalogue)}
        return replace(crossing, evidence=evidence | {SELFPLAY_TASKS: float(len(tasks))})

    def _success(self) -> tuple[dict[str, float], tuple[SourceRange, ...]]:
        """Return the success by cell of every curriculum, and the groups that it is of."""
        drawn = [scenario for scenario in self._catalogue.scenarios if scenario.curriculum is not None]
        if not drawn:
            return {}, ()
        topic = topics(self._settings.topics)["groups"]
        tp = (topic.name, partition_of(self._policy, topic.partitions))
        low, end = self._history.bounds(["groups"])[tp]
        records = self._history.read({tp: low}, {tp: end})
        groups = (record.decode_placed(AdvantagedGroup, topic.partitions) for record in records)
        success = curriculum.success_after(
            self._catalogue.key,
            (group for group in groups if not isinstance(group, Poison) and group.policy == self._policy),
        )
        evidence: dict[str, float] = {}
        for scenario in drawn:
            if scenario.curriculum is not None:
                evidence |= curriculum.as_evidence(scenario.name, success.by_cell(scenario.name, scenario.curriculum))
        return evidence, (SourceRange(topic=topic.name, partition=tp[1], first=low, next=end),)
