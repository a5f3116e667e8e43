"""Answer the calls to one policy with the version in force, and record each before its answer ends.

    ModelCall ──► call_preparation: the turn it continues, version, prompt ──► answer_sampling: engine ──► Delta …
                                                                                      │ tokens, reply
                            Done ◄── turn_recording: the broker has acknowledged it ◄─┘

No recorded token is rendered or tokenized again: the prompt of a call begins with the tokens of the turn that its
history ends with. A retry, which is a call with the body of one that was answered before, gets the same answer; with a
key of its client it also shares an answer in progress. If every reader of an answer leaves, its rows are cancelled, and
the turn is recorded as not delivered.

Two servers on one log would give the same number to turns of the same trajectory, so only one answers
(streams/kafka/idle_member.SoleMember).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from schemas.events import Turn
from streams.engines.rendering.rendering import Rendering
from streams.engines.sampling_step import SamplingStep, ServedCall, begin_through
from streams.engines.token_stream import TokenStream
from streams.errors import CallError, EventError, RefusedError
from streams.kafka import times
from streams.settings.model import Serve
from streams.stages.agents.recording.answer_pieces import AnswerPieces
from streams.stages.agents.recording.answer_sampling import SampledChoice, begin_choices
from streams.stages.agents.recording.call_guard import AnswerGuard, CallGuard, GuardedTurn, prompt_text
from streams.stages.agents.recording.call_preparation import CallPreparation, PreparedCall
from streams.stages.agents.recording.call_prompts import CallPrompts
from streams.stages.agents.recording.calls import CallInProgress, Done, ModelCall, Piece, PromptScores
from streams.stages.agents.recording.conversations import Conversations, has_key, request_of
from streams.stages.agents.recording.served_versions import PolicyVersions
from streams.stages.agents.recording.task_runs import TaskRuns
from streams.stages.agents.recording.turn_recording import GivenReply, TurnRecording
from streams.stages.agents.recording.turn_writer import TurnWriter

log = logging.getLogger("streamward.agents")

CallKey = tuple[str | None, tuple[str, str, str]]
"""Key shared by attempts at the same call: the trajectory in the path, and `request_of`."""


@dataclass(slots=True)
class TextsToScore:
    """The texts of all policies that are scored, one after the other."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    """Includes the text being scored."""


@dataclass(frozen=True, slots=True)
class RecordingIO:
    """The parts that all policies of a server share."""

    rule: Serve
    rendering: Rendering
    writer: TurnWriter
    prompts: CallPrompts
    steps: Sequence[SamplingStep] = ()
    """Steps in front of the engine."""
    guard: CallGuard | None = None
    """Looks at calls and answers."""
    in_progress: set[asyncio.Task[None]] = field(default_factory=set)
    """The calls that are being answered."""
    texts: TextsToScore = field(default_factory=TextsToScore)


class PolicyRecorder:
    """Answers the calls to one policy. Runs in one event loop."""

    def __init__(self, versions: PolicyVersions, conversations: Conversations, io: RecordingIO) -> None:
        engine, rule, self._io = versions.engine, io.rule, io
        self._engine, self._conversations, self._policy = engine, conversations, versions.policy
        self._shared: dict[CallKey, CallInProgress] = {}
        """Calls in progress with a client's key: their attempts share one answer."""
        self._readers: Counter[CallKey] = Counter()
        """Number of readers of an answer."""
        self._pieces = AnswerPieces(engine, io.rendering)
        self._preparation = CallPreparation(versions, conversations, io.rendering, io.prompts)
        self._turns = TurnRecording(engine, io.rendering, io.writer, conversations, rule.acknowledge_s)
        self.runs = TaskRuns(rule, versions, io.writer, conversations)

    async def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Answer, `Begun` first. Raises CallError, before the first piece if the call cannot begin."""
        key, keyed = (call.trajectory_id, request_of(call)), has_key(call)
        progress = self._shared.get(key) if keyed else None
        turns: Mapping[int, Turn] | None = None
        if call.retry_key is not None and progress is None and (keyed or not self._readers[key]):
            await self._turns.wait_written(call)
            turns = self._conversations.find_answered(call, times.now_ms())
        if turns is not None:
            pieces = self._pieces.recorded(call, turns)
        else:
            if progress is None or progress.abandoned:
                progress = self._begin(call, key)
            pieces = progress.pieces()
        self._readers[key] += 1
        try:
            async for piece in pieces:
                yield piece
            if isinstance(piece, Done):
                self._conversations.note_given(call, piece.turn_id)
        finally:
            self._readers -= Counter((key,))  # which drops those at 0
            await pieces.aclose()  # now, not when it is collected: a reader that has left counts at once

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""
        prompt = await self._io.prompts.of(call, self._conversations.find_continued(call))
        return len(prompt.recorded) + len(prompt.new)

    async def score(self, call: ModelCall, top: int) -> PromptScores:
        """Return the logprobs of a call's text under a version, and the `top` likeliest tokens of each place.

        Nothing was sampled, so nothing is recorded. One text at a time: the others wait. Raises CallError.
        """
        rule, texts = self._io.rule, self._io.texts
        if texts.waiting >= rule.max_calls:
            raise CallError("busy", f"{texts.waiting} texts wait to be scored (serve.max_calls); try again")
        texts.waiting += 1
        try:
            async with texts.turn:
                version, ids = await self._preparation.prepare_text(call)
                scores = await asyncio.to_thread(self._engine.score, version, ids, top)
        except EventError as exc:
            unfit = exc.reason == "cannot_score"
            raise CallError("unsupported" if unfit else "invalid", str(exc), "echo" if unfit else "prompt") from exc
        except RefusedError as exc:
            raise CallError("busy", f"{exc}; try again") from exc
        finally:
            texts.waiting -= 1
        return self._pieces.prompt_scores(f"{self._policy}@{version}", version, ids, scores)

    def has(self, trajectory_id: str) -> bool:
        """Return whether a trajectory is remembered."""
        return trajectory_id in self._conversations.by_id

    # --- one call -----------------------------------------------------------------------------------------------------

    def _begin(self, call: ModelCall, key: CallKey) -> CallInProgress:
        """Start to answer a call. Raises CallError if that is impossible now."""
        rule, tasks = self._io.rule, self._io.in_progress
        if len(tasks) >= rule.max_calls:
            raise CallError("busy", f"{len(tasks)} calls are in progress (serve.max_calls); try again")
        if (waits_s := self._io.writer.waits_s) > rule.acknowledge_s:
            raise CallError("busy", f"the broker has acknowledged nothing for {waits_s:.0f} s; try again")
        streams: list[TokenStream] = []

        def abandon() -> None:
            for stream in streams:
                stream.cancel()

        progress = CallInProgress(abandon)
        if has_key(call):
            self._shared[key] = progress
        task = asyncio.create_task(self._run(call, progress, streams))
        tasks.add(task)

        def forget(ended: asyncio.Task[None]) -> None:
            tasks.discard(ended)
            if self._shared.get(key) is progress:
                del self._shared[key]

        task.add_done_callback(forget)
        return progress

    async def _run(self, call: ModelCall, progress: CallInProgress, streams: list[TokenStream]) -> None:
        """Answer `call` into `progress`, whatever happens."""
        prepared: PreparedCall | None = None
        served: ServedCall | None = None
        turns: list[Turn] = []
        try:
            prepared = await self._preparation.prepare(await self._admit(call))
            prepared.conversation.in_progress.add(progress)
            self._turns.check_fits(prepared)
            if self._io.steps:
                served = self._preparation.served_call(prepared, self._io.rule.answer_s or math.inf)
            if served is None:
                streams += await self._submit(prepared)
            else:
                streams += await begin_through(self._io.steps, served, partial(self._submit_version, prepared))
                prepared = self._preparation.as_answered(prepared, streams[0].origin)
            if progress.abandoned:
                for stream in streams:
                    stream.cancel()
            progress.publish(self._pieces.begun(prepared))
            choices = [self._answer_choice(prepared, stream, progress) for stream in streams]
            if len(choices) == 1:
                turns.append(await choices[0])
            else:
                turns += await gather_all(choices)
            progress.finish()
        except CallError as exc:
            progress.finish(exc)
        except Exception as exc:  # a template, a tokenizer or a model may raise anything
            log.exception("a call of agent %s failed", call.agent_id)
            progress.finish(CallError("internal", f"{type(exc).__name__}: {exc}"))
        finally:
            if prepared is not None:
                conversation = prepared.conversation
                conversation.open_calls -= 1
                conversation.in_progress.discard(progress)
                if not streams:  # it was refused: it leaves no record in the log
                    conversation.called.discard(prepared.turn_ids[0])
            if served is not None:
                for step in self._io.steps:
                    step.note_ended(served, turns)

    async def _admit(self, call: ModelCall) -> ModelCall:
        """Return a call as the guard lets it be answered. Raises CallError."""
        if self._io.guard is None:
            return call
        is_learned_from = self._conversations.is_learned_from(call.trajectory_id)
        text = prompt_text(call, self._io.rendering)
        admission = await self._io.guard.admit(call, text, is_learned_from=is_learned_from)
        await self._turns.record_events(admission.events, waits=admission.refusal is not None)
        if admission.refusal is not None:
            raise admission.refusal
        return admission.call

    def _answer_guard(self, prepared: PreparedCall, choice: int) -> AnswerGuard | None:
        """Return what looks at a choice of a call; None: nothing does."""
        if self._io.guard is None:
            return None
        conversation = prepared.conversation
        turn = GuardedTurn(
            prepared.turn_ids[choice],
            conversation.trajectory_id,
            None if conversation.sampling_id is None else conversation.task_id,
            prepared.policy,
            conversation.is_learned_from,
        )
        return self._io.guard.answer_guard(prepared.call, turn)

    async def _submit_version(self, prepared: PreparedCall, call: ServedCall) -> list[TokenStream]:
        """Have the engine begin with the version that a step chose. Raises CallError."""
        return await self._submit(replace(prepared, version=call.version))

    async def _submit(self, prepared: PreparedCall) -> list[TokenStream]:
        """Have the engine begin, and load the version again if it was unloaded meanwhile. Raises CallError."""
        for again in (True, False):
            try:
                return begin_choices(prepared, self._engine)
            except EventError as exc:
                if exc.reason != "unknown_version" or not again:
                    parameter = "messages" if prepared.call.messages else "prompt"
                    raise CallError("invalid", str(exc), parameter) from exc
            except RefusedError as exc:
                raise CallError("busy", f"{exc}; try again") from exc
            await self._preparation.load(prepared.version)
        raise AssertionError("not reached")

    async def _answer_choice(self, prepared: PreparedCall, stream: TokenStream, progress: CallInProgress) -> Turn:
        """Pass on one answer as it is sampled, and return its record. Raises CallError."""
        guard = self._answer_guard(prepared, stream.generation.slot)
        choice = SampledChoice(prepared, stream, self._io.rendering, self._pieces, guard)
        await choice.publish(progress)
        message, malformed = choice.reply()
        message, ended, events = await choice.pass_guard(message)
        reply = GivenReply(message, malformed, not progress.abandoned, choice.guard_notes)
        turn = await self._turns.record(prepared, ended, reply, events)
        if ended.ending == "error":
            raise CallError("internal", f"the engine failed: {stream.error}")
        choice.publish_rest(turn.reply, progress)
        progress.publish(self._pieces.done(prepared.call, turn, choice.tokens, stream.stop))
        return turn


async def gather_all(answers: Sequence[Coroutine[Any, Any, Turn]]) -> list[Turn]:
    """Return the turns of all choices, once every one has ended. Raises the first error."""
    results = await asyncio.gather(*answers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Turn)]
