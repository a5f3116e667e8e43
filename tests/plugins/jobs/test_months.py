"""What tenants spend in a month: the fold, what closes a month, and what a spent one forbids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.monthly_spending import CLOSES_AFTER_MS, month_after, month_of
from plugins.jobs.fold.state import JobState, fold
from plugins.jobs.log import spending
from schemas.events import JobEvent, JobPrices, problems
from streams.errors import RefusedError
from streams.kafka.record import Record
from streams.kafka.topics import WITH_COSTS, topics
from streams.settings.model import Topics
from tests.support.factories import job_event, job_spec
from tests.support.log.whole_run import Written

DOLLAR = JobPrices(prompt=1e6, completion=0.0, trainer_hour=0.0)
"""A dollar a token of prompts."""


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def folded(records: Sequence[Record]) -> AllJobs:
    found = AllJobs(partitions=2)
    for record in records:
        label = record.at.topic.removeprefix("log.")
        if label in WITH_COSTS:
            found.take_cost(record, topics(Topics(prefix="log.", policy_partitions=2))[label])
        else:
            found.take(record)
    return found


def job(name: str, tenant: str | None, *spent: tuple[str, int], **changes: Any) -> list[JobEvent]:
    """Return the events of a job: what it has cost in all by each time."""
    about: dict[str, Any] = {"job_id": name, "tenant": tenant}
    first = ms(spent[0][0]) if spent else 0
    made = [
        job_event("created", event_id=f"{name}-0", created_at=first, spec=job_spec(prices=DOLLAR, **changes), **about),
        job_event("started", 1, event_id=f"{name}-1", created_at=first, **about),
    ]
    for number, (time, usd) in enumerate(spent, start=2):
        figures = {"prompt_tokens": float(usd), "completion_tokens": 0.0, "trainer_s": 0.0, "cost_usd": float(usd)}
        made.append(
            job_event("iteration", number, event_id=f"{name}-{number}", created_at=ms(time), metrics=figures, **about)
        )
    return made


def closing(log: Written, now: str) -> list[JobEvent]:
    """Return what a controller that has read everything writes at this time."""
    ends = [log.ends.get(("log.jobs", number), 0) for number in range(2)]
    return list(folded(log.records).months.to_close(ms(now), ends, "jobs"))


def by_month(known: AllJobs) -> dict[tuple[str, str], tuple[float, bool]]:
    rows = spending.costs(known.months, ("tenant", "month"))
    return {(row["tenant"], row["month"]): (row["cost_usd"], row["closed"]) for row in rows}


def test_what_a_job_used_is_in_the_month_of_the_event_that_says_so_and_of_its_tenant() -> None:
    log = Written()
    for event in job("a", "shop", ("2026-11-30T23:59:59", 3), ("2026-12-01T00:00:00", 5)):
        log.write(event, 0)
    for event in job("b", None, ("2026-11-02T00:00:00", 2)):
        log.write(event, 0)
    assert by_month(folded(log.records)) == {
        ("", "2026-11"): (2.0, False),
        ("shop", "2026-11"): (3.0, False),
        ("shop", "2026-12"): (2.0, False),
    }


def test_a_month_is_closed_an_hour_after_its_end_once_and_only_if_something_was_used_in_it() -> None:
    log = Written()
    for event in (*job("a", "shop", ("2026-11-10T00:00:00", 3)), *job("b", "bakery", ("2026-11-10T00:00:00", 0))):
        log.write(event, 0)
    assert closing(log, "2026-12-01T00:59:59") == []
    (event,) = closing(log, "2026-12-01T01:00:00")
    assert (event.tenant, event.month, event.metrics["cost_usd"]) == ("shop", "2026-11", 3.0)
    assert list(problems(event)) == []
    log.write(event, 0)
    assert closing(log, "2027-12-01T01:00:00") == []
    log.write(
        dataclasses.replace(event, metrics={**event.metrics, "cost_usd": 99.0}), 0
    )  # by a controller that is late
    assert by_month(folded(log.records))["shop", "2026-11"] == (3.0, True)


def test_what_comes_after_a_month_was_closed_counts_in_the_next_that_is_open() -> None:
    log = Written()
    whole = job("a", "shop", ("2026-11-10T00:00:00", 3), ("2026-11-20T00:00:00", 4))
    for event in whole[:-1]:
        log.write(event, 0)
    for event in closing(log, "2026-12-05T00:00:00"):
        log.write(event, 0)
    log.write(whole[-1], 0)
    assert by_month(folded(log.records)) == {("shop", "2026-11"): (3.0, True), ("shop", "2026-12"): (1.0, False)}


MONTHS = ("2026-10-15T12:00:00", "2026-11-15T12:00:00", "2026-12-15T12:00:00")


@given(st.data())
def test_in_whatever_order_partitions_are_read_months_are_the_same_and_add_up_and_a_closed_one_stays(
    data: st.DataObject,
) -> None:
    log, spent = Written(), 0
    waiting = {}
    for name in "abcd":
        totals = sorted(data.draw(st.lists(st.integers(0, 50), max_size=4)))
        moments = data.draw(st.lists(st.sampled_from(MONTHS), min_size=len(totals), max_size=len(totals)))
        waiting[name] = job(name, data.draw(st.sampled_from(("shop", None))), *zip(moments, totals, strict=True))
        spent += totals[-1] if totals else 0
    closed: dict[tuple[str, str], tuple[float, bool]] = {}
    while any(waiting.values()):
        name = data.draw(st.sampled_from([name for name, events in waiting.items() if events]))
        log.write(waiting[name].pop(0), 0)
        if data.draw(st.integers(0, 3)) == 0:
            for event in closing(log, data.draw(st.sampled_from(MONTHS))):
                log.write(event, 0)
        now = by_month(folded(log.records))
        assert {key: now[key] for key in closed} == closed
        closed = {key: value for key, value in now.items() if value[1]}
    one = [record for record in log.records if record.at.partition == 0]
    other = [record for record in log.records if record.at.partition == 1]
    assert by_month(folded([*one, *other])) == by_month(folded([*other, *one])) == by_month(folded(log.records))
    assert sum(usd for usd, _ in by_month(folded(log.records)).values()) == spent


def test_times_that_no_calendar_has_are_in_its_first_or_last_month() -> None:
    assert (month_of(-(2**63)), month_of(2**63 - 1), month_after("2026-09")) == ("1970-01", "9999-12", "2026-10")


def test_a_record_that_closes_a_month_has_to_say_which_and_what_was_counted() -> None:
    whole = dict.fromkeys(("prompt_tokens", "completion_tokens", "trainer_s", "cost_usd"), 1.0)
    good = job_event("month_closed", month="2026-11", counted=(3, 0), metrics=whole, policy="")
    assert list(problems(good)) == []
    for changes, says in (
        ({"month": "2026-13"}, "expected a year and a month"),
        ({"month": None}, "month_closed alone has one"),
        ({"counted": ()}, "expected an offset for each partition"),
        ({"metrics": {}}, "it needs completion_tokens, cost_usd"),
    ):
        assert says in " ".join(problems(dataclasses.replace(good, **changes)))


# --- what a month forbids ---------------------------------------------------------------------------------------------


def ordered(tenant: str | None, tokens: int, **changes: Any) -> JobState:
    """Return a job that is estimated to cost so many dollars: it may say as many tokens twice, of which half count."""
    prices = JobPrices(prompt=0.0, completion=1e6, trainer_hour=0.0)
    sampling = dataclasses.replace(job_spec().sampling, max_tokens=tokens)
    spec = job_spec(prices=prices, held_out_share=0.0, iterations=1, batch_size=1, sampling=sampling, **changes)
    state = fold(None, job_event("created", job_id="new", tenant=tenant, spec=spec))
    assert state is not None
    return state


def test_a_job_that_would_go_over_its_tenants_month_is_refused_and_the_error_has_the_sum() -> None:
    log = Written()
    for event in job("a", "shop", ("2026-11-10T00:00:00", 40)):
        log.write(event, 0)
    known, now = folded(log.records), ms("2026-11-20T00:00:00")
    known.states["b"] = ordered("shop", 25)
    known.states["a"] = dataclasses.replace(known.states["a"], status="completed")
    spending.check_month(known, ordered("shop", 35), now, limit_usd=100.0)
    with pytest.raises(RefusedError, match=r"cost 36\.00 USD.* tenant shop in 2026-11, 40\.00 are spent.* 25\.00 more"):
        spending.check_month(known, ordered("shop", 36), now, limit_usd=100.0)
    spending.check_month(known, ordered("shop", 36), ms("2026-12-20T00:00:00"), limit_usd=100.0)
    spending.check_month(known, ordered("bakery", 99), now, limit_usd=100.0)
    spending.check_month(known, ordered("shop", 99), now, limit_usd=0.0)
    without = dataclasses.replace(ordered("shop", 99), spec=job_spec(prices=None))
    spending.check_month(known, without, now, limit_usd=1.0)


def test_what_may_be_spent_after_a_month_was_closed_is_that_of_the_next() -> None:
    log = Written()
    for event in job("a", None, ("2026-11-10T00:00:00", 40)):
        log.write(event, 0)
    for event in closing(log, "2026-12-01T02:00:00"):
        log.write(event, 0)
    budget = folded(log.records).months.budget(None, ms("2026-11-30T00:00:00"), 100.0)
    assert budget is not None and (budget.month, budget.spent_usd) == ("2026-12", 0.0)
    assert str(budget) == "jobs without a tenant in 2026-12" and CLOSES_AFTER_MS == 3_600_000
