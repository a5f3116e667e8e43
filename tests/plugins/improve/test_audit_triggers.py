"""The audit counts crossings, and names the event or the job that is missing, forged, early or one too many."""

from __future__ import annotations

from typing import Any

from schemas.events import Event, JobEvent, TriggerEvent, derive_id
from tests.support.factories import T0, changed, job_event, task, trigger_event
from tests.support.log.whole_run import TOPICS, recounted

DAY_MS = 86_400_000


def job_of(crossing: TriggerEvent, **changes: Any) -> JobEvent:
    job_id = changes.pop("job_id", crossing.job_id)
    created = job_event("created", job_id=job_id, event_id=derive_id(job_id, "created"))
    return changed(created, metadata={"trigger": crossing.event_id, "rule": crossing.rule}, **changes)


def nightly() -> list[Event]:
    """Return a rule of two ticks and two crossings, each with its job."""
    first, second = trigger_event("crossed", 1), trigger_event("crossed", 3)
    return [
        trigger_event("ticked", 0, due_at=T0 - DAY_MS),
        first,
        job_of(first),
        trigger_event("ticked", 2, due_at=T0),
        second,
        job_of(second),
    ]


def wrong(*events: Event, settled: bool = True) -> list[tuple[str, str]]:
    labels = {TOPICS[label].name: label for label in ("triggers", "jobs")}
    return [(labels[finding.at.topic], finding.what) for finding in recounted(*events, settled=settled).wrong]


def test_a_whole_rule_is_counted_and_nothing_is_wrong_with_it() -> None:
    report = recounted(*nightly())
    assert wrong(*nightly()) == []
    assert ("crossings of rules", "2 = 2 with a job + 0 with tasks + 0 open", True) in report.equations()


def test_an_event_that_is_missing_before_another_is_lost() -> None:
    for gone, label in ((0, "triggers"), (3, "triggers")):
        events = nightly()
        del events[gone]
        sequence = 0 if gone == 0 else 2
        assert (label, f"it follows event {sequence} of its rule, which is not before it") in wrong(*events)


def test_a_crossing_without_its_job_is_lost_and_only_the_newest_may_still_wait_for_it() -> None:
    first, last = nightly(), nightly()
    del first[2], last[5]
    assert [what for what in wrong(*first, settled=False) if "was never created" in what[1]] != []
    assert wrong(*last, settled=False) == []
    assert recounted(*last, settled=False).in_flight["crossings"] == 1
    assert "was never created" in wrong(*last)[0][1]


def test_a_second_job_of_a_crossing_and_one_of_a_crossing_that_is_not_there_are_phantoms() -> None:
    crossing = trigger_event("crossed", 1)
    [(label, what)] = wrong(*nightly(), job_of(crossing, job_id="another"))
    assert label == "jobs" and "starts job" in what and "not this one" in what
    [(label, what)] = wrong(*nightly(), job_of(trigger_event("crossed", 9), job_id="stray"))
    assert label == "jobs" and "which is not in the log" in what


def test_a_tick_before_its_time_contradicts_itself() -> None:
    events = nightly()
    events[3] = changed(events[3], created_at=T0 - 1)
    [(label, what)] = wrong(*events)
    assert label == "triggers" and "was written before that" in what


def test_an_id_that_is_not_that_of_its_event_is_named() -> None:
    events = nightly()
    events[0] = changed(events[0], event_id="forged")
    assert ("triggers", "its id is not that of its rule, kind and sequence") in wrong(*events)


def test_a_decision_of_two_processes_is_counted_and_is_no_mistake() -> None:
    events = nightly()
    also = changed(trigger_event("crossed", 1), created_at=T0 + 5, evidence={"promoted": 6.0})
    report = recounted(*events[:2], also, *events[2:])
    assert wrong(*events[:2], also, *events[2:]) == []
    assert report.counts["trigger events superseded"] == 1


def test_self_play_is_a_crossing_with_tasks() -> None:
    asked = trigger_event("crossed", 0, action="selfplay", signal="asked", job_id=None)
    assert wrong(asked) == []
    assert recounted(asked).counts["crossings without a job"] == 1


def selfplay(asked: int, *, tasks: int = 3) -> list[Event]:
    """Return a run of self-play that asks so many tasks, of which so many were asked."""
    run = trigger_event("crossed", 0, action="selfplay", job_id=None, evidence={"tasks": float(tasks)})
    about = {"selfplay_run": run.event_id}
    again = task(task_id="again", metadata={**about, "resubmitted_from": "q0"})
    return [run, *(task(task_id=f"q{number}", metadata=about) for number in range(asked)), again]


def test_a_run_of_self_play_has_as_many_tasks_as_it_asks() -> None:
    assert wrong_of_triggers(*selfplay(3)) == []
    assert recounted(*selfplay(3)).counts["self-play tasks"] == 3
    assert wrong_of_triggers(*selfplay(2)) == [("lost", "its run asks 3 tasks, and 2 in the log name it")]
    assert wrong_of_triggers(*selfplay(4)) == [("phantom", "its run asks 3 tasks, and 4 in the log name it")]
    assert wrong_of_triggers(*selfplay(2), settled=False) == []
    assert recounted(*selfplay(2), settled=False).in_flight["self-play tasks"] == 1


def wrong_of_triggers(*events: Event, settled: bool = True) -> list[tuple[str, str]]:
    topic = TOPICS["triggers"].name
    found = recounted(*events, settled=settled).wrong
    return [(finding.category, finding.what) for finding in found if finding.at.topic == topic]
