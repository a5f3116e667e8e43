"""What jobs have cost, as a view of their events.

events of each job ──► what was used from one event to the next, in the month of the later ──► rows by any of NAMES
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from schemas.events import JobEvent, JobPrices
from streams.errors import SettingsError
from streams.jobs.state import JobUsage, cost_usd, usage_of

CostName = Literal["policy", "tenant", "job", "month"]
FIGURES = ("prompt_tokens", "completion_tokens", "trainer_s")


def names(text: str) -> tuple[CostName, ...]:
    """Return the names in `policy,month`. Raises SettingsError for one that there is not."""
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    known = get_args(CostName)
    if not found or set(found) - set(known) or len(set(found)) < len(found):
        raise SettingsError(f"--by {text}: expected some of {', '.join(known)}, each once, with commas between")
    return cast("tuple[CostName, ...]", found)


def costs(events: Mapping[str, Iterable[JobEvent]], by: Sequence[CostName]) -> list[dict[str, Any]]:
    """Return a row for each combination of `by`, in their order; `events`: those of each job that took effect."""
    sums: dict[tuple[str, ...], dict[str, float]] = {}
    for job_id, of_job in events.items():
        before, prices = JobUsage(), None
        for event in of_job:
            prices = event.spec.prices if event.spec is not None else prices
            now = usage_of(event.metrics, before)
            used = now.since(before)
            _add(sums, _key(event, job_id, by), used, prices)
            before = now
    return [{**dict(zip(by, key, strict=True)), **figures} for key, figures in sorted(sums.items())]


def _add(
    sums: dict[tuple[str, ...], dict[str, float]], key: tuple[str, ...], used: JobUsage, prices: JobPrices | None
) -> None:
    row = sums.setdefault(key, {**dict.fromkeys(FIGURES, 0), "cost_usd": 0.0})
    for name in FIGURES:
        row[name] += getattr(used, name)
    row["cost_usd"] += 0.0 if prices is None else cost_usd(used, prices)


def _key(event: JobEvent, job_id: str, by: Sequence[CostName]) -> tuple[str, ...]:
    month = datetime.fromtimestamp(event.created_at / 1000, UTC).strftime("%Y-%m")
    every: dict[CostName, str] = {
        "policy": event.policy,
        "tenant": event.tenant or "",
        "job": job_id,
        "month": month,
    }
    return tuple(every[name] for name in by)
