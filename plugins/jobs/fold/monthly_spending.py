"""Spending of each tenant in each UTC month, and which months are closed.

    an event of a job that took effect ──► what it used since the one before ──► a month of its tenant
    month_closed ──► its figures, and by partition of `jobs` the offset up to which records are in them
    a record of a topic with costs ──► its RecordCost ──► the month in which it was written

Usage between two events of a job counts in the month of the later one. A month is closed by one record, and never
changes afterwards: events after the offsets in that record count in the next open month, whatever their time. So the
figures do not depend on the order in which partitions are read.

Jobs without a tenant belong to a tenant with an empty name. Usage of a job without prices has no cost.

A closed month keeps the jobs' part for ever. Other costs count as long as their topics keep the records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from plugins.jobs.fold.state import JobState, JobUsage, cost_usd, usage_of
from schemas.events import Coordinates, JobEvent, derive_id
from streams.topics.shape import RecordCost

MONTH_CLOSED = "month_closed"
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: any client may write any time."""
CLOSES_AFTER_MS = 3_600_000
"""How long after its end a month is closed: clocks differ, and what a batch cost is known once it was trained on."""


def month_of(time_ms: int) -> str:
    """Return the month of UTC that a time is in.

    >>> month_of(1_798_761_599_999), month_of(1_798_761_600_000)
    ('2026-12', '2027-01')
    """
    return datetime.fromtimestamp(min(max(time_ms, 0), LAST_MS) // 1000, UTC).strftime("%Y-%m")


def month_after(month: str) -> str:
    """Return the month after another.

    >>> month_after("2026-12")
    '2027-01'
    """
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04d}-{number % 12 + 1:02d}"


class Spending(NamedTuple):
    """What one event of a job says was used since the event before it."""

    tenant: str
    policy: str
    job_id: str
    partition: int
    offset: int
    month: str
    """By the time of the event."""
    usage: JobUsage
    cost_usd: float


class CostGroup(NamedTuple):
    """Costs of one session and policy in one month."""

    tenant: str
    policy: str
    """Empty: no policy."""
    session: str
    month: str


