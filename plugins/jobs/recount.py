"""Recount one job: its events follow from each other, and the versions that they name exist.

    created, started, iteration, … of one job ──► each names how many took effect before it ──► findings, open
    adapters of its policy ─────────────────────► each version that an iteration or evaluation names

An event based on an outdated sequence lost a race; that is not a finding. One based on a later sequence follows a
missing event.

    month_closed ──► is it what the events of the tenant's jobs had cost in that month, up to the offsets that it names?

Not covered: whether a controller wrote the tasks that the job's events imply; tasks are recounted like any others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from schemas.events import Coordinates, JobEvent
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

_NEXT = {
    None: {"created": "waits"},
    "waits": {"started": "works", "paused": "rests", "failed": "over", "cancelled": "over"},
    "works": {
        "iteration": "works",
        "evaluated": "works",
        "budget_warned": "works",
        "paused": "rests",
        "budget_exceeded": "over",
        "completed": "over",
        "failed": "over",
        "cancelled": "over",
    },
    "rests": {"resumed": "waits", "cancelled": "over"},
    "over": {},
}
"""By state: what each kind of event that may come makes of it."""
CENT = 0.01
"""By less than this, sums of money may differ: they are added up in another order."""


class JobFact(NamedTuple):
    """An event of a job."""

    at: Coordinates
    event_id: str
    content: int
    kind: str
    sequence: int
    iteration: int | None
    version: int | None
    created_at: int
    tenant: str
    cost_usd: float | None
    """Of the job until then."""


class MonthFact(NamedTuple):
    """A month of a tenant that was closed."""

    at: Coordinates
    tenant: str
    month: str
    cost_usd: float
    counted: tuple[int, ...]
    """By partition: records below this offset are in it."""


class JobRecount(KeyedRecount[JobFact]):
    """The recount of jobs and of closed months."""

    labels, counts = ("jobs",), ("jobs",)
    sums = (RecountSum("jobs", ("jobs",), {"ended": "jobs ended", "open": "jobs open"}),)

    def __init__(self) -> None:
        super().__init__()
        self._months: list[MonthFact] = []
        self._took_effect: dict[str, list[JobFact]] = {}
        """The events of each job that was recounted."""

    def take(self, record: Record, event: JobEvent) -> None:
        """Take in an event of a job, or that a month was closed."""
        cost_usd = event.metrics.get("cost_usd")
        if event.kind == "month_closed":
            month = MonthFact(record.at, event.tenant or "", event.month or "", cost_usd or 0.0, event.counted)
            self._months.append(month)
            return
        fact = JobFact(
            at=record.at,
            event_id=event.event_id,
            content=content_digest(event, "created_at", "traceparent"),
            kind=event.kind,
            sequence=event.sequence,
            iteration=event.iteration,
            version=event.version,
            created_at=event.created_at,
            tenant=event.tenant or "",
            cost_usd=cost_usd,
        )
        self.keep(event.job_id, fact, event.policy)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the jobs; months are of no policy."""
        outcome = super().report(view, policy)
        if policy is None:
            outcome.add(recount_months(self._months, self._took_effect.values()))
        return outcome

    def recount(self, facts: KeyFacts[JobFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one job, and whether it is still open."""
        outcome = RecountOutcome()
        outcome.counts["jobs"] += 1
        first: dict[str, JobFact] = {}
        versions = view.versions(facts.policy)
        took_effect = self._took_effect[facts.key] = list[JobFact]()
        state: str | None = None
        count = iterations = 0
        for event in facts.events:
            known = first.setdefault(event.event_id, event)
            if known is not event:
                same = known.content == event.content
                what = f"it repeats {known.at}" if same else f"it has the id of {known.at}, and is another"
                outcome.find("repeated" if same else "contradictory", event.at, what, accounted=same)
                continue
            if event.sequence > count:
                problem = f"it follows event {event.sequence - 1} of its job, which is not before it"
                outcome.find("lost", event.at, problem)
                count, state = event.sequence, _before(event.kind, state)
            if event.sequence < count or event.kind not in _NEXT[state]:
                outcome.counts["job events refused"] += 1
                continue
            state, count = _NEXT[state][event.kind], count + 1
            took_effect.append(event)
            if event.kind in ("iteration", "evaluated") and event.version not in {0, *versions}:
                problem = f"it names version {event.version} of {facts.policy}, which is not in adapters"
                outcome.find("lost", event.at, problem)
            if event.kind == "iteration":
                if (event.iteration or 0) > iterations + 1:
                    problem = f"it ends iteration {event.iteration}, and iteration {iterations + 1} did not end before"
                    outcome.find("lost", event.at, problem)
                iterations = event.iteration or 0
        outcome.counts["jobs ended" if state == "over" else "jobs open"] += 1
        return outcome


def _before(kind: str, state: str | None) -> str | None:
    """Return a state in which an event of this kind may come: `state`, if it is one."""
    return state if kind in _NEXT[state] else next((one for one, may in _NEXT.items() if kind in may), state)


# --- months -----------------------------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """What an event says its job has cost since the one before it."""

    month: str
    partition: int
    offset: int
    usd: float

    def is_in(self, closed: MonthFact) -> bool:
        """Return whether it was counted when the month was closed."""
        return self.partition < len(closed.counted) and self.offset < closed.counted[self.partition]


def recount_months(closed: Iterable[MonthFact], jobs: Iterable[list[JobFact]]) -> RecountOutcome:
    """Return what is wrong with months that are closed; `jobs`: the events of each that took effect."""
    outcome = RecountOutcome()
    first: dict[tuple[str, str], MonthFact] = {}
    for fact in closed:
        if first.setdefault((fact.tenant, fact.month), fact) is not fact:
            outcome.counts["months closed again"] += 1
    by_tenant: defaultdict[str, list[_Cost]] = defaultdict(list)
    for events in jobs:
        for tenant, cost in _costs(events):
            by_tenant[tenant].append(cost)
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for tenant, costs in by_tenant.items():
        for cost in costs:
            month = cost.month
            while (tenant, month) in first and not cost.is_in(first[tenant, month]):
                month = _next_month(month)
            sums[tenant, month] += cost.usd
    for (tenant, month), fact in first.items():
        outcome.counts["months closed"] += 1
        if abs(sums[tenant, month] - fact.cost_usd) >= CENT:
            what = (
                f"it closes {month} of tenant {tenant!r} with {fact.cost_usd:.2f} USD, and the jobs' events that it "
                f"counts say {sums[tenant, month]:.2f}"
            )
            outcome.find("contradictory", fact.at, what)
    return outcome


def _costs(events: list[JobFact]) -> Iterator[tuple[str, _Cost]]:
    before = 0.0
    tenant = events[0].tenant if events else ""
    for event in events:
        now = before if event.cost_usd is None else event.cost_usd
        seconds = min(max(event.created_at // 1000, 0), 253_402_300_799)  # 9999
        month = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")
        yield tenant, _Cost(month, event.at.partition, event.at.offset, now - before)
        before = now


def _next_month(month: str) -> str:
    year, number = map(int, month.split("-"))
    return f"{year + (number == 12)}-{1 if number == 12 else number + 1:02d}"


RECOUNTS = (JobRecount,)
