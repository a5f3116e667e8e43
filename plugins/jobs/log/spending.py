"""The cost of jobs and sessions, as a view of the fold of their usage.

TenantMonths ──► what each event or session used, in the month that it counts in ──► rows by any of NAMES
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, cast, get_args

from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.monthly_spending import MonthFigures, Spending, TenantMonths
from plugins.jobs.fold.state import JobState, JobUsage, cost_usd
from plugins.jobs.orders.job_types import estimate
from streams.errors import RefusedError, SettingsError

CostName = Literal["policy", "tenant", "job", "month", "session"]


def names(text: str) -> tuple[CostName, ...]:
    """Return the names in `policy,month`. Raises SettingsError for an unknown one."""
    chosen = tuple(name.strip() for name in text.split(",") if name.strip())
    allowed = get_args(CostName)
    if not chosen or set(chosen) - set(allowed) or len(set(chosen)) < len(chosen):
        raise SettingsError(f"--by {text}: expected some of {', '.join(allowed)}, each once, with commas between")
    return cast("tuple[CostName, ...]", chosen)


def costs(months: TenantMonths, by: Sequence[CostName]) -> list[dict[str, Any]]:
    """Return a row for each combination of `by`, in their order.

    Of a tenant's month a row says whether it is closed; by these two alone it has the figures that were recorded then.
    """
    sums: dict[tuple[str, ...], MonthFigures] = {}
    for spending in months.by_event():
        key = _key(spending, months.month(spending), by)
        sums.setdefault(key, MonthFigures()).add(spending.usage, spending.cost_usd)
    for group, used in months.recorded.by_group():
        key = tuple(getattr(group, name, "") for name in by)  # they are of no job
        usage = JobUsage(used.prompt_tokens, used.completion_tokens, used.trainer_s)
        sums.setdefault(key, MonthFigures()).add(usage, used.cost_usd)
    rows = []
    for key, figures in sorted(sums.items()):
        row: dict[str, Any] = dict(zip(by, key, strict=True))
        if {"tenant", "month"} <= row.keys():
            row["closed"] = months.is_closed(row["tenant"], row["month"])
            figures = months.figures(row["tenant"], row["month"]) if len(row) == 3 else figures
        rows.append({**row, **asdict(figures)})
    return rows


def check_month(jobs: AllJobs, ordered: JobState, now_ms: int, limit_usd: float) -> None:
    """Raise RefusedError if a job would take its tenant over what it may spend in this month.

    To what is spent comes what this job is likely to cost, and what the tenant's other jobs that have not ended are.
    """
    budget = jobs.months.budget(ordered.tenant, now_ms, limit_usd)
    if budget is None or (cost_to_come := _to_come(ordered)) is None:
        return
    others_usd = [
        _to_come(job) for job in jobs.states.values() if (job.tenant or "") == budget.tenant and not job.has_ended
    ]
    open_usd = sum(cost or 0.0 for cost in others_usd)
    if budget.spent_usd + open_usd + cost_to_come > limit_usd:
        raise RefusedError(
            f"the job is estimated to cost {cost_to_come:.2f} USD. Of the {limit_usd:.2f} USD (jobs.tenant_month_usd) "
            f"for {budget}, {budget.spent_usd:.2f} are spent, and jobs that have not ended are estimated to cost "
            f"{open_usd:.2f} more. Order less, cancel one of those, or wait for the next month"
        )


def _to_come(job: JobState) -> float | None:
    """Return what a job is likely to cost from now on; None without prices."""
    prices = job.spec.prices
    return None if prices is None else max(0.0, cost_usd(estimate(job.spec), prices) - cost_usd(job.usage, prices))


def _key(spending: Spending, month: str, by: Sequence[CostName]) -> tuple[str, ...]:
    values: dict[CostName, str] = {
        "policy": spending.policy,
        "tenant": spending.tenant,
        "job": spending.job_id,
        "session": "",
        "month": month,
    }
    return tuple(values[name] for name in by)
