"""Sample the answer to a prepared call, and pass on its text as it comes.

PreparedCall ──► engine, a row a choice ──► tokens ──► AnswerText ──► (guard) ──► Delta
                                              └──► at the end: reply, with its tool calls
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

from schemas.conventions import GIVEN_FINISH, REDACTED, WITHHELD
from schemas.events import Event, Message
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import TokenStream
from streams.errors import EventError, RefusedError
from streams.stages.agents.recording.answer_pieces import AnswerPieces
from streams.stages.agents.recording.call_guard import AnswerGuard, HeldAnswer
from streams.stages.agents.recording.call_preparation import PreparedCall
from streams.stages.agents.recording.calls import CallInProgress, Delta, ModelCall, Token

BROKEN = "\ufffd"


class AnswerText:
    """The text of an answer while it is sampled, without the part that may not be shown yet. Shown text is never taken
    back: text that may turn out to be the beginning of a stop text, or of a tool call's markup, waits for the tokens
    that decide it.
    """

    def __init__(self, text_of: Callable[[Sequence[int]], str], stop: Sequence[str], markers: Sequence[str]) -> None:
        """`text_of` decodes tokens; `markers` are the ways a tool call may begin, if the answer may hold any."""
        self._text_of, self._stop, self._markers = text_of, [text for text in stop if text], tuple(markers)
        self._tokens: list[int] = []
        self._start = self._read = 0
        self._text = ""
        self._published = 0

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that may be shown after these tokens."""
        self._tokens += tokens
        before = self._text_of(self._tokens[self._start : self._read])
        now = self._text_of(self._tokens[self._start :])
        if not now.endswith(BROKEN):
            self._text += now[len(before) :]
            self._start, self._read = self._read, len(self._tokens)
        return self._show(self._text, self._certain())

    @property
    def characters(self) -> int:
        """Characters of all tokens so far, shown or not; a broken one counts."""
        return len(self._text) + (self._read < len(self._tokens))

    def rest(self, whole: str) -> str:
        """Return the rest of the finished answer, which was not shown yet."""
        return self._show(whole, len(whole))

    def _certain(self) -> int:
        """Return up to where the text is certain to be shown."""
        text, end = self._text, len(self._text)
        for pattern in (*self._stop, *self._markers):
            place = text.find(pattern)
            if place >= 0:
                end = min(end, place)
                continue
            overlap = next((n for n in range(min(len(pattern) - 1, len(text)), 0, -1) if text.endswith(pattern[:n])), 0)
            end = min(end, len(text) - overlap)
        if self._markers:  # spaces before a call are no part of the answer
            end = min(end, len(text[:end].rstrip()))
        return end

    def _show(self, text: str, end: int) -> str:
        start, self._published = self._published, max(self._published, end)
        return text[start:end]


class SampledChoice:
    """One choice of a call while it is sampled: `publish` to the end, then `reply`, then `publish_rest`."""

    def __init__(
        self,
        prepared: PreparedCall,
        stream: TokenStream,
        rendering: Rendering,
        pieces: AnswerPieces,
        guard: AnswerGuard | None = None,
    ) -> None:
        self.stream, self.number = stream, stream.generation.slot
        self._call, self._turn_id = prepared.call, prepared.turn_ids[self.number]
        self._rendering, self._pieces = rendering, pieces
        self._tokens: list[Token] = []
        self._unsent: list[Token] = []
        """Tokens that no piece has carried yet."""
        markers = rendering.markers if _reads_calls(self._call) else ()
        self._text = AnswerText(rendering.text, self._call.sampling.stop, markers)
        # text may be held back, and its tokens with it; and logprobs are wanted with the text of their token
        self._one_by_one = bool(markers or self._call.sampling.stop or guard) or self._call.with_logprobs
        self._gate = None if guard is None else HeldAnswer(guard)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Every token so far."""
        return tuple(self._tokens)

    async def publish(self, progress: CallInProgress) -> None:
        """Publish the text as it is sampled; return when the engine is done, or the rest is withheld."""
        async with aclosing(self.stream.batches()) as batches:
            async for drawn in batches:
                for part in [[token] for token in drawn] if self._one_by_one else [drawn]:
                    tokens = self._pieces.tokens(part)
                    self._tokens += tokens
                    text = self._text.push(token for token, _ in part)
                    if self._gate is None:
                        self._unsent += tokens
                    else:
                        text, leaving = self._gate.push(text, self._text.characters, tokens)
                        self._unsent += leaving
                        if self._gate.guard.withheld is not None:
                            self.stream.cancel()
                            return
                    self._show(text, progress)

    def reply(self) -> tuple[Message, str | None]:
        """Return the answer as the client gets it, and why a tool call in it cannot be read."""
        tools = self._call.tools if _reads_calls(self._call) else ()
        drawn = tuple(token for token, _ in self.stream.drawn)
        message, malformed = self._rendering.parse(drawn, tools, self._turn_id, self.stream.stop)
        if self._call.form is None or message.content.startswith(self._rendering.markers):
            return message, malformed
        return message, None  # text of the schema: what looks like a call is in one of its strings

    async def pass_guard(self, reply: Message) -> tuple[Message, TokenStream, Sequence[Event]]:
        """Return the answer as its guard lets it leave, its tokens, and what the guard records."""
        if self._gate is None:
            return reply, self.stream, ()
        verdict = await self._gate.guard.finish(reply)
        if not self._gate.guard.has_changed:
            return reply, self.stream, verdict.events
        count = self._gate.cut(verdict.unchanged)
        self._tokens = self._tokens[:count]
        ended = TokenStream(self.stream.generation)
        for token, logprob in self.stream.drawn[:count]:
            ended.push(token, logprob)
        ended.finish("error" if self.stream.ending == "error" else "cancelled", error=self.stream.error)
        return verdict.reply, ended, verdict.events

    @property
    def guard_notes(self) -> dict[str, str]:
        """The metadata of its turn that say what its guard changed."""
        guard = None if self._gate is None else self._gate.guard
        if guard is None or not guard.has_changed:
            return {}
        if guard.withheld is not None:
            return {WITHHELD: guard.withheld}
        return {REDACTED: guard.redacted or "", GIVEN_FINISH: self.stream.ending or "stop"}

    def publish_rest(self, reply: Message, progress: CallInProgress) -> None:
        """Publish the text that was held back until the reply was known."""
        if self._gate is None:
            self._show(self._text.rest(reply.content), progress)
            return
        text, tokens = self._gate.rest(reply.content)
        self._unsent += tokens
        self._show(text, progress)

    def _show(self, text: str, progress: CallInProgress) -> None:
        if text:
            progress.publish(Delta(choice=self.number, text=text, tokens=tuple(self._unsent)))
            self._unsent.clear()


def begin_choices(prepared: PreparedCall, engine: TokenEngine) -> list[TokenStream]:
    """Begin every choice, or none. Raises EventError, RefusedError."""
    streams: list[TokenStream] = []
    try:
        for choice in range(prepared.call.count):
            streams.append(engine.submit(prepared.generation(choice)))
    except (EventError, RefusedError):
        for stream in streams:
            stream.cancel()
        raise
    return streams


def _reads_calls(call: ModelCall) -> bool:
    return bool(call.tools) and call.tool_choice == "auto"
