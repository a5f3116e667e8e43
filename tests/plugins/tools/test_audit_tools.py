"""The audit recounts entries of the registry of tools, and names the event that is missing, forged or contradictory."""

from __future__ import annotations

from dataclasses import replace

from schemas.events import Event, Tool
from schemas.tool_text import offer_digest
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from tests.support.factories import T0, tool_event
from tests.support.log.whole_run import SETTINGS, Written, ends, recounted, wrong

OTHER = (Tool(name="add", description="Otherwise.", parameters="{}"),)


def entry() -> list[Event]:
    """Return an entry that was added, changed, accepted and removed."""
    return [
        tool_event(),
        tool_event("changed", 1, tools=OTHER),
        tool_event("accepted", 2, digest=offer_digest(OTHER)),
        tool_event("removed", 3),
    ]


def test_a_whole_entry_is_counted_and_nothing_is_wrong_with_it() -> None:
    assert wrong(*entry()) == []
    assert recounted(*entry()).counts["tool events"] == 4


def test_two_decisions_against_one_state_are_no_mistake() -> None:
    assert wrong(*entry()[:2], tool_event("removed", 1), *entry()[2:]) == []


def test_a_record_that_is_dropped_is_missed_at_the_next() -> None:
    for gone in range(3):
        events = entry()
        del events[gone]
        assert ("lost", gone, f"it follows event {gone} of its entry, which is not before it") in wrong(*events)


def test_a_description_that_nobody_saw_cannot_be_accepted() -> None:
    events = entry()
    events[2] = tool_event("accepted", 2, digest="a" * 64)
    [(category, offset, what)] = wrong(*events)
    assert (category, offset) == ("contradictory", 2) and "it accepts aaaa" in what


def test_a_forged_id_and_events_of_an_entry_that_there_is_not_are_named() -> None:
    assert "its id is not that of its entry" in wrong(replace(tool_event(), event_id="forged"))[0][2]
    assert "there is no such entry" in wrong(tool_event("changed"))[0][2]
    assert "it adds an entry that there is" in wrong(tool_event(), tool_event(sequence=1))[0][2]
    assert "it changes nothing" in wrong(tool_event(), tool_event("changed", 1))[0][2]


def test_a_copy_is_a_repetition_and_another_decision_of_the_same_state_is_superseded() -> None:
    copied, other = recounted(*entry()[:2], entry()[0]), recounted(*entry()[:2], tool_event("removed", 1))
    assert copied.balanced and [finding.what for finding in copied.of("repeated")] == ["it repeats log.tools[1]@0"]
    assert other.balanced and other.findings == () and other.counts["tool events superseded"] == 1


def test_what_is_trusted_already_cannot_be_accepted() -> None:
    again = tool_event("accepted", 3, digest=offer_digest(OTHER))
    assert wrong(*entry()[:3], again) == [("contradictory", 3, "it accepts what is trusted already")]
    assert wrong(tool_event(), tool_event("accepted", 1))[0][2] == "it accepts what is trusted already"


def test_an_endpoint_that_is_one_function_never_offers_two() -> None:
    two = (*OTHER, Tool(name="subtract", description="Otherwise.", parameters="{}"))
    function = tool_event(endpoint="sums:add")
    problem = "it offers 2 tools, and the endpoint of its entry is one function"
    assert wrong(function, tool_event("changed", 1, tools=two)) == [("contradictory", 1, problem)]
    server = tool_event(endpoint="mcp:https://sums.example/mcp")
    assert wrong(server, tool_event("changed", 1, tools=two)) == []


def test_an_event_that_could_not_take_effect_changes_nothing_about_the_next() -> None:
    events = entry()
    assert [offset for _, offset, _ in wrong(events[0], tool_event("changed", 1), *events[1:])] == [1]


def test_nothing_is_claimed_of_an_entry_whose_beginning_retention_has_deleted() -> None:
    log = Written()
    for number, event in enumerate(entry()):
        log.write(event, T0 + number)
    for gone in range(1, 4):
        begins = {(log.records[0].at.topic, log.records[0].at.partition): gone}
        reach = Reach(begins=begins, ends=ends(log.records), settled=True)
        assert recount(log.records[gone:], SETTINGS, reach).wrong == []
