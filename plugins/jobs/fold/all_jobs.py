"""The fold of the topic `jobs`: every job, and the monthly spending of every tenant, costs in other topics included.

jobs: a record ──► its job before and after it, or a month that is closed
topics with costs (TopicShape.cost) ──► the cost of a record
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from plugins.jobs.fold.monthly_spending import MONTH_CLOSED, TenantMonths
from plugins.jobs.fold.state import JobState, fold
from schemas.events import JobEvent
from schemas.serde import Poison
from streams.kafka.record import Record, cut
from streams.kafka.topics import SHAPES, Topic

log = logging.getLogger("streamward.jobs")


class FoldedEvent(NamedTuple):
    """An event of a job, and the job before and after it."""

    event: JobEvent
    before: JobState | None
    after: JobState

    @property
    def took_effect(self) -> bool:
        """Whether it was no copy, and not refused."""
        return self.before is None or self.after.sequence > self.before.sequence


class AllJobs:
    """The fold of the records of `jobs` that were read."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.states: dict[str, JobState] = {}
        self.months = TenantMonths()

    def next_of_each_policy(self) -> Iterable[JobState]:
        """Return, for each policy, its oldest job that has not ended."""
        oldest: dict[str, JobState] = {}
        for job in sorted(self.states.values(), key=lambda job: (job.created_at, job.job_id)):
            if not job.has_ended:
                oldest.setdefault(job.policy, job)
        return oldest.values()

    def take_cost(self, record: Record, topic: Topic) -> None:
        """Count the cost of a record of another topic than `jobs`."""
        event, cost = record.decode_placed(topic.event, topic.partitions), SHAPES[topic.label].cost
        if not isinstance(event, Poison) and cost is not None:
            self.months.recorded.take(topic.label, cost(event))

    def take(self, record: Record) -> FoldedEvent | None:
        """Fold a record; return what it makes of its job. None, and a warning, if no job takes it; None for a month."""
        event = record.decode_placed(JobEvent, self._partitions)
        if isinstance(event, Poison):
            log.warning("skipped: %s", cut(event.error), extra=record.log_extra)
            return None
        if event.kind == MONTH_CLOSED:
            self.months.close(event)
            return None
        before = self.states.get(event.job_id)
        after = fold(before, event)
        if after is None:
            log.warning("skipped: job %s was never created", event.job_id, extra=record.log_extra)
            return None
        self.states[event.job_id] = after
        folded = FoldedEvent(event, before, after)
        if folded.took_effect:
            self.months.count(event, before, after, record.at)
        return folded
