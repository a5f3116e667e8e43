"""The events of a run's stream, each with a position from which a client may rejoin.

    RunState, text so far ──► 0 metadata · 1 values · 2.N partial · 3 complete · 4 updates · 5 values · 6 error · 7 end

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
from plugins.threads.acp.thread_answers import message_answer, message_answers
from plugins.threads.log.thread_state import RunState, ThreadMessage
from schemas.events import Message, derive_id

DEFAULT_MODES = ("values",)
_PLACE = re.compile(r"([0-7])(?:\.([0-9]{1,12}))?")


class StreamPlace(NamedTuple):
    """Where an event is in the stream of its run."""

    step: int
    characters: int = 0

    def __str__(self) -> str:
        return f"{self.step}.{self.characters}" if self.characters else str(self.step)


BEFORE = StreamPlace(-1)


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
    return BEFORE if match is None else StreamPlace(int(match[1]), int(match[2] or 0))


def frames(run: RunState, text: str, modes: tuple[str, ...], after: StreamPlace) -> Iterator[Frame]:
    """Yield the events that a stream has so far after a place."""
    return (frame for frame in _frames(run, text, modes) if frame.place > after)


def _frames(run: RunState, text: str, modes: tuple[str, ...]) -> Iterator[Frame]:
    yield Frame(StreamPlace(0), "metadata", lambda: _metadata(run))
    if run.checkpoint is not None and "values" in modes:
        yield Frame(StreamPlace(1), "values", lambda: _values(run, ()))
    if run.status == "pending":
        if text and "messages" in modes:
            yield Frame(StreamPlace(2, len(text)), "messages/partial", lambda: [_partial(run, text)])
        return
    if run.answer:
        if "messages" in modes:
            yield Frame(StreamPlace(3), "messages/complete", lambda: _messages(run.answer))
        if "updates" in modes:
            yield Frame(StreamPlace(4), "updates", lambda: {run.agent_id: {"messages": _messages(run.answer)}})
        if "values" in modes:
            yield Frame(StreamPlace(5), "values", lambda: _values(run, run.answer))
    if run.status != "success":
        message = run.error or "the run was interrupted"
        yield Frame(StreamPlace(6), "error", lambda: {"error": run.status, "message": message})
    yield Frame(StreamPlace(7), "end", lambda: None)


def _metadata(run: RunState) -> dict[str, Any]:
    thread = {} if run.request.stateless else {"thread_id": id_of(run.thread_id)}
    return {"run_id": run.run_id, **thread}


def _values(run: RunState, answer: tuple[ThreadMessage, ...]) -> dict[str, Any]:
    if run.checkpoint is None:
        return {"messages": []}
    messages = (*run.checkpoint.messages(), *answer)
    return {**run.checkpoint.values, "messages": _messages(messages)}


def _messages(messages: tuple[ThreadMessage, ...]) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_unset=True) for message in message_answers(messages)]


def _partial(run: RunState, text: str) -> dict[str, Any]:
    """Return the answer so far; its id is that of the whole one."""
    message = ThreadMessage(derive_id(end_id(run), 0), Message(role="assistant", content=text))
    return message_answer(message).model_dump(exclude_unset=True)


def end_id(run: RunState) -> str:
    """Return the id of the event that says how a run ended."""
    return derive_id(run.thread_id, run.run_id, "run_ended")
