"""The audit counts training calls, and names the result or the version that is missing, forged, early or changed."""

from __future__ import annotations

from dataclasses import replace

from plugins.tinker.calls.call_names import policy_of
from schemas.events import AdapterEvent, CallOrigin, Event, TrainingCall, TrainingResult, derive_id
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.audit.report import Report
from tests.plugins.tinker.session_calls import MODEL, begin_session, create_model, numbered, result
from tests.support.factories import T0, changed, trained
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends

SAVE = numbered("save_weights", 2, path="a")
CALLS = (begin_session(), create_model(), numbered("forward", 1), SAVE)
ORIGIN = CallOrigin(call_id=SAVE.call_id, model=MODEL, seq_id=2, path=f"tinker://{MODEL}/weights/a", optimizer=True)


def version(number: int = 1, **fields: object) -> AdapterEvent:
    policy = policy_of(MODEL)
    own = {"policy": policy, "event_id": derive_id(policy, number, "trained"), "origin": ORIGIN, "parent_version": None}
    return replace(trained(number), **{**own, "first_batch": None, "last_batch": None, **fields})


def loop() -> list[Event]:
    """Return a loop that made a model, ran it, and saved it as version 1."""
    offsets = {call.call_id: place for place, call in enumerate(CALLS)}
    results = [replace(result(call), source_offset=offsets[call.call_id]) for call in CALLS[1:]]
    results[-1] = replace(results[-1], version=1, uri="file:///store/1")
    return [*CALLS, version(), *results]


def placed(*events: Event) -> Written:
    log = Written()
    for number, event in enumerate(events):
        log.write(event, T0 + number)
    return log


def report_of(*events: Event, settled: bool = True) -> Report:
    log = placed(*events)
    calls = {}
    for record in log.records:
        if record.at.topic == TOPICS["training-calls"].name:
            call = record.decode(TrainingCall)
            assert isinstance(call, TrainingCall)
            calls.setdefault(call.call_id, record.at)
    exact = [
        replace(event, source_partition=calls[event.call_id].partition, source_offset=calls[event.call_id].offset)
        if isinstance(event, TrainingResult) and event.call_id in calls and event.source_offset != 99
        else event
        for event in events
    ]
    log = placed(*exact)
    return recount(log.records, SETTINGS, Reach(ends=ends(log.records), settled=settled))


def wrong(*events: Event, settled: bool = True) -> list[tuple[str, str]]:
    labels = {topic.name: label for label, topic in TOPICS.items()}
    return [(labels[finding.at.topic], finding.what) for finding in report_of(*events, settled=settled).wrong]


def test_a_whole_loop_is_counted_and_nothing_is_wrong_with_it() -> None:
    assert wrong(*loop()) == []
    equations = report_of(*loop()).equations()
    assert ("training calls", "3 = 3 with a result + 0 without one + 0 open", True) in equations


def test_a_refused_call_is_one_of_its_model_and_keeps_its_number() -> None:
    refused = numbered("refused", 3)
    answered = replace(result(refused, category="user", error=refused.refusal), source_offset=4)
    log = [*loop(), refused, answered]
    assert wrong(*log) == []
    assert wrong(*log[:-1]) == [("training-calls", f"call {refused.call_id} has no result")]


def test_a_call_without_a_result_is_lost_once_all_is_settled_and_before_in_flight() -> None:
    events = loop()[:-1]
    assert wrong(*events) == [("training-calls", f"call {SAVE.call_id} has no result")]
    assert wrong(*events, settled=False) == []
    assert report_of(*events, settled=False).in_flight["calls"] == 1


def test_a_call_that_waits_for_one_that_its_client_never_sent_is_no_mistake_of_the_log() -> None:
    assert wrong(*loop(), numbered("optim_step", 4)) == []


def test_a_result_of_no_call_and_a_version_of_no_call_are_phantoms() -> None:
    stray = result(numbered("optim_step", 9))
    assert wrong(*loop(), stray) == [("training-results", f"it is of call {MODEL}:9, which is not in the log")]
    forged = version(2, origin=replace(ORIGIN, call_id="x"), parent_version=1)
    assert ("adapters", "it says that call x saved it, which is not in the log") in wrong(*loop(), forged)


def test_a_version_that_is_missing_or_another_calls_is_named_at_the_result() -> None:
    events = loop()
    del events[4]
    assert wrong(*events) == [("training-results", "it says that its call saved version 1, which is not in the log")]
    events = loop()
    events[4] = version(origin=replace(ORIGIN, call_id=f"{MODEL}:1"))
    assert "saved version 1, of which" in wrong(*events)[0][1]


def test_a_result_that_says_otherwise_than_the_first_contradicts_it_and_an_equal_one_repeats_it() -> None:
    events = loop()
    assert wrong(*events, events[-1]) == []
    assert len(report_of(*events, events[-1]).of("repeated")) == 1
    other = changed(events[-1], state_sha256="f" * 64)
    assert "which counts" in wrong(*events, other)[0][1]


def test_results_of_a_model_that_changed_places_are_named() -> None:
    events = loop()
    events[-2], events[-1] = events[-1], events[-2]
    assert wrong(*events) == [("training-results", "it is of call 2, and stands before the result of call 1")]


def test_a_result_that_names_another_place_of_its_call_contradicts_the_log() -> None:
    events = loop()
    events[-1] = changed(events[-1], source_offset=99)
    assert "it says that its call is at" in wrong(*events)[0][1]
