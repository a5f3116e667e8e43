"""Runs as A2A has them: a task, and the events of its stream.

    RunState, text so far ──► task · status update · artifact update, of what the client has not got yet

An event is made from the log and the text that is being sampled, not kept. The answer is one artifact, whose id is the
same while it is sampled, when it is whole, and after the text had to be sampled again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from plugins.agents.registry.agent_log import object_of
from plugins.threads.a2a.task_bodies import TaskState
from plugins.threads.acp.run_frames import end_id
from plugins.threads.acp.thread_access import id_of
from plugins.threads.acp.thread_answers import required_calls
from plugins.threads.log.run_steps import ThreadMessage
from plugins.threads.log.thread_state import RunState, RunStatus
from schemas.events import derive_id
from streams.output import moment

ENDINGS: dict[RunStatus, TaskState] = {
    "success": "TASK_STATE_COMPLETED",
    "error": "TASK_STATE_FAILED",
    "timeout": "TASK_STATE_FAILED",
    "interrupted": "TASK_STATE_CANCELED",
}


class SentState(NamedTuple):
    """What a client has got of a task."""

    state: TaskState
    text: str
    messages: int
    """How many of its steps' messages."""


def task_state(run: RunState) -> TaskState:
    """Return the state of a task."""
    if run.waiting:
        return "TASK_STATE_INPUT_REQUIRED"
    if run.is_open:
        return "TASK_STATE_SUBMITTED" if run.checkpoint is None else "TASK_STATE_WORKING"
    return ENDINGS[run.status]


def task_answer(
    run: RunState, text: str = "", *, history_length: int | None = None, artifacts: bool = True
) -> dict[str, Any]:
    """Return a task; `text`: what was sampled so far."""
    task: dict[str, Any] = {"id": run.run_id, "contextId": id_of(run.thread_id), "status": _status(run)}
    text = _answer_text(run, text)
    if artifacts and text:
        task["artifacts"] = [_artifact(run, text)]
    history = _history(run)
    if history_length is not None:
        history = history[-history_length:] if history_length else []
    if history:
        task["history"] = history
    if metadata := object_of(run.request.labels):
        task["metadata"] = metadata
    return task


def new_events(
    run: RunState, text: str, sent: SentState | None, history_length: int | None
) -> tuple[list[dict[str, Any]], SentState]:
    """Return what a client has not got yet of a task, and what it has got then; None: nothing yet."""
    state, text, steps = task_state(run), _answer_text(run, text), run.steps.messages
    if sent is None:
        task = {"task": task_answer(run, text, history_length=history_length)}
        return [task], SentState(state, text, len(steps))
    events: list[dict[str, Any]] = []
    names = {"taskId": run.run_id, "contextId": id_of(run.thread_id)}
    is_ended, continues = not run.is_open, text.startswith(sent.text)
    for step in steps[sent.messages :]:
        status = {"state": "TASK_STATE_WORKING", "timestamp": moment(run.updated_at), "message": _step(run, step)}
        events.append({"statusUpdate": {**names, "status": status}})
    if state != sent.state and not is_ended:
        events.append({"statusUpdate": {**names, "status": _status(run)}})
    if sent.text.startswith(text):  # nothing new, or it is being sampled again
        text = sent.text
    else:
        is_more = bool(sent.text) and continues
        artifact = _artifact(run, text[len(sent.text) :] if is_more else text)
        events.append({"artifactUpdate": {**names, "artifact": artifact, "append": is_more, "lastChunk": is_ended}})
    if is_ended:
        events.append({"statusUpdate": {**names, "status": _status(run)}})
    return events, SentState(state, text, len(steps))


def _answer_text(run: RunState, text: str) -> str:
    """Return the answer: what the log has of it, or what was sampled so far."""
    return text if run.is_open else "".join(each.message.content for each in run.answer)


def _artifact(run: RunState, text: str) -> dict[str, Any]:
    return {"artifactId": derive_id(end_id(run), 0), "name": "answer", "parts": [{"text": text}]}


def _history(run: RunState) -> list[dict[str, Any]]:
    """Return the messages that the task was made with, as their senders know them."""
    sent_id = run.order.get("message_id")
    return [
        _message(run, sent_id or derive_id(run.request.event_id, number), "ROLE_USER", message.content)
        for number, message in enumerate(run.request.messages)
        if message.role == "user"
    ]


def _status(run: RunState) -> dict[str, Any]:
    status: dict[str, Any] = {"state": task_state(run), "timestamp": moment(run.updated_at)}
    if run.error is not None:
        status["message"] = _message(run, derive_id(end_id(run), "error"), "ROLE_AGENT", run.error)
    elif run.waiting:
        calls = required_calls(run)
        text = "; ".join(call.question or f"{call.name} waits for {call.waits_for}" for call in calls)
        message = _message(run, derive_id(end_id(run), "waits", run.steps.pauses), "ROLE_AGENT", text)
        message["parts"].append({"data": {"calls": [call.model_dump(exclude_unset=True) for call in calls]}})
        status["message"] = message
    return status


def _step(run: RunState, step: ThreadMessage) -> dict[str, Any]:
    """Return a call, or the result of one, as a message."""
    sent = step.message
    calls = [f"{call.name}({call.arguments})" for call in sent.tool_calls]
    return _message(run, step.message_id, "ROLE_AGENT", "\n".join(filter(None, [sent.content, *calls])))


def _message(run: RunState, message_id: str, role: str, text: str) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "contextId": id_of(run.thread_id),
        "taskId": run.run_id,
        "role": role,
        "parts": [{"text": text}],
    }
