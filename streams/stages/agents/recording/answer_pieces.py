"""The pieces of an answer that a client gets, whether sampled now or recorded before.

PreparedCall ──► Begun         token, logprob ──► Token         Turn ──► Done
turns of an earlier try ──► recorded: Begun, Delta, Done
TextScores ──► PromptScores
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import cache
from typing import get_args

from schemas.conventions import GIVEN_FINISH, WITHHELD
from schemas.events import Turn
from streams.engines.protocol import TextScores, TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import ORIGIN, AnswerOrigin
from streams.stages.agents.recording.call_preparation import PreparedCall
from streams.stages.agents.recording.calls import (
    AnswerFinish,
    Begun,
    Delta,
    Done,
    ModelCall,
    Piece,
    PromptScores,
    Token,
)

_GIVEN: dict[str, AnswerFinish] = {reason: reason for reason in get_args(AnswerFinish)}


class AnswerPieces:
    """Makes pieces."""

    def __init__(self, engine: TokenEngine, rendering: Rendering) -> None:
        self._engine, self._rendering = engine, rendering
        self._text_of = cache(self._decode)

    def begun(self, prepared: PreparedCall) -> Begun:
        """Return the piece that says which version answers a call."""
        origin = prepared.origin or AnswerOrigin()
        return Begun(
            turn_id=prepared.turn_ids[0],
            trajectory_id=prepared.conversation.trajectory_id,
            model=f"{prepared.policy}@{prepared.version}",
            version=prepared.version,
            fingerprint=_fingerprint(origin.base_digest or self._engine.base_digest, prepared.version),
            prompt_tokens=len(prepared.tokens),
            cached_tokens=len(prepared.prompt.recorded),
            ignored=prepared.call.ignored,
            origin=origin.notes,
        )

    def tokens(self, drawn: Iterable[tuple[int, float]]) -> list[Token]:
        """Return tokens with their texts."""
        return [Token(token, *self._text_of(token), logprob) for token, logprob in drawn]

    def prompt_scores(self, model: str, version: int, ids: Sequence[int], scores: TextScores) -> PromptScores:
        """Return the scores of a text with the texts of its tokens."""
        return PromptScores(
            model=model,
            fingerprint=_fingerprint(self._engine.base_digest, version),
            tokens=tuple(self.tokens(zip(ids, (math.nan, *scores.logprobs), strict=True))),
            likeliest=tuple(tuple(self.tokens(place)) for place in scores.likeliest),
        )

    def done(self, call: ModelCall, turn: Turn, tokens: tuple[Token, ...], stop: str | None) -> Done:
        """Return the piece that says that an answer to `call` is complete. `stop`: the stop text that ended it."""
        reason = "content_filter" if WITHHELD in turn.metadata else turn.metadata.get(GIVEN_FINISH, turn.finish_reason)
        if reason == "stop" and turn.reply.tool_calls:
            reason = "tool_calls"
        if call.one_call is not None and stop == self._rendering.call_end:
            stop = None  # which the client did not name
        return Done(
            choice=turn.choice,
            message=turn.reply,
            finish_reason=_GIVEN.get(reason, "stop"),
            tokens=tokens,
            stop=stop if reason == "stop" else None,  # the answer ended with a call, whatever came after it
            turn_id=turn.turn_id,
        )

    async def recorded(self, call: ModelCall, turns: Mapping[int, Turn]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of an answer to `call` from its turns, by choice."""
        first = turns[0]
        version = first.adapter_version
        yield Begun(
            turn_id=first.turn_id,
            trajectory_id=first.trajectory_id,
            model=f"{first.policy}@{version}",
            version=version,
            fingerprint=_fingerprint(first.base_digest, version),
            prompt_tokens=first.prompt_tokens,
            cached_tokens=first.prompt_tokens - len(first.prompt_token_ids),
            ignored=first.ignored,
            origin={name: text for name, text in first.metadata.items() if name.startswith(ORIGIN)},
        )
        for choice, turn in sorted(turns.items()):
            tokens = tuple(self.tokens(zip(turn.completion_token_ids, turn.logprobs, strict=True)))
            if turn.reply.content:
                yield Delta(choice=choice, text=turn.reply.content, tokens=tokens)
            yield self.done(call, turn, tokens, self._stop_text(turn))

    def _stop_text(self, turn: Turn) -> str | None:
        """Return the stop text that ended a recorded answer, if its tokens show one."""
        rest = self._rendering.text(turn.completion_token_ids)[len(turn.reply.content) :]
        return next((text for text in turn.sampling.stop if text and rest.startswith(text)), None)

    def _decode(self, token: int) -> tuple[str, bytes]:
        data = self._rendering.token_bytes(token)
        return data.decode(errors="replace"), data


def _fingerprint(base_digest: str, version: int) -> str:
    """Return a fingerprint that changes when the same seed may give another answer."""
    return f"fp_{base_digest[:10]}_{version}"
