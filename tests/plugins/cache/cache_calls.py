"""A call that the cache answers, up to its record."""

from __future__ import annotations

from plugins.cache.answer_cache import AnswerCache
from schemas.events import Message, Turn
from schemas.tokens import Logprobs, TokenIds
from streams.engines.sampling_step import ServedCall
from streams.engines.token_stream import TokenStream
from streams.kafka import times
from tests.support import factories
from tests.support.served_calls import Answering, said


async def answer(step: AnswerCache, asked: ServedCall, engine: Answering) -> TokenStream:
    """Return the stream of a call once it is recorded."""
    [stream] = await step.begin(asked, engine.begin)
    async for _ in stream:
        pass
    origin = stream.origin
    turn = factories.turn(
        turn_id=asked.turn_id,
        agent_id=asked.agent_id,
        adapter_version=asked.version,
        metadata={} if origin is None else dict(origin.notes),
        finish_reason="stop",
        reply=Message(role="assistant", content=said(stream)),
        completion_token_ids=TokenIds.of(token for token, _ in stream.drawn),
        logprobs=Logprobs.of(logprob for _, logprob in stream.drawn),
        created_at=times.now_ms(),
    )
    assert isinstance(turn, Turn)
    step.note_ended(asked, [turn])
    return stream
