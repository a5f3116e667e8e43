"""The audit recounts versions of prompts, and names the event that is missing, forged or contradictory."""

from __future__ import annotations

from dataclasses import replace

from schemas.events import Event, Message, PromptArm
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from tests.support.factories import T0, prompt_event
from tests.support.log.whole_run import SETTINGS, Written, ends, recounted, wrong


def text(number: int, sequence: int) -> Event:
    """Return the creation of a version."""
    return prompt_event(
        "created", sequence, version=number, messages=(Message(role="system", content=f"Try {number}, {{{{name}}}}."),)
    )


def prompt() -> list[Event]:
    """Return a prompt with two versions, whose alias is compared live and then means the second."""
    arms = (PromptArm(version=1, share=0.5), PromptArm(version=2, share=0.5))
    return [
        text(1, 0),
        prompt_event("activated", 1, version=1, alias="production"),
        text(2, 2),
        prompt_event("shared", 3, alias="production", job_id="j", arms=arms),
        prompt_event("reported", 4, version=2, job_id="j"),
        prompt_event("activated", 5, version=2, alias="production", job_id="j"),
    ]


def test_a_whole_prompt_is_counted_and_nothing_is_wrong_with_it() -> None:
    counts = recounted(*prompt()).counts
    assert wrong(*prompt()) == []
    assert (counts["prompt events"], counts["prompt versions"], counts["alias moves"]) == (6, 2, 3)


def test_two_decisions_against_one_state_are_no_mistake_and_the_first_counts() -> None:
    events = prompt()
    events.insert(2, prompt_event("activated", 1, version=1, alias="next"))
    assert wrong(*events) == [] and recounted(*events).counts["prompt events superseded"] == 1


def test_a_record_that_is_dropped_is_missed_at_the_next() -> None:
    for gone in range(5):
        events = prompt()
        del events[gone]
        assert ("lost", gone, f"it follows event {gone} of its prompt, which is not before it") in wrong(*events)


def test_versions_have_no_gap_and_no_version_is_written_again() -> None:
    first, _, second, *_ = prompt()
    assert wrong(first, text(3, 1)) == [("contradictory", 1, "it is version 3, and the next one is 2")]
    assert wrong(first, text(2, 1), text(2, 2))[0][2] == "its text is that of version 2"
    changed = prompt_event("created", 1, version=1, messages=(Message(role="system", content="Another, {{name}}."),))
    assert wrong(first, changed) == [("contradictory", 1, "it is version 1, and the next one is 2")]
    assert second not in (first, changed)


def test_an_alias_that_means_a_version_which_is_not_there_and_a_forged_id_are_named() -> None:
    first = prompt()[0]
    moved = prompt_event("activated", 1, version=2, alias="production")
    assert wrong(first, moved) == [("contradictory", 1, "it names version 2, and the prompt has 1")]
    assert "its id is not that of its prompt" in wrong(replace(first, event_id="forged"))[0][2]


def test_a_version_that_was_withdrawn_and_is_named_again_is_named_and_so_is_one_that_an_alias_means() -> None:
    gone = prompt_event("withdrawn", 6, version=1)
    assert wrong(*prompt(), gone) == []
    again = prompt_event("activated", 7, version=1, alias="next")
    assert wrong(*prompt(), gone, again) == [("contradictory", 7, "it names version 1, which was withdrawn")]
    meant = prompt_event("withdrawn", 6, version=2)
    assert wrong(*prompt(), meant) == [("contradictory", 6, "it withdraws what production means")]


def test_nothing_is_claimed_of_a_prompt_whose_beginning_retention_has_deleted() -> None:
    log = Written()
    for number, event in enumerate(prompt()):
        log.write(event, T0 + number)
    for gone in range(1, 6):
        begins = {(log.records[0].at.topic, log.records[0].at.partition): gone}
        reach = Reach(begins=begins, ends=ends(log.records), settled=True)
        assert recount(log.records[gone:], SETTINGS, reach).wrong == []
