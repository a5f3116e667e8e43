"""The audit counts jobs, and names the event that is missing, changed, or about a version that is not there."""

from __future__ import annotations

from schemas.events import Event, JobEvent
from streams.tools.audit.report import Report
from tests.support.factories import changed, job_event
from tests.support.log.whole_run import TOPICS, recounted, trained


def job() -> list[JobEvent]:
    """Return a job of one iteration that was measured before and after it."""
    return [
        job_event("created"),
        job_event("started", 1),
        job_event("evaluated", 2),
        job_event("iteration", 3),
        job_event("evaluated", 4, iteration=1, version=1),
        job_event("completed", 5),
    ]


def report_of(*events: Event) -> Report:
    return recounted(*events, trained(1), settled=False)


def wrong(*events: Event) -> list[str]:
    return [finding.what for finding in report_of(*events).wrong if finding.at.topic == TOPICS["jobs"].name]


def test_a_whole_job_is_counted_and_nothing_is_wrong_with_it() -> None:
    report = report_of(*job())
    assert wrong(*job()) == []
    assert ("jobs", "1 = 1 ended + 0 open", True) in report.equations()
    assert report.plain()["jobs"] == 1


def test_a_job_without_an_end_is_open() -> None:
    assert report_of(*job()[:-1]).counts["jobs open"] == 1


def test_an_event_that_is_missing_before_another_is_lost() -> None:
    for gone in range(5):
        events = job()
        del events[gone]
        assert f"it follows event {gone} of its job, which is not before it" in wrong(*events)


def test_an_event_that_is_there_twice_is_repeated_and_one_with_its_id_and_another_content_contradicts() -> None:
    twice, another = [*job(), job()[3]], [*job(), changed(job()[3], reason="for another reason")]
    assert wrong(*twice) == []
    assert report_of(*twice).of("repeated")
    assert [finding.category for finding in report_of(*another).wrong if "id of" in finding.what] == ["contradictory"]


def test_a_decision_that_came_second_is_counted_and_is_no_mistake() -> None:
    late = job_event("paused", 2, event_id="late")
    report = report_of(*job(), late)
    assert wrong(*job(), late) == []
    assert report.counts["job events refused"] == 1


def test_a_version_that_no_adapter_event_has_is_named() -> None:
    events = job()
    events[4] = changed(events[4], version=7)
    assert wrong(*events) == ["it names version 7 of default, which is not in adapters"]


def test_a_closed_month_is_what_the_events_that_it_counts_had_cost_and_another_sum_contradicts_them() -> None:
    spent = {"prompt_tokens": 0.0, "completion_tokens": 0.0, "trainer_s": 0.0}
    iteration = changed(job()[3], metrics={**spent, "cost_usd": 4.0})
    late = changed(job()[4], metrics={**iteration.metrics, **job()[4].metrics, "cost_usd": 9.0})
    before = [*job()[:3], iteration]

    def closed(usd: float, counted: int) -> JobEvent:
        return job_event(
            "month_closed", job_id="month", policy="", month="2027-01", counted=(counted, counted),
            metrics={**spent, "cost_usd": usd},
        )  # fmt: skip

    assert wrong(*before, closed(4.0, 4), late) == []
    (what,) = wrong(*before, closed(5.0, 4), late)
    assert "closes 2027-01 of tenant '' with 5.00 USD, and the jobs' events that it counts say 4.00" in what
    assert wrong(*before, closed(0.0, 3), late) == []
    report = report_of(*before, closed(4.0, 4), changed(closed(8.0, 9), created_at=1), late)
    assert report.counts["months closed"] == report.counts["months closed again"] == 1
    assert report.plain()["jobs"] == 1
