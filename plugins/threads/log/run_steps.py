"""The steps of a run: its answers with calls, the calls, their results, and what a person said, as a fold of events.

    run_answered: the model calls tools ──► CallStep of each call ──► call_begun ──► call_ended: a result
                                                 │ call_accepted: a task of another server answers it
                                                 │ run_paused: it waits for its client, or for a person
                                                 └─ run_resumed: results, or yes and no ──► as before

A run waits while one of its calls does. An event about a call that has its result changes nothing, so that two clients
cannot both answer it, and a server that repeats what it was doing when it was killed writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas.events import CallWait, Message, RunCall, ThreadEvent, ToolCall, derive_id

UNUSABLE = "failed"
"""The error of a call that its tool answered, but could not use."""
STEPS = ("run_answered", "call_begun", "call_accepted", "call_ended", "run_paused", "run_resumed")
"""Kinds of events between the request for a run and its end."""


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    """A message of a thread."""

    message_id: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStep:
    """A call of a run's newest answer."""

    call: ToolCall
    begun: int = 0
    """How often it was begun."""
    waits_for: CallWait | None = None
    allowed: bool | None = None
    """What a person decided; None: nothing yet."""
    decided_by: str | None = None
    """Who that was."""
    has_result: bool = False
    remote_task: str | None = None
    """The task of another server that answers it."""
    question: str | None = None
    """What its agent asks."""
    answer: str | None = None
    """The answer to its agent's newest question."""


class HandedAnswer(NamedTuple):
    """The answer of an agent that a run was handed to."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """What a run has done before its answer."""

    messages: tuple[ThreadMessage, ...] = ()
    """Answers with calls, and the results, in the order of their events."""
    turns: tuple[str, ...] = ()
    """Ids of the turns with those answers."""
    calls: tuple[CallStep, ...] = ()
    """Of the newest answer."""
    failed_tools: tuple[str, ...] = ()
    """Ids of the calls of all answers that failed."""
    made: tuple[RunCall, ...] = ()
    """The calls of all answers that were made and gave an answer, if only that the tool could not use them."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    resumptions: tuple[str, ...] = ()
    """Ids of the events that answered it."""
    pauses: int = 0
    """How often it waited."""
    paused_at: int = 0
    """How many messages it had when it waited last."""
    resumed_at: int | None = None
    """When a person or a client answered it last, ms; None: it never waited."""
    handoff: HandedAnswer | None = None
    """The first result that is the answer of the run."""

    @property
    def waiting(self) -> tuple[CallStep, ...]:
        """The calls that it waits for."""
        return tuple(call for call in self.calls if call.waits_for is not None)

    @property
    def open_calls(self) -> tuple[CallStep, ...]:
        """The calls without a result."""
        return tuple(call for call in self.calls if not call.has_result)


NO_STEPS = RunSteps()


class StepOutcome(NamedTuple):
    """The steps after an event, and the messages that it adds to the thread."""

    steps: RunSteps
    messages: tuple[ThreadMessage, ...] = ()


def messages_of(event: ThreadEvent) -> tuple[ThreadMessage, ...]:
    """Return the messages of an event, with their ids."""
    return tuple(
        ThreadMessage(derive_id(event.event_id, number), message) for number, message in enumerate(event.messages)
    )


def step_refusal(steps: RunSteps, event: ThreadEvent) -> str | None:
    """Return why an event changes nothing about a run in progress; None if it takes effect."""
    if event.kind == "run_answered":
        if event.turn_id in steps.turns:
            return f"turn {event.turn_id} of run {event.run_id} was recorded already"
        return f"run {event.run_id} has calls without results" if steps.open_calls else None
    by_id = {call.call.id: call for call in steps.open_calls}
    for call_id in _call_ids(event):
        call = by_id.get(call_id)
        if call is None:
            return f"run {event.run_id} has no call {call_id} without a result"
        if (event.kind == "run_resumed") != (call.waits_for is not None):
            return f"call {call_id} of run {event.run_id} waits for {call.waits_for or 'nothing'}"
        if event.kind == "call_begun" and event.call is not None and event.call.attempt != call.begun:
            return f"call {call_id} of run {event.run_id} was begun {call.begun} times"
    if event.kind == "run_resumed":
        return _resumption_problem(event, by_id)
    return None