@dataclass(slots=True)
class MonthFigures:
    """Usage of a tenant in a month."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    trainer_s: float = 0.0
    cost_usd: float = 0.0

    def add(self, usage: JobUsage, cost: float) -> None:
        """Count what was used."""
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.trainer_s += usage.trainer_s
        self.cost_usd += cost

    @property
    def is_zero(self) -> bool:
        """Whether nothing was used."""
        return not (self.prompt_tokens or self.completion_tokens or self.trainer_s or self.cost_usd)


class ClosedMonth(NamedTuple):
    """A month that does not change any more."""

    figures: MonthFigures
    counted: tuple[int, ...]
    """By partition of `jobs`: records below this offset are in its figures."""

    def has(self, partition: int, offset: int) -> bool:
        """Return whether the record there was counted when the month was closed."""
        return partition < len(self.counted) and offset < self.counted[partition]


class MonthBudget(NamedTuple):
    """What a tenant may spend in the month that its job is in."""

    tenant: str
    month: str
    spent_usd: float
    """As recorded in events."""
    limit_usd: float

    def __str__(self) -> str:
        """Name whose and which month it is."""
        return f"{f'tenant {self.tenant}' if self.tenant else 'jobs without a tenant'} in {self.month}"

    def problem(self, more_usd: float = 0.0) -> str | None:
        """Return that the month is spent, once `more_usd` is added; None if it is not."""
        spent = self.spent_usd + more_usd
        if spent < self.limit_usd:
            return None
        return f"{spent:.4f} USD of {self.limit_usd:.4f} are spent that are for {self}"


class RecordedCosts:
    """The fold of the costs in other topics than `jobs`, by tenant, policy, session and month."""

    def __init__(self) -> None:
        self._counted: set[tuple[str, str]] = set()
        self._groups: dict[CostGroup, MonthFigures] = {}
        self._months: dict[tuple[str, str], MonthFigures] = {}

    def take(self, label: str, cost: RecordCost) -> None:
        """Count the cost of a record of a topic; of two records about the same work, the first."""
        if (label, cost.work_id) in self._counted:
            return
        self._counted.add((label, cost.work_id))
        usage = JobUsage(cost.prompt_tokens, cost.completion_tokens, cost.trainer_s)
        group = CostGroup(cost.tenant or "", cost.policy, cost.session, month_of(cost.created_at))
        for figures in (
            self._groups.setdefault(group, MonthFigures()),
            self._months.setdefault((group.tenant, group.month), MonthFigures()),
        ):
            figures.add(usage, cost.cost_usd or 0.0)

    @property
    def tenants(self) -> set[str]:
        """Every tenant with a cost."""
        return {tenant for tenant, _ in self._months}

    def figures(self, tenant: str, month: str) -> MonthFigures:
        """Return the costs of a tenant in a month."""
        return self._months.get((tenant, month), MonthFigures())

    def by_group(self) -> Iterator[tuple[CostGroup, MonthFigures]]:
        """Yield the costs of each session and policy in each month."""
        yield from self._groups.items()


class TenantMonths:
    """The fold of the usage of each tenant, by month."""

    def __init__(self) -> None:
        self.recorded = RecordedCosts()
        self._spent: dict[str, list[Spending]] = {}
        self._closed: dict[tuple[str, str], ClosedMonth] = {}
        self._open: dict[tuple[str, str], MonthFigures] = {}

    # --- taking in ----------------------------------------------------------------------------------------------------

    def count(self, event: JobEvent, before: JobState | None, after: JobState, coordinates: Coordinates) -> None:
        """Count an event that took effect: what its job used since the one before it."""
        usage = after.usage.since(JobUsage() if before is None else before.usage)
        prices = after.spec.prices
        spending = Spending(
            tenant=after.tenant or "",
            policy=after.policy,
            job_id=after.job_id,
            partition=coordinates.partition,
            offset=coordinates.offset,
            month=month_of(event.created_at),
            usage=usage,
            cost_usd=0.0 if prices is None else cost_usd(usage, prices),
        )
        self._spent.setdefault(spending.tenant, []).append(spending)
        self._add(spending)

    def close(self, event: JobEvent) -> None:
        """Close the month that the event names; of two records that close it, the first counts."""
        key = (event.tenant or "", event.month or "")
        if event.kind != MONTH_CLOSED or key in self._closed:
            return
        usage = usage_of(event.metrics, JobUsage())
        figures = MonthFigures()
        figures.add(usage, event.metrics.get("cost_usd", 0.0))
        self._closed[key] = ClosedMonth(figures, event.counted)
        for name in [name for name in self._open if name[0] == key[0]]:
            del self._open[name]
        for spending in self._spent.get(key[0], ()):
            self._add(spending)

    def _add(self, spending: Spending) -> None:
        key = (spending.tenant, self.month(spending))
        if key not in self._closed:
            self._open.setdefault(key, MonthFigures()).add(spending.usage, spending.cost_usd)

    # --- looking ------------------------------------------------------------------------------------------------------

    def month(self, spending: Spending) -> str:
        """Return the month that it counts in."""
        month = spending.month
        while (closed := self._closed.get((spending.tenant, month))) and not closed.has(
            spending.partition, spending.offset
        ):
            month = month_after(month)
        return month

    @property
    def tenants(self) -> Collection[str]:
        """Every tenant that has ordered a job, or has other costs."""
        return self._spent.keys() | self.recorded.tenants

    def is_closed(self, tenant: str, month: str) -> bool:
        """Return whether a month does not change any more."""
        return (tenant, month) in self._closed

    def figures(self, tenant: str, month: str) -> MonthFigures:
        """Return what was used in a month: by the jobs of a closed one, as it was recorded."""
        closed, recorded = self._closed.get((tenant, month)), self.recorded.figures(tenant, month)
        jobs = closed.figures if closed is not None else self._open.get((tenant, month), MonthFigures())
        whole = MonthFigures()
        for part in (jobs, recorded):
            whole.add(JobUsage(part.prompt_tokens, part.completion_tokens, part.trainer_s), part.cost_usd)
        return whole

    def by_event(self) -> Iterator[Spending]:
        """Yield what each event of a job says, tenant by tenant."""
        for spendings in self._spent.values():
            yield from spendings

    def budget(self, tenant: str | None, time_ms: int, limit_usd: float) -> MonthBudget | None:
        """Return what a tenant may spend in the month of a time, or the first after it that is open; None: no limit."""
        if not limit_usd:
            return None
        name, month = tenant or "", month_of(time_ms)
        while self.is_closed(name, month):
            month = month_after(month)
        return MonthBudget(name, month, self.figures(name, month).cost_usd, limit_usd)

    # --- closing ------------------------------------------------------------------------------------------------------

    def to_close(self, now_ms: int, counted: Iterable[int], actor: str) -> Iterator[JobEvent]:
        """Yield the events that close each month that is over; `counted`: the next offset of each partition of `jobs`.

        All records below those offsets have to be folded.
        """
        now, offsets = month_of(now_ms - CLOSES_AFTER_MS), tuple(counted)
        for (tenant, month), figures in sorted(self._open.items()):
            if month >= now or figures.is_zero:
                continue
            yield JobEvent(
                event_id=derive_id("month", tenant, month, MONTH_CLOSED),
                job_id=derive_id("month", tenant, month),
                created_at=now_ms,
                kind="month_closed",
                sequence=0,
                policy="",
                tenant=tenant or None,
                actor=actor,
                reason=f"{month} is over",
                month=month,
                metrics={
                    "prompt_tokens": float(figures.prompt_tokens),
                    "completion_tokens": float(figures.completion_tokens),
                    "trainer_s": figures.trainer_s,
                    "cost_usd": figures.cost_usd,
                },
                counted=offsets,
            )
