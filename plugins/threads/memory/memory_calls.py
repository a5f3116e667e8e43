"""Ask a model, by a prompt of the log, for what an agent is to remember.

    prompt by name ──► its messages, then the conversation as data ──► recorder ──► turn: the item, or the summary

Each is an ordinary call of the agent, of a trajectory of its own with a derived id: it is recorded, has a cost, can be
curated and replayed, and repeated after kill -9 it gets the recorded answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from gateway.agents.named_prompts import KnowsAnswers, PromptParameter, with_prompt
from gateway.agents.parameters import MAX_TOKENS
from plugins.threads.acp.busy_retries import until_accepted
from plugins.threads.log.thread_state import RunState
from schemas.events import Message, Sampling
from streams.engines.rendering.answer_form import AnswerForm
from streams.errors import CallError
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import Done, ModelCall
from streams.stages.tasks.line_steps import LineSteps

LEAST_PER_MESSAGE = 16
"""Tokens that a template writes around a message, at most: a text of so few bytes is not tokenized to be counted."""


class CountsAndAnswers(KnowsAnswers, Protocol):
    """The recorder of the agents' stage."""

    def answer(self, call: ModelCall) -> Any:
        """Answer, `Begun` first. Raises CallError."""

    async def count_tokens(self, call: ModelCall) -> int:
        """Return how many tokens the call's prompt has. Raises CallError."""


class MemoryAnswer(NamedTuple):
    """The answer of a prompt."""

    text: str
    turn_id: str
    prompt: str
    """NAME@VERSION."""


class MemoryCalls:
    """Makes the calls behind runs, in one event loop."""

    def __init__(self, settings: Settings, recorder: CountsAndAnswers, steps: LineSteps) -> None:
        """`steps` find the prompts."""
        self._limit_s, self._recorder, self._steps = settings.serve.answer_s or None, recorder, steps

    async def ask(
        self, run: RunState, prompt: str, data: str, trajectory_id: str, form: AnswerForm | None = None
    ) -> MemoryAnswer:
        """Return the answer to a prompt about a run, whose data follows the prompt as a user's message.

        `form` is forced on the answer. Raises CallError; `busy` only after TRIES.
        """
        call = _call(run, trajectory_id, (Message(role="user", content=data),), form)
        try:
            async with asyncio.timeout(self._limit_s):
                return await until_accepted(lambda: self._answer(call, prompt))
        except TimeoutError:
            problem = f"there is no answer after {self._limit_s:g} s (serve.answer_s)"
            raise CallError("internal", problem) from None

    async def outgrow(self, run: RunState, messages: tuple[Message, ...], most: int) -> bool:
        """Return whether messages have more tokens than this, as the model of a run reads them. Raises CallError."""
        longest = sum(len(message.content.encode()) + LEAST_PER_MESSAGE for message in messages)
        if longest <= most and not any(message.tool_calls for message in messages):
            return False
        try:
            return await self._recorder.count_tokens(_call(run, None, messages, None)) > most
        except CallError as exc:
            if exc.kind == "context_length_exceeded":
                return True
            raise

    async def _answer(self, call: ModelCall, prompt: str) -> MemoryAnswer:
        prompted = await with_prompt(call, PromptParameter(id=prompt), self._steps, self._recorder, None, None)
        done: Done | None = None
        async with aclosing(self._recorder.answer(prompted)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Done):
                    done = piece
        if done is None:
            raise CallError("internal", "the answer broke off")
        if done.finish_reason == "length":
            raise CallError("internal", f"the answer of {prompted.prompt_version} has more than {MAX_TOKENS} tokens")
        return MemoryAnswer(done.message.content, done.turn_id, str(prompted.prompt_version))


def _call(
    run: RunState, trajectory_id: str | None, messages: tuple[Message, ...], form: AnswerForm | None
) -> ModelCall:
    name = trajectory_id or run.run_id
    return ModelCall(
        agent_id=run.agent_id,
        subject=run.request.subject,
        trajectory_id=trajectory_id,
        model=run.request.model or "",
        protocol="memory",
        messages=messages,
        form=form,
        form_parameter=None if form is None else "memory_config.remember",
        sampling=Sampling(temperature=0.0, max_tokens=MAX_TOKENS, seed=int(name[:8], 16)),
        request_digest=hashlib.sha256(name.encode()).hexdigest(),
        retry_key=name,
    )
