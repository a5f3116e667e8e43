"""Record answers: the turn of each one, and before the first the beginning of its trajectory.

    PreparedCall, TokenStream, GivenReply ──► Turn ──► TurnWriter ──► acknowledged ──► Conversations

An answer that is not acknowledged within serve.acknowledge_s is not given: the call fails, and its retry finds the turn
if it reached the log after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from schemas import json_text
from schemas.conventions import FAILED_TOOLS, THREAD
from schemas.events import Event, Message, Turn
from schemas.serde import EncodeError
from schemas.tokens import Logprobs, TokenIds
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import AnswerOrigin, TokenStream
from streams.errors import CallError, EventError, LogError
from streams.kafka import times
from streams.stages.agents.recording.call_preparation import PreparedCall
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import Conversation, Conversations, request_of
from streams.stages.agents.recording.trajectory_events import start_of
from streams.stages.agents.recording.turn_writer import TurnWriter

OTHER_BYTES = 16_384
"""Upper bound for a turn without its texts and tokens: names, digests, numbers, reasons."""


class GivenReply(NamedTuple):
    """The answer as the client gets it."""

    message: Message
    malformed: str | None = None
    """Why a tool call in it cannot be read."""
    delivered: bool = True
    notes: Mapping[str, str] = MappingProxyType({})
    """Metadata of its turn that say what a guard changed."""


class TurnRecording:
    """Records the turns of one policy, in one event loop."""

    def __init__(
        self,
        engine: TokenEngine,
        rendering: Rendering,
        writer: TurnWriter,
        conversations: Conversations,
        acknowledge_s: float,
    ) -> None:
        self._engine, self._rendering, self._writer = engine, rendering, writer
        self._conversations, self._acknowledge_s = conversations, acknowledge_s
        self._unwritten: dict[tuple[str, str, str], set[asyncio.Future[None]]] = {}
        """Turns that the broker has not acknowledged, by `request_of`."""

    def check_fits(self, prepared: PreparedCall) -> None:
        """Raise CallError for a call whose turn is too large to be recorded even with an empty answer."""
        if (
            prepared.call.form is None
            and prepared.call.subject is None
            and _bytes_at_most(prepared) < self._writer.most_bytes
        ):
            return  # as nearly all do, and to write it out takes longer
        unanswered = TokenStream(prepared.generation(0))
        unanswered.finish("length")
        empty = GivenReply(Message(role="assistant", content=""))
        try:
            self._writer.check(turn_of(prepared, unanswered, empty, self._engine, self._rendering))
        except (EventError, EncodeError) as exc:
            raise CallError("too_large", f"the turn cannot be recorded: {exc}") from exc

    async def record_events(self, events: Sequence[Event], *, waits: bool) -> None:
        """Write the events of a guard about a call; with `waits` return once it is in the log. Raises CallError."""
        if not events:
            return
        written = asyncio.wrap_future(self._writer.write(*events))
        if waits:
            await asyncio.wait((written,), timeout=self._acknowledge_s)
            if not written.done() or written.exception() is not None:
                raise self._not_recorded()

    async def record(
        self, prepared: PreparedCall, stream: TokenStream, reply: GivenReply, events: Sequence[Event] = ()
    ) -> Turn:
        """Return the turn of an answer once it is in the log, after the events of its guard.

        Raises CallError if it is not within serve.acknowledge_s.
        """
        conversation = prepared.conversation
        turn = turn_of(prepared, stream, reply, self._engine, self._rendering)
        start = () if conversation.started else (start_of(conversation, turn),)
        try:
            written = asyncio.wrap_future(self._writer.write(*events, *start, turn))
        except (EventError, EncodeError) as exc:
            raise CallError("too_large", f"the turn cannot be recorded: {exc}") from exc
        conversation.started = True
        conversation.number += 1
        conversation.open_calls += 1
        self._conversations.by_id.setdefault(conversation.trajectory_id, conversation)
        self._watch(written, conversation, turn)
        await asyncio.wait((written,), timeout=self._acknowledge_s)
        if not written.done():
            raise self._not_recorded()
        problem = written.exception()
        if isinstance(problem, LogError):
            raise self._not_recorded() from problem
        if problem is not None:
            raise problem
        return turn

    async def wait_written(self, call: ModelCall) -> None:
        """Return once no turn of an earlier attempt is on its way to the log. Raises CallError."""
        unwritten = self._unwritten.get(request_of(call), set())
        if unwritten:
            _, waiting = await asyncio.wait(unwritten, timeout=self._acknowledge_s)
            if waiting:
                raise self._not_recorded()

    def _watch(self, written: asyncio.Future[None], conversation: Conversation, turn: Turn) -> None:
        """Take in a turn as soon as it is acknowledged, however long its client waits."""
        request = request_of(turn)
        unwritten = self._unwritten.setdefault(request, set())
        unwritten.add(written)

        def take(done: asyncio.Future[None]) -> None:
            conversation.open_calls -= 1
            unwritten.discard(done)
            if not unwritten and self._unwritten.get(request) is unwritten:
                del self._unwritten[request]
            if not done.cancelled() and done.exception() is None:
                self._conversations.take(turn)

        written.add_done_callback(take)

    def _not_recorded(self) -> CallError:
        text = f"the answer was not recorded within {self._acknowledge_s:g} s (serve.acknowledge_s)"
        return CallError("busy", f"{text}: the broker does not answer; try again")


def turn_of(
    prepared: PreparedCall, stream: TokenStream, reply: GivenReply, engine: TokenEngine, rendering: Rendering
) -> Turn:
    """Return the record of an answer, the next of its trajectory."""
    call, conversation, choice = prepared.call, prepared.conversation, stream.generation.slot
    origin = prepared.origin or AnswerOrigin()
    message, placement = reply.message, prepared.prompt.placement
    parent = placement.parent
    ending = "tool_calls" if message.tool_calls and stream.ending == "stop" else stream.ending
    return Turn(
        turn_id=prepared.turn_ids[choice],
        trajectory_id=conversation.trajectory_id,
        task_id=conversation.task_id,
        created_at=times.now_ms(),
        metadata=_metadata(call, placement.new) | dict(origin.notes) | dict(reply.notes),
        subject=conversation.subject_of(call),
        agent_id=call.agent_id,
        policy=prepared.policy,
        adapter_version=prepared.version,
        trained_batches=prepared.trained_batches,
        number=conversation.number,
        parent_id=None if parent is None else parent.turn_id,
        continuity=placement.continuity,
        reason=placement.reason,
        sampling_id=conversation.sampling_id,
        slot=conversation.slot,
        protocol=call.protocol,
        request_digest=call.request_digest,
        retry_key=call.retry_key,
        choice=choice,
        choices=call.count,
        started_at=prepared.started_at,
        engine=origin.engine or engine.name,
        base_digest=origin.base_digest or engine.base_digest,
        tokenizer_digest=rendering.tokenizer_digest,
        template_digest=rendering.template_digest,
        finish_reason=ending or "error",
        error=stream.error if stream.ending == "error" else None,
        constraint=None if call.form is None else str(call.form),
        prompt_tokens=len(prepared.tokens),
        observed=call.observed,
        prompt_version=None if call.prompt_version is None else str(call.prompt_version),
        prompt_alias=None if call.prompt_version is None else call.prompt_version.alias,
        reply=message,
        malformed=reply.malformed,
        delivered=reply.delivered,
        sampling=call.sampling,
        prompt_token_ids=TokenIds.of(prepared.prompt.new),
        completion_token_ids=TokenIds.of(token for token, _ in stream.drawn),
        logprobs=Logprobs.of(logprob for _, logprob in stream.drawn),
        messages=placement.new,
        tools=call.tools if parent is None else (),
        ignored=call.ignored,
    )


def _metadata(call: ModelCall, new: Sequence[Message]) -> dict[str, str]:
    """Return the metadata of a turn with these messages: its thread, and the new results that were sent as failed."""
    sent = {message.tool_call_id for message in new if message.role == "tool"}
    failed = [name for name in call.failed_tools if name in sent]
    thread = {} if call.thread is None else {THREAD: call.thread}
    return thread | ({FAILED_TOOLS: json_text.one_line(failed)} if failed else {})


def _bytes_at_most(prepared: PreparedCall) -> int:
    """Return an upper bound, in bytes, for the record of a call's turn with an empty answer, not counting its form. A
    character or a token takes at most 4 bytes; the other parts of a turn are short.
    """
    call, new = prepared.call, prepared.prompt.placement.new
    texts = [text for message in new for text in (message.content, message.name, message.tool_call_id)]
    tool_calls = [tool_call for message in new for tool_call in message.tool_calls]
    texts += [text for tool_call in tool_calls for text in (tool_call.id, tool_call.name, tool_call.arguments)]
    texts += [text for tool in call.tools for text in (tool.name, tool.description, tool.parameters)]
    texts += [call.retry_key, *call.sampling.stop, *call.ignored, *_metadata(call, new).values()]
    texts += [] if call.observed is None else [call.observed.environment, call.observed.tool]
    return 4 * (sum(len(text) for text in texts if text) + len(texts) + len(prepared.prompt.new)) + OTHER_BYTES
