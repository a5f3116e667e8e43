"""What the recorder writes: a trajectory's beginning and end, and the turn of each answer."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from schemas.events import Message, TrajectoryEvent, Turn, derive_id
from schemas.serde import EncodeError
from schemas.tokens import Logprobs, TokenIds
from streams.engines.constraint import Constraint
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import CallError, EventError
from streams.kafka import times
from streams.stages.agents.recording.calls import Done, ModelCall, Token
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.runs.run_end import RunEnd
from streams.stages.agents.trajectories.chains import Placement

OTHER_BYTES = 16_384
"""More than a turn takes beside its texts and tokens: names, digests, numbers, reasons."""


class PreparedCall(NamedTuple):
    """A call that has a version and a prompt."""

    call: ModelCall
    conversation: Conversation
    placement: Placement
    known: TokenIds
    """The tokens of the turn it continues."""
    new: tuple[int, ...]
    """Behind those."""
    policy: str
    version: int
    turn_ids: tuple[str, ...]
    """One for each choice."""
    started_at: int
    constraint: Constraint | None
    """What `call.form` is for the engine."""
    prompt: tuple[int, ...]
    """The tokens that the engine gets: both."""

    def generation(self, choice: int) -> Generation:
        """Return what the engine is asked for a choice."""
        sampling, known = self.call.sampling, self.conversation
        key = self.turn_ids[0] if sampling.seed is None else str(sampling.seed)
        if sampling.seed is not None and known.began is not None:  # the seed of the task, and so of all its runs
            key = f"{key}/{known.slot}/{len(known.called)}"
        return Generation(
            prompt_token_ids=self.prompt,
            sampling=sampling,
            draw_key=key,
            slot=choice,
            version=self.version,
            constraint=self.constraint,
            conversation=known.trajectory_id,
        )


class Answered(NamedTuple):
    """What the client gets."""

    reply: Message
    malformed: str | None = None
    """Why a tool call in it cannot be read."""
    delivered: bool = True


def turn_of(
    prepared: PreparedCall, stream: TokenStream, answered: Answered, engine: TokenEngine, rendering: Rendering
) -> Turn:
    """Return the record of an answer, the next of its trajectory."""
    call, conversation, choice = prepared.call, prepared.conversation, stream.generation.slot
    reply = answered.reply
    parent = prepared.placement.parent
    ending = "tool_calls" if reply.tool_calls and stream.ending == "stop" else stream.ending
    return Turn(
        turn_id=prepared.turn_ids[choice],
        trajectory_id=conversation.trajectory_id,
        task_id=conversation.task_id,
        created_at=times.now_ms(),
        agent_id=call.agent_id,
        policy=prepared.policy,
        adapter_version=prepared.version,
        number=conversation.number,
        parent_id=None if parent is None else parent.turn_id,
        continuity=prepared.placement.continuity,
        reason=prepared.placement.reason,
        sampling_id=conversation.sampling_id,
        slot=conversation.slot,
        protocol=call.protocol,
        request_digest=call.request_digest,
        retry_key=call.retry_key,
        choice=choice,
        choices=call.count,
        started_at=prepared.started_at,
        engine=engine.name,
        base_digest=engine.base_digest,
        tokenizer_digest=rendering.tokenizer_digest,
        template_digest=rendering.template_digest,
        finish_reason=ending or "error",
        error=stream.error if stream.ending == "error" else None,
        constraint=None if call.form is None else str(call.form),
        prompt_tokens=len(prepared.prompt),
        observed=call.observed,
        reply=reply,
        malformed=answered.malformed,
        delivered=answered.delivered,
        sampling=call.sampling,
        prompt_token_ids=TokenIds.of(prepared.new),
        completion_token_ids=TokenIds.of(token for token, _ in stream.drawn),
        logprobs=Logprobs.of(logprob for _, logprob in stream.drawn),
        messages=prepared.placement.new,
        tools=call.tools if parent is None else (),
        ignored=call.ignored,
    )


def check_fits(prepared: PreparedCall, engine: TokenEngine, rendering: Rendering, writer: TurnWriter) -> None:
    """Raise CallError for a call whose turn is too large to be recorded even with an empty answer."""
    if prepared.call.form is None and _bytes_at_most(prepared) < writer.most_bytes:
        return  # as nearly all do, and to write it out takes longer
    unanswered = TokenStream(prepared.generation(0))
    unanswered.finish("length")
    try:
        empty = Answered(Message(role="assistant", content=""))
        writer.check(turn_of(prepared, unanswered, empty, engine, rendering))
    except (EventError, EncodeError) as exc:
        raise CallError("too_large", f"the turn cannot be recorded: {exc}") from exc


def _bytes_at_most(prepared: PreparedCall) -> int:
    """Return a number of bytes that the record of a call's turn cannot have, with an empty answer; no form is counted.

    A character takes 4 bytes at most, and so does a token; what else there is of a turn is short.
    """
    call, new = prepared.call, prepared.placement.new
    texts = [text for message in new for text in (message.content, message.name, message.tool_call_id)]
    made = [each for message in new for each in message.tool_calls]
    texts += [text for each in made for text in (each.id, each.name, each.arguments)]
    texts += [text for tool in call.tools for text in (tool.name, tool.description, tool.parameters)]
    texts += [call.retry_key, *call.sampling.stop, *call.ignored]
    texts += [] if call.observed is None else [call.observed.environment, call.observed.tool]
    return 4 * (sum(len(text) for text in texts if text) + len(texts) + len(prepared.new)) + OTHER_BYTES


def answered_as(call: ModelCall, began: TrajectoryEvent | None) -> ModelCall:
    """Return a call as it is answered in its run: a task says how its tokens are drawn, whatever the client asks.

    Texts that end an answer are the client's as well, since it may not be able to read a longer one.
    """
    if began is None or began.sampling is None:
        return call
    asked, drawn = call.sampling, began.sampling
    names = ("temperature", "top_p", "max_tokens", "seed")
    ignored = [name for name in names if getattr(asked, name) != getattr(drawn, name)]
    stop = tuple(dict.fromkeys((*drawn.stop, *asked.stop)))
    return replace(call, sampling=replace(drawn, stop=stop), ignored=tuple(dict.fromkeys((*call.ignored, *ignored))))


def done_of(turn: Turn, tokens: tuple[Token, ...], stop: str | None) -> Done:
    """Return the piece that says an answer is complete."""
    reason = turn.finish_reason
    return Done(
        choice=turn.choice,
        message=turn.reply,
        finish_reason=reason if reason in ("length", "tool_calls") else "stop",
        tokens=tokens,
        stop=stop if reason == "stop" else None,  # a call is what it ended with, whatever came behind that
        turn_id=turn.turn_id,
    )


def stop_text(turn: Turn, rendering: Rendering) -> str | None:
    """Return the stop text that ended a recorded answer, if its tokens show one."""
    behind = rendering.text(turn.completion_token_ids)[len(turn.reply.content) :]
    return next((text for text in turn.sampling.stop if text and behind.startswith(text)), None)


def fingerprint(base_digest: str, version: int) -> str:
    """Return what changes when the same seed may give another answer."""
    return f"fp_{base_digest[:10]}_{version}"


def started(known: Conversation, first: Turn) -> TrajectoryEvent:
    """Return the beginning of a trajectory whose first turn is `first`."""
    return TrajectoryEvent(
        event_id=derive_id(known.trajectory_id, "started"),
        trajectory_id=known.trajectory_id,
        task_id=known.task_id,
        created_at=first.started_at,
        kind="started",
        agent_id=known.agent_id,
        policy=first.policy,
        purpose=known.purpose,
        sampling_id=known.sampling_id,
        slot=known.slot,
        group_size=known.group_size,
        adapter_version=known.adapter_version,
        reason="its first call",
    )


def ended(known: Conversation, policy: str, end: RunEnd, now: int) -> TrajectoryEvent:
    """Return the end of a trajectory; of a task's run, with all that its response needs."""
    began = known.began
    return TrajectoryEvent(
        event_id=derive_id(known.trajectory_id, "ended"),
        trajectory_id=known.trajectory_id,
        task_id=known.task_id,
        created_at=now,
        traceparent=None if began is None else began.traceparent,
        metadata={} if began is None else began.metadata,
        kind="ended",
        agent_id=known.agent_id,
        policy=policy,
        purpose=known.purpose,
        sampling_id=known.sampling_id,
        slot=known.slot,
        group_size=known.group_size,
        adapter_version=known.adapter_version,
        ending=end.ending,
        turns=known.number,
        max_turns=None if began is None else began.max_turns,
        sampling=None if began is None else began.sampling,
        observed=end.observed,
        success=end.success,
        reason=end.reason,
    )
