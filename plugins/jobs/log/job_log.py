"""Follow all jobs in the log, and write the commands of users.

    jobs ──► a thread that follows ──► JobState of each
    topics with costs (TopicShape.cost) ──► the spending of their tenants in each month
    start, pause, resume, cancel ──► event with the sequence it expects ──► jobs ──► own fold has passed it ──► answer

A command is an event like the controller's: of two at once the second is refused with an error. With an Idempotency-Key
its id is derived from that key, so a repeated request takes effect once; the same key with another request is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.monthly_spending import MonthBudget, TenantMonths
from plugins.jobs.fold.state import JobState, fold, refusal
from plugins.jobs.log import spending
from plugins.jobs.log.spending import CostName
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.request import JobOrder
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import JobEvent, derive_id
from schemas.serde import EncodeError
from streams.errors import EventError, JobRequestError, NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.client import POLL_S
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import WITH_COSTS, topics
from streams.settings.model import Settings

JobCommandKind = Literal["paused", "resumed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command of a user about a job."""

    kind: JobCommandKind
    actor: str
    reason: str
    key: str | None = None
    """Idempotency-Key."""
    expect: int | None = None
    """The sequence it was decided at; None: whatever it is now."""


class JobLog(FollowedTopic):
    """Every job, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None, *, with_months: bool = True) -> None:
        """Without `with_months` jobs cannot be started and costs are unknown, but topics with costs are not read.

        Raises NotFoundError without the topics, LogError if the broker does not answer.
        """
        with_costs = WITH_COSTS if with_months else ()
        super().__init__(settings, "jobs", *with_costs, outage=outage)
        self._with_costs = {(topic := topics(settings.topics)[label]).name: topic for label in with_costs}
        self._has_months = with_months
        self._all = AllJobs(settings.topics.policy_partitions)
        self._events: dict[str, list[JobEvent]] = {}

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, JobState]:
        """Every job by its id, the oldest first."""
        with self._changed:
            return dict(sorted(self._all.states.items(), key=lambda item: (item[1].created_at, item[0])))

    def get(self, job_id: str) -> JobState:
        """Return a job by its id, or by the beginning of it. Raises NotFoundError, RefusedError if several begin so."""
        with self._changed:
            states = self._all.states
            if (job := states.get(job_id)) is not None:
                return job
            names = sorted(name for name in states if job_id and name.startswith(job_id))
            if len(names) == 1:
                return states[names[0]]
        if names:
            raise RefusedError(f"{len(names)} jobs begin with {job_id!r}, e.g. {names[0]}; give more of the id")
        raise NotFoundError(f"there is no job {job_id!r}; `streamward jobs list` shows all of them")

    def find(self, job_id: str) -> JobState | None:
        """Return the job with this full id; None if not found. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return self._all.states.get(job_id)

    def next_of_each_policy(self) -> list[JobState]:
        """Return, for each policy, its oldest job that has not ended. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return list(self._all.next_of_each_policy())

    def month(self, tenant: str | None, time_ms: int) -> MonthBudget | None:
        """Return what a tenant may spend in the month of a time; None without a limit."""
        with self._changed:
            return self._months.budget(tenant, time_ms, self._settings.of_plugin(Jobs).tenant_month_usd)

    def costs(self, by: Sequence[CostName]) -> list[dict[str, Any]]:
        """Return what was used, as `spending.costs` does."""
        with self._changed:
            return spending.costs(self._months, by)

    @property
    def _months(self) -> TenantMonths:
        assert self._has_months, "it was opened without them"  # noqa: S101
        return self._all.months

    def events(self, job_id: str) -> list[JobEvent]:
        """Return the events of a job that took effect."""
        with self._changed:
            return list(self._events.get(job_id, ()))

    def wait(self, job_id: str, seen: int) -> tuple[list[JobEvent], bool]:
        """Return the events of a job that took effect, after the first `seen`, and whether it has ended.

        Without any it waits for POLL_S at most. Raises LogError once the log cannot be read.
        """
        with self._changed:
            self._raise_error()
            if len(self._events[job_id]) <= seen and not self._all.states[job_id].has_ended:
                self._changed.wait(POLL_S)
            return self._events[job_id][seen:], self._all.states[job_id].has_ended

    # --- commands -----------------------------------------------------------------------------------------------------

    def start(self, order: JobOrder, *, actor: str, key: str | None = None) -> JobState:
        """Create a job; the same order with the same key again is the same job.

        Raises RefusedError if the key was used for another order, or the tenant's month does not have room for it;
        JobRequestError for more questions than a record holds, LogError if the broker does not answer.
        """
        job_id = job_id_of(order.tenant, str(uuid.uuid4()) if key is None else key)
        if (job := self.jobs.get(job_id)) is None:
            event = JobEvent(
                event_id=derive_id(job_id, "created"),
                job_id=job_id,
                created_at=times.now_ms(),
                metadata={**order.metadata, **({CONTAMINATION_ALLOWED_BY: actor} if order.allow_contaminated else {})},
                kind="created",
                sequence=0,
                policy=order.policy,
                tenant=order.tenant,
                actor=actor,
                reason="ordered",
                request_digest=order.digest,
                spec=order.spec,
            )
            self._check_month(event)
            try:
                self._write(event)
            except (EncodeError, EventError) as exc:  # too large for a record, above all
                source = "training_queries" if order.spec.environment is None else "environment"
                raise JobRequestError(f"{source}: {exc}", source) from exc
            job = self.get(job_id)
        if job.request_digest != order.digest:
            raise RefusedError(
                f"Idempotency-Key {key!r} was used for job {job_id}, which was another order; take a new key"
            )
        return job

    def command(self, job_id: str, command: JobCommand) -> JobState:
        """Write a command, and return the job once it has taken effect.

        Without a sequence that it expects, it is written again where an event of a process came first. Raises
        NotFoundError for an unknown job, RefusedError if it is against the rules or another person came first, LogError
        if the broker does not answer.
        """
        state = self.get(job_id)
        job_id = state.job_id
        while True:
            sequence = state.sequence if command.expect is None else command.expect
            event_id = derive_id(job_id, "command", uuid.uuid4() if command.key is None else command.key)
            if (kind := state.effective.get(event_id)) is not None:
                break
            if (refused := refusal(state, command.kind, sequence)) is not None:
                raise RefusedError(f"job {job_id}: nothing was written: {refused}")
            coordinates = self._write(self._event(state, command, event_id, sequence))
            state = self.get(job_id)
            if (kind := state.effective.get(event_id)) is not None:
                break
            winner = self.events(job_id)[sequence]
            if command.expect is not None or winner.kind in get_args(JobCommandKind):
                raise RefusedError(
                    f"{coordinates}: {winner.actor} came first with {winner.kind}, and this has no effect: "
                    f"{state.refused[event_id]}"
                )
        if kind != command.kind:
            raise RefusedError(
                f"Idempotency-Key {command.key!r} was used before, and job {job_id} was then {kind}; take a new key"
            )
        return state

    def append(self, event: JobEvent) -> JobState:
        """Write an event that a process has decided, and return the job once it is folded, with or without an effect.

        Raises LogError if the broker does not answer.
        """
        self._write(event)
        return self.get(event.job_id)

    def _check_month(self, event: JobEvent) -> None:
        """Raise RefusedError if the job would take its tenant over what it may spend in this month."""
        if (ordered := fold(None, event)) is None:
            return
        limit_usd = self._settings.of_plugin(Jobs).tenant_month_usd
        assert self._has_months, "it was opened without them"  # noqa: S101
        with self._changed:
            spending.check_month(self._all, ordered, event.created_at, limit_usd)

    def _event(self, state: JobState, command: JobCommand, event_id: str, sequence: int) -> JobEvent:
        return JobEvent(
            event_id=event_id,
            job_id=state.job_id,
            created_at=times.now_ms(),
            kind=command.kind,
            sequence=sequence,
            policy=state.policy,
            tenant=state.tenant,
            actor=command.actor,
            reason=command.reason,
        )

    # --- following ----------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        if (topic := self._with_costs.get(record.at.topic)) is not None:
            self._all.take_cost(record, topic)
            return
        folded = self._all.take(record)
        if folded is not None and folded.took_effect:
            self._events.setdefault(folded.event.job_id, []).append(folded.event)


def job_id_of(tenant: str | None, key: str) -> str:
    """Return the id of the job that a tenant orders with this key."""
    return derive_id("job", tenant or "", key)
