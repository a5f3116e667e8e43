"""A thread as the fold of its events: one run at a time, in an order that every reader comes to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.threads.log.thread_state import ThreadState, fold, refusal
from schemas.events import Message, ThreadEvent, derive_id
from tests.support.factories import thread_event


def folded(*events: ThreadEvent) -> ThreadState:
    state: ThreadState | None = None
    for event in events:
        state = fold(state, event)
    assert state is not None
    return state


def texts(state: ThreadState) -> list[str]:
    return [message.message.content for message in state.messages]


def asks(run: str, text: str = "1 + 1 =", **changes: Any) -> ThreadEvent:
    return thread_event("run_requested", run_id=run, **{"messages": (Message(role="user", content=text),)} | changes)


def ends(run: str, text: str = "2", **changes: Any) -> ThreadEvent:
    return thread_event("run_ended", run_id=run, **{"messages": (Message(role="assistant", content=text),)} | changes)


CREATED = thread_event("created")


def test_a_thread_has_the_questions_and_the_answers_of_its_runs() -> None:
    state = folded(CREATED, asks("a"), ends("a"), asks("b", "2 + 2 ="), ends("b", "4"))
    assert texts(state) == ["1 + 1 =", "2", "2 + 2 =", "4"]
    assert (state.status, state.participants) == ("idle", ["calc"])
    assert [run.status for run in state.runs.values()] == ["success", "success"]


def test_of_two_runs_that_meet_the_first_in_the_log_goes_on_and_the_other_is_refused() -> None:
    state = folded(CREATED, asks("a"))
    assert refusal(state, asks("b")) == "the thread is busy with run a"
    assert fold(state, asks("b")) is state


def test_a_run_that_waits_has_its_messages_in_the_thread_only_once_it_begins() -> None:
    waiting = folded(CREATED, asks("a"), asks("b", "2 + 2 =", if_busy="enqueue"))
    assert (texts(waiting), waiting.active, waiting.waiting) == (["1 + 1 ="], "a", ("b",))
    begun = fold(waiting, ends("a"))
    assert begun is not None
    assert (texts(begun), begun.active) == (["1 + 1 =", "2", "2 + 2 ="], "b")
    checkpoint = begun.runs["b"].checkpoint
    assert checkpoint is not None
    assert [one.message.content for one in checkpoint.messages()] == texts(begun)


def test_a_run_that_interrupts_is_the_one_that_goes_on_and_the_other_says_nothing_more() -> None:
    state = folded(CREATED, asks("a"), asks("b", if_busy="interrupt"))
    assert (state.active, state.runs["a"].status) == ("b", "interrupted")
    assert refusal(state, ends("a")) == "run a is not in progress: it is interrupted"


@pytest.mark.parametrize(("rolled_back", "left"), [(False, ["1 + 1 ="]), (True, [])])
def test_a_cancelled_run_leaves_its_question_unless_it_is_rolled_back(rolled_back: bool, left: list[str]) -> None:
    state = folded(CREATED, asks("a"), thread_event("run_cancelled", run_id="a", rolled_back=rolled_back))
    assert (texts(state), state.active) == (left, None)
    assert ("a" in state.runs) is not rolled_back


def test_a_thread_that_is_deleted_while_a_run_goes_on_takes_no_answer() -> None:
    state = folded(CREATED, asks("a"), thread_event("deleted"))
    assert (state.deleted, state.active, state.runs) == (True, None, {})
    assert refusal(state, ends("a")) == refusal(state, asks("b")) == "there is no such thread"
    again = folded(CREATED, asks("a"), thread_event("deleted"), ends("a"), CREATED)
    assert (again.deleted, texts(again)) == (False, [])


def test_a_run_of_no_thread_is_there_once() -> None:
    alone = asks("a", thread_id="a", stateless=True)
    state = folded(alone)
    assert (state.stateless, state.active) == (True, "a")
    assert refusal(state, alone) == "run a was requested already"


def test_a_thread_goes_on_from_an_earlier_state_and_the_later_ones_are_no_part_of_it() -> None:
    before = folded(CREATED, asks("a"), ends("a"))
    patched = thread_event("changed", event_id="c", checkpoint=ends("a").event_id, values='{"x": 1}')
    state = folded(CREATED, asks("a"), ends("a"), asks("b", "no"), ends("b", "no"), patched)
    assert (texts(state), state.values) == (texts(before), {"x": 1})
    assert refusal(before, dataclasses.replace(patched, checkpoint="nowhere")) == "the thread has no checkpoint nowhere"
    assert refusal(folded(CREATED, asks("a")), patched) == "the thread is busy with run a, whose messages would be lost"


def test_metadata_is_merged_and_makes_no_state_of_its_own() -> None:
    state = folded(CREATED, thread_event("changed", event_id="1", labels='{"a": 1}'))
    state = folded(CREATED, thread_event("changed", event_id="1", labels='{"a": 1}'), asks("a"))
    assert (dict(state.labels), len(list(state.head.line()))) == ({"a": 1}, 2)


def test_a_thread_for_one_agent_takes_no_run_of_another() -> None:
    state = folded(thread_event("created", agent_id="other"))
    assert refusal(state, asks("a")) == "the thread is for agent other alone"


KINDS = st.sampled_from(["ask", "enqueue", "interrupt", "end", "cancel", "roll back", "forget"])


@given(st.lists(st.tuples(KINDS, st.sampled_from("abc"))))
def test_one_run_is_in_progress_at_most_and_nothing_that_was_refused_changes_a_thread(
    steps: list[tuple[str, str]],
) -> None:
    state: ThreadState | None = folded(CREATED)
    for number, (step, run) in enumerate(steps):
        event = {
            "ask": asks(run),
            "enqueue": asks(run, if_busy="enqueue"),
            "interrupt": asks(run, if_busy="interrupt"),
            "end": ends(run),
            "cancel": thread_event("run_cancelled", run_id=run),
            "roll back": thread_event("run_cancelled", run_id=run, rolled_back=True),
            "forget": thread_event("run_deleted", run_id=run),
        }[step]
        event = dataclasses.replace(event, event_id=derive_id(number))
        before, state = state, fold(state, event)
        assert state is not None
        if refusal(before, event) is not None:
            assert state is before
        pending = [run_id for run_id, each in state.runs.items() if each.status == "pending"]
        in_progress = [] if state.active is None else [state.active]
        assert sorted(pending) == sorted([*in_progress, *state.waiting])
        assert state.active is not None or not state.waiting
