"""Answer the calls of agents with the version in force, and record each before its answer ends.

    ModelCall ──► the turn it continues ──► recorded tokens + rendering of the new messages ──► engine, a row a choice
                                                                                                   │
    Done ◄── the broker has acknowledged the turn ◄── Turn ◄── text, tool calls ◄── tokens ◄───────┘ ──► Delta

What the log has is never rendered or tokenized again: the prompt of a call begins with the tokens of the turn that its
history ends with. A call whose body was answered before, sent again as a retry, gets the same answer, or shares the one
in progress if it has a key of its client. If every reader of an answer leaves, its rows are cancelled, and the turn is
recorded as not delivered.

An answer that cannot be recorded within serve.acknowledge_s is not given: the call fails, and its retry finds the turn
if it reached the log after all. One server belongs to one agent at a time: two on the same log would give the same
number to turns of the same trajectory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from functools import cache

from schemas.conventions import RatedAnswer
from schemas.events import Message, Turn, derive_id
from schemas.serde import EncodeError
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.token_stream import TokenStream
from streams.errors import CallError, CallErrorKind, EventError, LogError, RefusedError
from streams.kafka import times
from streams.settings.model import Serve
from streams.stages.agents.recording.answer_constraint import compiled
from streams.stages.agents.recording.answer_text import AnswerText
from streams.stages.agents.recording.call_prompts import CallPrompts
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece, ServedModel, Token
from streams.stages.agents.recording.calls_in_progress import CallInProgress
from streams.stages.agents.recording.conversations import Conversation, Conversations, has_key, request_of
from streams.stages.agents.recording.served_versions import PolicyVersions
from streams.stages.agents.recording.task_runs import TaskRuns
from streams.stages.agents.recording.turn_events import (
    Answered,
    PreparedCall,
    answered_as,
    check_fits,
    done_of,
    fingerprint,
    started,
    stop_text,
    turn_of,
)
from streams.stages.agents.recording.turn_writer import TurnWriter

log = logging.getLogger("streamward.agents")


class Recorder:
    """Answers calls. All of it runs in one event loop."""

    def __init__(
        self,
        rule: Serve,
        engine: TokenEngine,
        rendering: Rendering,
        versions: PolicyVersions,
        writer: TurnWriter,
        conversations: Conversations,
    ) -> None:
        self._rule, self._engine, self._rendering = rule, engine, rendering
        self._versions, self._writer, self._conversations = versions, writer, conversations
        self._in_progress: dict[tuple[str | None, tuple[str, str, str]], CallInProgress] = {}
        """Calls with a key of their client, by trajectory in the path, and `request_of`."""
        self._readers: Counter[tuple[str | None, tuple[str, str, str]]] = Counter()
        """How many read an answer now, by the same."""
        self._unwritten: dict[tuple[str, str, str], set[asyncio.Future[None]]] = {}
        """What the broker has not acknowledged, by `request_of`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._prompts = CallPrompts(engine, rendering)
        self._said = cache(self._say)
        self._nonce, self._begun = uuid.uuid4().hex, itertools.count()
        self.runs = TaskRuns(rule, versions, writer, conversations)

    # --- what protocols ask -------------------------------------------------------------------------------------------

    async def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first. Raises CallError, before the first piece if the call cannot begin."""
        key, keyed = (call.trajectory_id, request_of(call)), has_key(call)
        shared = self._in_progress.get(key) if keyed else None
        turns: Mapping[int, Turn] | None = None
        if call.retry_key is not None and shared is None and (keyed or not self._readers[key]):
            await self._written(call)
            turns = self._conversations.answered(call, times.now_ms())
        if turns is not None:
            pieces = self._again(turns)
        else:
            if shared is None or shared.abandoned:
                shared = self._begin(call, key)
            pieces = shared.pieces()
        self._readers[key] += 1
        try:
            async for piece in pieces:
                yield piece
            if isinstance(piece, Done):
                self._conversations.given(call, piece.turn_id)
        finally:
            self._readers -= Counter((key,))  # which drops those at 0
            await pieces.aclose()  # now, not when it is collected: who has left must be known at once

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""
        prompt = await self._prompts.of(call, self._conversations.continued_by(call))
        return len(prompt.known) + len(prompt.new)

    async def conversation(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a recorded turn, its answer included; None if there is no such turn."""
        return self._conversations.messages(turn_id)

    async def agent_of(self, name: str) -> str | None:
        """Return whose a turn or a trajectory is; None if there is none of this id."""
        return self._conversations.agent_of(name)

    async def rated(self, answer_id: str, choice: int | None) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""
        return self._conversations.rated(answer_id, choice, self._versions.policy)

    def models(self) -> list[ServedModel]:
        """Return what can be asked for, the policy itself first."""
        router, policy = self._versions.router, self._versions.policy
        known = router.adapters.versions
        each = [
            ServedModel(f"{policy}@{number}", number, known[number].created_at, status)
            for number, status in sorted(router.statuses.items())
            if status != "retired"
        ]
        primary = router.primary
        return [ServedModel(policy, primary, known[primary].created_at, "primary"), *each]

    @property
    def calls_in_progress(self) -> int:
        """How many calls are being answered."""
        return len(self._tasks)

    def has(self, trajectory_id: str) -> bool:
        """Return whether a trajectory is remembered."""
        return trajectory_id in self._conversations.by_id

    async def close(self) -> None:
        """Return once no call is in progress any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._prompts.close()

    # --- one call -----------------------------------------------------------------------------------------------------

    def _begin(self, call: ModelCall, key: tuple[str | None, tuple[str, str, str]]) -> CallInProgress:
        if len(self._tasks) >= self._rule.max_calls:
            raise CallError("busy", f"{len(self._tasks)} calls are in progress (serve.max_calls); try again")
        if (waits_s := self._writer.waits_s) > self._rule.acknowledge_s:
            raise CallError("busy", f"the broker has acknowledged nothing for {waits_s:.0f} s; try again")
        streams: list[TokenStream] = []

        def abandon() -> None:
            for stream in streams:
                stream.cancel()

        progress = CallInProgress(abandon)
        if has_key(call):
            self._in_progress[key] = progress
        task = asyncio.create_task(self._run(call, progress, streams))
        self._tasks.add(task)

        def over(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if self._in_progress.get(key) is progress:
                del self._in_progress[key]

        task.add_done_callback(over)
        return progress

    async def _run(self, call: ModelCall, progress: CallInProgress, streams: list[TokenStream]) -> None:
        """Answer `call` into `progress`, whatever happens."""
        conversation: Conversation | None = None
        try:
            prepared = await self._prepare(call)
            conversation = prepared.conversation
            conversation.in_progress.add(progress)
            streams += await self._submit(prepared)
            if progress.abandoned:
                for stream in streams:
                    stream.cancel()
            progress.publish(self._begun_piece(prepared))
            if len(streams) == 1:
                await self._choose(prepared, streams[0], progress)
            else:
                each = [self._choose(prepared, stream, progress) for stream in streams]
                for failed in await asyncio.gather(*each, return_exceptions=True):
                    if isinstance(failed, BaseException):
                        raise failed
            progress.finish()
        except CallError as exc:
            progress.finish(exc)
        except Exception as exc:  # a template, a tokenizer, a model: whatever is inside them
            log.exception("a call of agent %s failed", call.agent_id)
            progress.finish(CallError("internal", f"{type(exc).__name__}: {exc}"))
        finally:
            if conversation is not None:
                conversation.open_calls -= 1
                conversation.in_progress.discard(progress)
                if not streams:  # it was refused: nothing of it will be in the log
                    conversation.called.discard(prepared.turn_ids[0])

    async def _prepare(self, call: ModelCall) -> PreparedCall:
        """Find version, place and prompt of a call. Raises CallError."""
        if call.logprobs:
            what = "alternatives to the sampled tokens are not kept; ask for logprobs alone"
            raise CallError("unsupported", what, "top_logprobs" if call.protocol == "chat" else "logprobs")
        constraint = await compiled(call, self._engine, self._rendering)
        known, started_at = self._conversations.continued_by(call), times.now_ms()
        conversation = self._opened(call, started_at) if known is None else known
        call = answered_as(call, conversation.began)
        beginning = conversation.trajectory_id, call.request_digest, self._nonce, next(self._begun)
        turn_ids = tuple(derive_id(*beginning, choice) for choice in range(call.count))
        conversation.open_calls += 1  # from here on nobody ends or forgets it
        try:
            version = self._versions.version_for(call.model, conversation.task_id, conversation.adapter_version)
            await self._load(version)
            prompt = await self._prompts.of(call, conversation)
            conversation.check_open()
        except BaseException:
            conversation.open_calls -= 1
            raise
        conversation.called.add(turn_ids[0])
        policy, tokens = self._versions.policy, (*prompt.known, *prompt.new)
        return PreparedCall(call, conversation, *prompt, policy, version, turn_ids, started_at, constraint, tokens)

    async def _load(self, version: int) -> None:
        """Return once the engine has a version. Raises CallError."""
        if self._versions.use(version):
            return
        try:
            await asyncio.to_thread(self._versions.load, version)
        except EventError as exc:
            kind: CallErrorKind = "busy" if exc.reason == "store_unreachable" else "invalid"
            raise CallError(kind, str(exc), "model") from exc

    def _opened(self, call: ModelCall, now: int) -> Conversation:
        """Return a new trajectory for a call; it is remembered once its first turn is recorded."""
        name = call.trajectory_id or derive_id("trajectory", call.agent_id, self._nonce, next(self._begun))
        conversation = Conversation(name, name, call.agent_id, now, now)
        if call.trajectory_id is not None:
            self._conversations.by_id[name] = conversation  # a call beside this one is of the same
        return conversation

    async def _submit(self, prepared: PreparedCall) -> list[TokenStream]:
        """Have the engine begin, and load the version again if it was unloaded meanwhile. Raises CallError."""
        check_fits(prepared, self._engine, self._rendering, self._writer)
        for again in (True, False):
            try:
                return self._begin_choices(prepared)
            except EventError as exc:
                if exc.reason != "unknown_version" or not again:
                    where = "messages" if prepared.call.messages else "prompt"
                    raise CallError("invalid", str(exc), where) from exc
            except RefusedError as exc:
                raise CallError("busy", f"{exc}; try again") from exc
            await self._load(prepared.version)
        raise AssertionError("not reached")

    def _begin_choices(self, prepared: PreparedCall) -> list[TokenStream]:
        """Begin every choice, or none. Raises EventError, RefusedError."""
        streams: list[TokenStream] = []
        try:
            for slot in range(prepared.call.count):
                streams.append(self._engine.submit(prepared.generation(slot)))
        except (EventError, RefusedError):
            for stream in streams:
                stream.cancel()
            raise
        return streams

    def _begun_piece(self, prepared: PreparedCall) -> Begun:
        version, engine = prepared.version, self._engine
        return Begun(
            turn_id=prepared.turn_ids[0],
            trajectory_id=prepared.conversation.trajectory_id,
            model=f"{self._versions.policy}@{version}",
            version=version,
            fingerprint=fingerprint(engine.base_digest, version),
            prompt_tokens=len(prepared.prompt),
            cached_tokens=len(prepared.known),
            ignored=prepared.call.ignored,
        )

    # --- one choice ---------------------------------------------------------------------------------------------------

    async def _choose(self, prepared: PreparedCall, stream: TokenStream, progress: CallInProgress) -> None:
        """Pass on one answer as it is sampled, and record it. Raises CallError."""
        call, choice = prepared.call, stream.generation.slot
        markers = self._rendering.markers if self._calls_are_read(call) else ()
        shown, unsent, tokens = AnswerText(self._rendering.text, call.sampling.stop, markers), list[Token](), []
        # text may be held back, and its tokens with it; and who asks for logprobs wants each beside its text
        one_by_one = bool(markers or call.sampling.stop) or call.logprobs is not None
        async for fresh in stream.batches():
            for part in [[drawn] for drawn in fresh] if one_by_one else [fresh]:
                spoken = [self._token(*drawn) for drawn in part]
                tokens += spoken
                unsent += spoken
                if text := shown.push(token for token, _ in part):
                    progress.publish(Delta(choice=choice, text=text, tokens=tuple(unsent)))
                    unsent.clear()
        turn = self._turn(prepared, stream, delivered=not progress.abandoned)
        await self._record(prepared.conversation, turn)
        if stream.ending == "error":
            raise CallError("internal", f"the engine failed: {stream.error}")
        if text := shown.rest(turn.reply.content):
            progress.publish(Delta(choice=choice, text=text, tokens=tuple(unsent)))
        progress.publish(done_of(turn, tuple(tokens), stream.stop))

    def _turn(self, prepared: PreparedCall, stream: TokenStream, *, delivered: bool) -> Turn:
        drawn = tuple(token for token, _ in stream.drawn)
        answered = Answered(*self._reply(prepared, drawn, stream), delivered)
        return turn_of(prepared, stream, answered, self._engine, self._rendering)

    def _reply(self, prepared: PreparedCall, drawn: tuple[int, ...], stream: TokenStream) -> tuple[Message, str | None]:
        """Return the answer as the client gets it, and why a tool call in it cannot be read."""
        call = prepared.call
        tools = call.tools if self._calls_are_read(call) else ()
        found = self._rendering.parse(drawn, tools, prepared.turn_ids[stream.generation.slot], stream.stop)
        if call.form is None or found[0].content.startswith(self._rendering.markers):
            return found
        return found[0], None  # text of the schema: what looks like a call is in one of its strings

    def _calls_are_read(self, call: ModelCall) -> bool:
        return bool(call.tools) and call.tool_choice == "auto"

    async def _record(self, conversation: Conversation, turn: Turn) -> None:
        """Return once `turn`, which was made just now, is in the log.

        Raises CallError if it is not within serve.acknowledge_s.
        """
        began = () if conversation.started else (started(conversation, turn),)
        try:
            written = asyncio.wrap_future(self._writer.write(*began, turn))
        except (EventError, EncodeError) as exc:
            raise CallError("too_large", f"the turn cannot be recorded: {exc}") from exc
        conversation.started = True
        conversation.number += 1
        conversation.open_calls += 1
        self._conversations.by_id.setdefault(conversation.trajectory_id, conversation)

        request = request_of(turn)
        unwritten = self._unwritten.setdefault(request, set())
        unwritten.add(written)

        def taken(done: asyncio.Future[None]) -> None:
            conversation.open_calls -= 1
            unwritten.discard(done)
            if not unwritten and self._unwritten.get(request) is unwritten:
                del self._unwritten[request]
            if not done.cancelled() and done.exception() is None:
                self._conversations.take(turn)

        written.add_done_callback(taken)
        await asyncio.wait((written,), timeout=self._rule.acknowledge_s)
        if not written.done():
            raise self._not_recorded()
        problem = written.exception()
        if isinstance(problem, LogError):
            raise self._not_recorded() from problem
        if problem is not None:
            raise problem

    async def _written(self, call: ModelCall) -> None:
        """Return once no turn of an earlier try is on its way to the log. Raises CallError."""
        unwritten = self._unwritten.get(request_of(call), set())
        if unwritten:
            _, waiting = await asyncio.wait(unwritten, timeout=self._rule.acknowledge_s)
            if waiting:
                raise self._not_recorded()

    def _not_recorded(self) -> CallError:
        what = f"the answer was not recorded within {self._rule.acknowledge_s:g} s (serve.acknowledge_s)"
        return CallError("busy", f"{what}: the broker does not answer; try again")

    # --- an answer that was given before ------------------------------------------------------------------------------

    async def _again(self, turns: Mapping[int, Turn]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of an answer from its turns."""
        first = turns[0]
        version, before = first.adapter_version, first.prompt_tokens - len(first.prompt_token_ids)
        yield Begun(
            turn_id=first.turn_id,
            trajectory_id=first.trajectory_id,
            model=f"{first.policy}@{version}",
            version=version,
            fingerprint=fingerprint(first.base_digest, version),
            prompt_tokens=first.prompt_tokens,
            cached_tokens=before,
            ignored=first.ignored,
        )
        for choice, turn in sorted(turns.items()):
            drawn = zip(turn.completion_token_ids, turn.logprobs, strict=True)
            tokens = tuple(self._token(token, logprob) for token, logprob in drawn)
            if turn.reply.content:
                yield Delta(choice=choice, text=turn.reply.content, tokens=tokens)
            yield done_of(turn, tokens, stop_text(turn, self._rendering))

    def _token(self, token: int, logprob: float) -> Token:
        return Token(token, *self._said(token), logprob)

    def _say(self, token: int) -> tuple[str, bytes]:
        data = self._rendering.token_bytes(token)
        return data.decode(errors="replace"), data
