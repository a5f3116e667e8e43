"""Build a data set whenever enough runs were promoted since its last build.

    curation, followed ──► VerdictFold ─┐
    datasets: the newest build ─────────┴─► new_promotions ≥ minimum ──► build ──► datasets: built

All state is in the two topics: a build records the offset up to which it read verdicts, and promotions after it are
new. A process that is killed while building has written no event, and the next one builds instead. Members of one
consumer group share the names of data sets, so only one process builds each. While the broker is unreachable it waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from plugins.improve import improve_metrics
from plugins.improve.curation.verdicts import PlacedVerdict, VerdictFold
from plugins.improve.datasets import dataset_log
from plugins.improve.datasets.dataset_build import DatasetOrder, build
from plugins.improve.datasets.dataset_rule import DatasetRule, check_name
from plugins.improve.datasets.dataset_view import drift_of
from schemas.events import CurationEvent, DatasetEvent
from streams.errors import ContaminatedError, NotFoundError
from streams.kafka.admin import outlast
from streams.kafka.followed import FollowedTopic
from streams.kafka.history import History, LogHistory
from streams.kafka.key_membership import KeyMembership
from streams.kafka.record import Record, TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings

LOOK_S = 0.5
"""How long it waits until it looks again."""
BUILD_S = 3600.0
"""What a build may take until the process counts as stuck, seconds: it reads every run that was promoted."""

log = logging.getLogger("streamward.datasets")


def follow(settings: Settings, order: DatasetOrder, minimum: int, *, stop: threading.Event) -> None:
    """Build a data set whenever `minimum` runs were newly promoted, until `stop` is set.

    Raises NotFoundError for a missing topic, LogError if the broker refuses, SettingsError for an unusable order, or
    if metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "datasets") as meter:
            schema_registry.wait(settings, meter, stop)
            with DatasetCurationHostedService(settings, order, minimum, stop=stop, meter=meter) as service:
                service.run()
    except StoppedWaiting as exc:
        log.warning("%s", exc)


def new_promotions(verdicts: Iterable[PlacedVerdict], rule: DatasetRule, last: DatasetEvent | None) -> int:
    """Return how many runs were promoted after what the newest build read."""
    read = {} if last is None else {(part.topic, part.partition): part.next for part in last.ranges}
    return sum(
        placed.event.policy == rule.policy
        and rule.why_not(placed.event) is None
        and placed.at.offset >= read.get((placed.at.topic, placed.at.partition), 0)
        for placed in verdicts
    )


def builder_group(dataset: str) -> str:
    """Return the consumer group of the processes that build a data set again and again."""
    return f"datasets-{dataset}"


class FollowedVerdicts(FollowedTopic):
    """Every verdict, followed in a thread. Use as a context manager."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None) -> None:
        super().__init__(settings, "curation", outage=outage)
        self._fold = VerdictFold()

    @property
    def read_to(self) -> dict[TopicPartition, int]:
        """The next offset that is read, per partition."""
        with self._changed:
            return dict(self._positions)

    def new_promotions(self, rule: DatasetRule, last: DatasetEvent | None) -> int:
        """Return as the function does, of what was read until now. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return new_promotions(self._fold, rule, last)

    def _take(self, record: Record) -> None:
        if (event := self._decoded(record, CurationEvent)) is not None:
            self._fold.take(record.at, event)


class DatasetCurationHostedService:
    """Builds one data set again and again. Use as a context manager, and call `step` from one thread, or `run`."""

    def __init__(
        self,
        settings: Settings,
        order: DatasetOrder,
        minimum: int,
        *,
        stop: threading.Event | None = None,
        meter: Meter = OFF,
    ) -> None:
        """`minimum`: how many newly promoted runs it waits for. Raises SettingsError for an unusable order."""
        check_name(order.name)
        order.rule.check()
        self._settings, self._order, self._minimum = settings, order, minimum
        self._stop = threading.Event() if stop is None else stop
        self._meter = meter
        self._outage = BrokerOutage(settings.kafka, self._stop, meter)
        self._history: History = LogHistory(settings, self._outage)
        self._members = KeyMembership(settings, builder_group(order.name), "datasets", self._outage, self._look_again)
        self._verdicts = FollowedVerdicts(settings, self._outage)
        self._looked_at: dict[TopicPartition, int] | None = None
        """How far verdicts had been read at the last look: without another one, nothing is due."""

    def __enter__(self) -> DatasetCurationHostedService:
        self._verdicts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._verdicts.__exit__()
        self._members.close()

    def run(self) -> None:
        """Build until `stop` is set. Raises LogError, StoppedWaiting if the broker was unreachable then."""
        while not self._stop.is_set():
            if outlast(self._settings, self._outage, self.step) is None:
                self._stop.wait(LOOK_S)

    def _look_again(self) -> None:
        self._looked_at = None

    def step(self) -> DatasetEvent | None:
        """Build if it is due, and return the event; None if it is not. Raises LogError."""
        self._members.poll(timeout_s=0.0)
        read_to = self._verdicts.read_to
        if not self._members.has(self._order.name) or read_to == self._looked_at:
            return None
        event = self._build()
        self._looked_at = read_to
        return event

    def _build(self) -> DatasetEvent | None:
        """Build if enough runs were promoted, and return the event; None if they were not."""
        name, rule = self._order.name, self._order.rule
        last = dataset_log.read(self._settings).newest(name)
        count = self._verdicts.new_promotions(rule, last)
        self._meter.set(improve_metrics.DATASET_DUE, count / self._minimum, name)
        if count < self._minimum:
            return None
        self._meter.begin(f"builds data set {name}", within_s=BUILD_S)
        try:
            event, is_new = build(self._settings, self._order, self._history)
        except (NotFoundError, ContaminatedError) as exc:  # nothing that was promoted fits, or a suite holds it out
            log.warning("%s", exc)
            return None
        finally:
            self._meter.begin("waits for promoted runs")
        if not is_new:
            return None
        log.info("data set %s: built of %d new runs: %s", name, count, event.folder)
        self._meter.add(improve_metrics.DATASET_BUILDS, name)
        self._meter.set(improve_metrics.DATASET_DUE, 0.0, name)
        self._report_drift(event)
        return event

    def _report_drift(self, event: DatasetEvent) -> None:
        for column in drift_of(event):
            self._meter.set(improve_metrics.DATASET_DRIFT, column.distance, event.dataset, column.column)
            self._meter.set(improve_metrics.DATASET_DRIFT_BOUND, column.bound, event.dataset, column.column)
            if column.has_moved:
                log.warning("data set %s: of its questions %s", event.dataset, column)