def _resumption_problem(event: ThreadEvent, waiting: Mapping[str, CallStep]) -> str | None:
    if not event.decisions and not event.messages:
        return f"it answers no call that run {event.run_id} waits for"
    for decision in event.decisions:
        if waiting[decision.call_id].waits_for == "results":
            return f"call {decision.call_id} of run {event.run_id} waits for its result, not for a decision"
        if waiting[decision.call_id].waits_for == "remote" and decision.answer is None:
            return f"call {decision.call_id} of run {event.run_id} waits for an answer to its agent"
    for message in event.messages:
        if (wait := waiting[message.tool_call_id or ""].waits_for) in ("consent", "remote"):
            return f"call {message.tool_call_id} of run {event.run_id} waits for {wait}, and the server makes it"
    return None


def _call_ids(event: ThreadEvent) -> list[str]:
    """Return the ids of the calls that an event is about."""
    if event.call is not None:
        return [event.call.call_id]
    results = [message.tool_call_id or "" for message in event.messages]
    decisions = [decision.call_id for decision in event.decisions]
    return [*(wait.call_id for wait in event.waits), *decisions, *results]


def take_step(steps: RunSteps, event: ThreadEvent) -> StepOutcome:
    """Return the steps after an event that takes effect."""
    added = messages_of(event)
    steps = replace(steps, messages=(*steps.messages, *added))
    match event.kind:
        case "run_answered":
            steps = replace(
                steps,
                turns=(*steps.turns, event.turn_id or ""),
                calls=tuple(CallStep(call=call) for call in event.messages[0].tool_calls),
            )
            steps = count_tokens(steps, event)
        case "call_begun":
            steps = _with_call(steps, event, begun=1)
        case "call_accepted":
            steps = _with_call(steps, event)
        case "call_ended":
            steps = count_tokens(_with_call(steps, event, ended=True), event.call)
        case "run_paused":
            waits = {wait.call_id: wait for wait in event.waits}
            calls = (
                call
                if (wait := waits.get(call.call.id)) is None
                else replace(call, waits_for=wait.waits_for, question=wait.question)
                for call in steps.calls
            )
            steps = replace(steps, calls=tuple(calls), pauses=steps.pauses + 1, paused_at=len(steps.messages))
        case "run_resumed":
            steps = _resume(steps, event)
    return StepOutcome(steps, added)


def count_tokens(steps: RunSteps, counted: ThreadEvent | RunCall | None) -> RunSteps:
    """Return the steps with the tokens that an event, or the run of a child, counts."""
    read, sampled = (0, 0) if counted is None else (counted.prompt_tokens or 0, counted.completion_tokens or 0)
    return replace(steps, prompt_tokens=steps.prompt_tokens + read, completion_tokens=steps.completion_tokens + sampled)


def _with_call(steps: RunSteps, event: ThreadEvent, *, begun: int = 0, ended: bool = False) -> RunSteps:
    """Return the steps after an event of one call: the first of its id that has no result."""
    about = event.call
    calls, is_found = [], False
    for call in steps.calls:
        if about is not None and call.call.id == about.call_id and not call.has_result and not is_found:
            is_found = True
            allowed = None if begun else call.allowed  # a consent is for one attempt
            task = about.remote_task or call.remote_task
            call = replace(call, begun=call.begun + begun, allowed=allowed, has_result=ended, remote_task=task)
        calls.append(call)
    failed = (about.call_id,) if about is not None and ended and about.error is not None else ()
    handoff = steps.handoff
    if about is not None and about.handoff and ended and not failed and handoff is None:
        handoff = HandedAnswer(about.call_id, event.messages[0].content)
    has_answer = about is not None and ended and about.duration_ms is not None and about.error in (None, UNUSABLE)
    made = (*steps.made, about) if about is not None and has_answer and about.child_run is None else steps.made
    failed_tools = (*steps.failed_tools, *failed)
    return replace(steps, calls=tuple(calls), failed_tools=failed_tools, made=made, handoff=handoff)


def _resume(steps: RunSteps, event: ThreadEvent) -> RunSteps:
    decisions = {decision.call_id: decision for decision in event.decisions}
    results = {message.tool_call_id for message in event.messages}
    calls = []
    for call in steps.calls:
        if call.waits_for is not None and call.call.id in results:
            call = replace(call, waits_for=None, has_result=True)
        elif call.waits_for is not None and (decision := decisions.get(call.call.id)) is not None:
            call = replace(
                call, waits_for=None, allowed=decision.allowed, decided_by=event.actor, answer=decision.answer
            )
        calls.append(call)
    resumptions = (*steps.resumptions, event.event_id)
    return replace(steps, calls=tuple(calls), resumptions=resumptions, resumed_at=event.created_at)
