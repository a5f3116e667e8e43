"""The events of a run's stream, each with a position from which a client may rejoin.

    RunState, text so far ──► 0 metadata · 1 values · 2.N partial · 3 complete · 4 updates · 5 values · 6 error · 7 end
    the run's K-th message after the first: K-2.N partial · K-3 complete · K-4 updates · K-5 values
    it waits for an answer: K-5.1 values or updates with __interrupt__ · K-5.2 end; for the P-th time: K-5.2P

Events are derived from the log and the text being sampled, not stored: a restarted server, or another reader, produces
the same ones. A partial message has the whole text so far, and N is its length, so a reader that rejoins misses
nothing, even if the text had to be sampled again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from plugins.threads.acp.thread_access import id_of
from plugins.threads.acp.thread_answers import interrupts, message_answer, message_answers
from plugins.threads.log.run_steps import ThreadMessage
from plugins.threads.log.thread_state import RunState
from schemas.events import Message, derive_id

DEFAULT_MODES = ("values",)
_PLACE = re.compile(r"(?:([0-9]{1,9})-)?([0-7])(?:\.([0-9]{1,12}))?")
INTERRUPT = "__interrupt__"
"""What LangGraph calls the questions of a run that waits."""
TOOLS_NODE = "tools"
"""The node of LangGraph whose updates are results of tools."""


class StreamPlace(NamedTuple):
    """Where an event is in the stream of its run."""

    message: int
    """Which of the run's messages it is about, or follows."""
    step: int
    characters: int = 0

    def __str__(self) -> str:
        message = f"{self.message}-" if self.message else ""
        return f"{message}{self.step}" + (f".{self.characters}" if self.characters else "")


BEFORE = StreamPlace(0, -1)


class Frame(NamedTuple):
    """An event of a stream."""

    place: StreamPlace
    event: str
    data: Callable[[], Any]

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        text = json.dumps(self.data(), ensure_ascii=False, separators=(",", ":"))
        return f"id: {self.place}\nevent: {self.event}\ndata: {text}\n\n".encode()


def place_of(last_event_id: str | None) -> StreamPlace:
    """Return the place that a client has read up to; before the first event if its id is unknown."""
    match = _PLACE.fullmatch(last_event_id or "")
    return BEFORE if match is None else StreamPlace(int(match[1] or 0), int(match[2]), int(match[3] or 0))


def frames(run: RunState, text: str, modes: tuple[str, ...], after: StreamPlace) -> Iterator[Frame]:
    """Yield the events that a stream has so far after a place."""
    return (frame for frame in _frames(run, text, modes) if frame.place > after)


def resumed_place(run: RunState) -> StreamPlace:
    """Return the place that the stream of a run had reached when it waited last."""
    return StreamPlace(max(run.steps.paused_at - 1, 0), 5, 2 * run.steps.pauses)


def _frames(run: RunState, text: str, modes: tuple[str, ...]) -> Iterator[Frame]:
    yield metadata_frame(run)
    if run.checkpoint is not None and "values" in modes:
        yield Frame(StreamPlace(0, 1), "values", lambda: run_values(run, 0))
    for number, message in enumerate(run.messages):
        yield from _message_frames(run, number, message, modes)
    newest = _newest(run)
    if run.status == "pending":
        if text and "messages" in modes:
            number = len(run.messages)
            yield Frame(StreamPlace(number, 2, len(text)), "messages/partial", lambda: [_partial(run, text)])
        return
    if run.is_open:
        place = StreamPlace(newest, 5, 2 * run.steps.pauses - 1)
        if "values" in modes:
            yield Frame(place, "values", lambda: run_values(run))
        elif "updates" in modes:
            yield Frame(place, "updates", lambda: {INTERRUPT: interrupts(run)})
        yield Frame(StreamPlace(newest, 5, 2 * run.steps.pauses), "end", lambda: None)
        return
    if run.status != "success":
        error = run.error or "the run was interrupted"
        yield Frame(StreamPlace(newest, 6), "error", lambda: {"error": run.status, "message": error})
    yield Frame(StreamPlace(newest, 7), "end", lambda: None)


def _newest(run: RunState) -> int:
    return max(len(run.messages) - 1, 0)


def _message_frames(run: RunState, number: int, message: ThreadMessage, modes: tuple[str, ...]) -> Iterator[Frame]:
    if "messages" in modes:
        yield Frame(StreamPlace(number, 3), "messages/complete", lambda: _messages((message,)))
    if "updates" in modes:
        node = TOOLS_NODE if message.message.role == "tool" else run.agent_id
        yield Frame(StreamPlace(number, 4), "updates", lambda: {node: {"messages": _messages((message,))}})
    if "values" in modes:
        yield Frame(StreamPlace(number, 5), "values", lambda: run_values(run, number + 1))


def metadata_frame(run: RunState) -> Frame:
    """Return the first event of a stream."""
    return Frame(StreamPlace(0, 0), "metadata", lambda: _metadata(run))


def _metadata(run: RunState) -> dict[str, Any]:
    thread = {} if run.request.stateless else {"thread_id": id_of(run.thread_id)}
    return {"run_id": run.run_id, **thread}


def run_values(run: RunState, count: int | None = None) -> dict[str, Any]:
    """Return the values of a run's thread after `count` of its messages; after all, with what it waits for."""
    if run.checkpoint is None:
        return {"messages": []}
    messages = (*run.checkpoint.messages(), *run.messages[:count])
    waits = {INTERRUPT: interrupts(run)} if count is None and run.waiting else {}
    return {**run.checkpoint.values, "messages": _messages(messages), **waits}


def _messages(messages: tuple[ThreadMessage, ...]) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_unset=True) for message in message_answers(messages)]


def _partial(run: RunState, text: str) -> dict[str, Any]:
    """Return the answer so far; its id is that of the whole one, if it calls no tools."""
    message = ThreadMessage(derive_id(end_id(run), 0), Message(role="assistant", content=text))
    return message_answer(message).model_dump(exclude_unset=True)


def end_id(run: RunState) -> str:
    """Return the id of the event that says how a run ended."""
    return derive_id(run.thread_id, run.run_id, "run_ended")
