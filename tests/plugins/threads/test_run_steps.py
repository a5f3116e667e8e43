"""The steps of a run as the fold of their events: each call has one result, and the run waits while a call does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plugins.threads.acp.resumption import read_resumption, resumption_of_messages
from plugins.threads.log.thread_state import ThreadState, fold, refusal
from schemas.events import (
    CallDecision,
    CallWait,
    Message,
    PausedCall,
    RunCall,
    ThreadEvent,
    ToolCall,
    derive_id,
    problems,
)
from streams.errors import CallError
from tests.support.factories import thread_event

CREATED, ASKED = thread_event("created"), thread_event("run_requested")


def answered(*calls: str, turn: str = "turn 0") -> ThreadEvent:
    made = tuple(ToolCall(id=call, name="add", arguments="{}") for call in calls)
    message = Message(role="assistant", content="", tool_calls=made)
    fields = {"turn_id": turn, "messages": (message,), "prompt_tokens": 3, "completion_tokens": 2}
    return thread_event("run_answered", event_id=derive_id("t", "r", "run_answered", turn), **fields)


def about(kind: Any, call: str, attempt: int = 0, turn: str = "turn 0", **changes: Any) -> ThreadEvent:
    made = RunCall(call_id=call, tool_id="add", arguments="{}", attempt=attempt, **changes)
    names = (kind, turn, call, attempt) if kind == "call_begun" else (kind, turn, call)
    results = () if kind == "call_begun" else (Message(role="tool", content="11", tool_call_id=call),)
    fields: dict[str, Any] = {"turn_id": turn, "call": made, "messages": results}
    return thread_event(kind, event_id=derive_id("t", "r", *names), **fields)


def paused(turn: str = "turn 0", **waits: CallWait) -> ThreadEvent:
    calls = tuple(PausedCall(call_id=call, waits_for=wait) for call, wait in waits.items())
    return thread_event("run_paused", event_id=derive_id(turn, *waits.items()), turn_id=turn, waits=calls)


def resumed(results: dict[str, str] | None = None, **decisions: bool) -> ThreadEvent:
    made = tuple(CallDecision(call_id=call, allowed=allowed) for call, allowed in decisions.items())
    messages = tuple(
        Message(role="tool", content=content, tool_call_id=call) for call, content in (results or {}).items()
    )
    name = derive_id(*decisions.items(), *(results or {}))
    return thread_event("run_resumed", event_id=name, decisions=made, messages=messages)


def folded(*events: ThreadEvent) -> ThreadState:
    state: ThreadState | None = None
    for event in (CREATED, ASKED, *events):
        assert next(problems(event), None) is None
        assert refusal(state, event) is None, event
        state = fold(state, event)
    assert state is not None
    return state


def texts(state: ThreadState) -> list[str]:
    return [message.message.content for message in state.messages]


def test_the_results_of_calls_join_the_thread_in_the_order_of_their_events() -> None:
    state = folded(answered("a"), about("call_begun", "a"), about("call_ended", "a"))
    run = state.runs["r"]
    assert texts(state) == ["1 + 1 =", "", "11"]
    assert (state.status, run.status, run.steps.open_calls) == ("busy", "pending", ())
    assert (run.steps.prompt_tokens, run.steps.completion_tokens) == (3, 2)
    ended = folded(
        answered("a"), about("call_begun", "a"), about("call_ended", "a", error="failed"), thread_event("run_ended")
    )
    assert (texts(ended)[-1], ended.runs["r"].steps.failed_tools, ended.status) == ("2", ("a",), "idle")


def test_a_run_waits_until_each_of_its_waiting_calls_was_answered() -> None:
    waits = (answered("a", "b"), paused(a="results", b="consent"))
    assert (folded(*waits).status, folded(*waits).runs["r"].status) == ("interrupted", "interrupted")
    half = folded(*waits, resumed({"a": "sunny"}))
    assert (half.runs["r"].status, texts(half)[-1]) == ("interrupted", "sunny")
    whole = folded(*waits, resumed({"a": "sunny"}), resumed(b=True))
    [call] = whole.runs["r"].steps.open_calls
    assert (whole.runs["r"].status, call.call.id, call.allowed) == ("pending", "b", True)


BEGUN = (answered("a"), about("call_begun", "a"))
WAITS = (answered("a", "b"), paused(a="results", b="consent"))


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        (BEGUN, about("call_begun", "a"), "was begun 1 times"),
        ((*BEGUN, about("call_ended", "a")), about("call_ended", "a"), "has no call a without a result"),
        (BEGUN, answered("b", turn="turn 1"), "has calls without results"),
        (BEGUN, answered("a"), "was recorded already"),
        (BEGUN, resumed(a=True), "waits for nothing"),
        (WAITS, about("call_begun", "a"), "waits for results"),
        (WAITS, resumed(a=True), "waits for its result"),
        (WAITS, resumed({"b": "booked"}), "waits for consent"),
        (WAITS, resumed(), "answers no call"),
        ((*WAITS, resumed(b=False)), resumed(b=True), "waits for nothing"),
        ((*BEGUN, thread_event("run_cancelled")), about("call_ended", "a"), "is not in progress"),
    ],
)
def test_an_event_that_came_too_late_changes_nothing(
    before: tuple[ThreadEvent, ...], event: ThreadEvent, why: str
) -> None:
    state = folded(*before)
    assert why in (refusal(state, event) or "")
    assert fold(state, event) is state


def test_a_consent_is_for_one_attempt() -> None:
    state = folded(answered("a"), paused(a="consent"), resumed(a=True), about("call_begun", "a"))
    [call] = state.runs["r"].steps.open_calls
    assert (call.begun, call.allowed) == (1, None)


def test_a_run_that_is_rolled_back_takes_its_steps_with_it() -> None:
    cancelled = thread_event("run_cancelled", rolled_back=True)
    assert texts(folded(*BEGUN, about("call_ended", "a"), cancelled)) == []


def test_a_person_answers_by_yes_and_no_and_a_client_by_the_call() -> None:
    run = folded(*WAITS).runs["r"]
    assert read_resumption(run, "Yes").decisions == (CallDecision(call_id="b", allowed=True),)
    both = read_resumption(run, {"a": {"degrees": 31}, "b": False})
    assert both.decisions == (CallDecision(call_id="b", allowed=False),)
    assert [(result.tool_call_id, result.content) for result in both.results] == [("a", '{"degrees": 31}')]
    assert resumption_of_messages(run, (Message(role="user", content="and?"),)) is None
    for wrong in ("sunny", {"b": "sunny"}, {"c": "yes"}):
        with pytest.raises(CallError):
            read_resumption(run, wrong)
    cancelled = folded(*WAITS, thread_event("run_cancelled")).runs["r"]
    with pytest.raises(CallError, match="waits for nothing"):
        read_resumption(cancelled, "yes")
    alone = folded(answered("a"), paused(a="results")).runs["r"]
    assert read_resumption(alone, "yes").results[0].content == "yes"


@pytest.mark.parametrize(
    "event",
    [
        replace(answered("a"), turn_id=None),
        replace(answered("a"), prompt_tokens=None),
        replace(about("call_begun", "a"), call=None),
        replace(paused(a="consent"), waits=()),
        thread_event("run_ended", decisions=(CallDecision(call_id="a", allowed=True),)),
        replace(about("call_begun", "a"), run_id=None),
    ],
)
def test_a_step_that_is_incomplete_is_refused(event: ThreadEvent) -> None:
    assert next(problems(event), None) is not None
