"""What a client answers to a run that waits: results of its own tools, and yes or no to calls that ask a person.

true, "yes" ─────────────► every call that waits for a decision        {call_id: "yes", other: "sunny"} ──► each
"sunny", {"degrees": 31} ─► the only call that waits for a result       role tool messages ──► each by its id
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plugins.threads.log.run_steps import CallStep
from plugins.threads.log.thread_log import Appended, run_event
from plugins.threads.log.thread_state import RunState, ThreadState
from schemas import json_text
from schemas.events import CallDecision, Message, ThreadEvent
from streams.errors import CallError

DECISIONS = {"yes": True, "no": False, True: True, False: False}
PARAMETER = "command.resume"


class ResumedCalls(NamedTuple):
    """Decisions and results, by their calls."""

    decisions: tuple[CallDecision, ...] = ()
    results: tuple[Message, ...] = ()

    def without(self, call_ids: Container[str]) -> tuple[ResumedCalls, dict[str, bool | str]]:
        """Return the answers to other calls, and those to these calls by their ids."""
        answers: dict[str, bool | str] = {one.call_id: one.allowed for one in self.decisions}
        answers |= {one.tool_call_id or "": one.content for one in self.results}
        decisions = tuple(one for one in self.decisions if one.call_id not in call_ids)
        results = tuple(one for one in self.results if one.tool_call_id not in call_ids)
        rest = {call_id: answer for call_id, answer in answers.items() if call_id in call_ids}
        return ResumedCalls(decisions, results), rest


def read_resumption(run: RunState, value: Any) -> ResumedCalls:
    """Return what a value answers of the calls that a run waits for. Raises CallError."""
    waiting = {step.call.id: step for step in run.waiting}
    if not waiting:
        raise CallError("conflict", f"run {run.run_id} waits for nothing: it is {run.status}", PARAMETER)
    if isinstance(value, Mapping) and value and value.keys() <= waiting.keys():
        return _join(_answer(waiting[call_id], answer) for call_id, answer in value.items())
    undecided = [step for step in waiting.values() if step.waits_for != "results"]
    if _decision(value) is not None and undecided:
        return _join(_answer(step, value) for step in undecided)
    if len(waiting) == 1:
        return _answer(run.waiting[0], value)
    names = ", ".join(waiting)
    raise CallError("invalid", f"{len(waiting)} calls wait; send an object with the answer to each: {names}", PARAMETER)


def resumption_of_messages(run: RunState, messages: Sequence[Message]) -> ResumedCalls | None:
    """Return the results in messages to a run that waits for them; None if they are a question."""
    waiting = {step.call.id for step in run.waiting}
    if not messages or any(message.role != "tool" or message.tool_call_id not in waiting for message in messages):
        return None
    return ResumedCalls((), tuple(messages))


def resumption_event(run: RunState, answered: ResumedCalls, actor: str, event_id: str | None = None) -> ThreadEvent:
    """Return the event that answers a run; `event_id`: of one that may be sent again."""
    name = event_id or str(uuid.uuid4())
    return run_event(run, "run_resumed", actor, event_id=name, decisions=answered.decisions, messages=answered.results)


def check_taken(outcome: Appended) -> ThreadState:
    """Return the thread of a run that took its answer. Raises CallError."""
    if outcome.refusal is not None or outcome.state is None:
        raise CallError("conflict", f"{outcome.refusal}; look at the run again", "command")
    return outcome.state


def _answer(step: CallStep, value: Any) -> ResumedCalls:
    """Return what a value answers to one call. Raises CallError."""
    call_id, decision = step.call.id, _decision(value)
    if step.waits_for == "remote":
        text = value if isinstance(value, str) else json_text.one_line(value)
        return ResumedCalls((CallDecision(call_id=call_id, allowed=True, answer=text),))
    if step.waits_for != "results" and decision is not None:
        return ResumedCalls((CallDecision(call_id=call_id, allowed=decision),))
    if step.waits_for == "consent":
        raise CallError("invalid", f"call {call_id} waits for consent; send yes or no", PARAMETER)
    text = value if isinstance(value, str) else json_text.one_line(value)
    return ResumedCalls((), (Message(role="tool", content=text, tool_call_id=call_id),))


def _decision(value: Any) -> bool | None:
    if isinstance(value, str):
        value = value.strip().lower()
    return DECISIONS.get(value) if isinstance(value, str | bool) else None


def _join(answers: Iterable[ResumedCalls]) -> ResumedCalls:
    parts = list(answers)
    decisions = tuple(decision for part in parts for decision in part.decisions)
    return ResumedCalls(decisions, tuple(result for part in parts for result in part.results))
