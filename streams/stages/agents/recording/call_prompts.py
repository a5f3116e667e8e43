"""The prompt of a call: the recorded tokens at the end of its history, and the rendering of new messages.

    ModelCall, Conversation ──► place ──► tokens of the turn it continues, verbatim ──┬──► CallPrompt
                                  └─────► template, tokenizer, in a thread ───────────┘

A template takes long over a long conversation, and so does a tokenizer. They run in a thread, so that the event loop
answers other calls meanwhile, and one at a time, since no tokenizer promises that it may be called twice at once. A
short prompt is rendered in place if no other is being rendered: a thread switch takes longer. A prompt that cannot fit
the context however it is tokenized is refused first.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, ParamSpec, TypeVar

from schemas.conventions import REDACTED
from schemas.events import Message
from schemas.tokens import TokenIds
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.errors import CallError, EventError
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.trajectories.call_chains import Chains, Digests, Placement, conversation_digest

SHORT = 1000
"""Characters of a call's messages and tools that take less than a millisecond to render."""

P = ParamSpec("P")
T = TypeVar("T")


class CallPrompt(NamedTuple):
    """How a call relates to the turns before it, and its tokens."""

    placement: Placement
    recorded: TokenIds
    """The tokens of the turn that it continues."""
    new: tuple[int, ...]
    """The tokens after those."""


class CallPrompts:
    """Makes prompts, in one event loop; call `close` at the end."""

    def __init__(self, engine: TokenEngine, rendering: Rendering) -> None:
        self._engine, self._rendering = engine, rendering
        self._thread = ThreadPoolExecutor(1, "renders")
        self._one_at_a_time = threading.Lock()
        self._names: bool | None = None
        """Whether the template prints the name of an assistant's message; None: not tried yet."""

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def of(self, call: ModelCall, conversation: Conversation | None) -> CallPrompt:
        """Return the prompt of a call of a conversation. Raises CallError."""
        parameter = {"completions": "prompt", "responses": "input"}.get(call.protocol, "messages")
        self._check_length(call, parameter)
        try:
            if call.prompt is not None:
                prompt = await self._prompt_of_text(call.prompt, call, conversation)
            else:
                prompt = await self._prompt_of_messages(call, conversation)
        except (EventError, ValueError) as exc:
            raise CallError("invalid", str(exc), parameter) from exc
        tokens = len(prompt.recorded) + len(prompt.new)
        if tokens >= self._engine.context_tokens:
            raise self._too_long(tokens, parameter)
        return prompt

    async def _prompt_of_text(
        self, prompt: str | tuple[int, ...], call: ModelCall, conversation: Conversation | None
    ) -> CallPrompt:
        if isinstance(prompt, str):
            ids = await self._render(call, self._rendering.plain, prompt, call.special_tokens)
        else:
            ids = prompt
        tokens = TokenIds.of(ids)
        placement = self._place(call, conversation, tokens)
        return CallPrompt(placement, tokens[: placement.new_from], tuple(ids[placement.new_from :]))

    async def _prompt_of_messages(self, call: ModelCall, conversation: Conversation | None) -> CallPrompt:
        rendering, placement = self._rendering, self._place(call, conversation, None)
        if placement.parent is not None and conversation is not None:
            recorded = conversation.chains.tokens(placement.parent.turn_id)
            is_finished = bool(recorded) and recorded[-1] in self._engine.token_table.ends
            history = call.messages[: len(call.messages) - len(placement.new)]
            new: str | tuple[int, ...] | None = conversation.chains.named_reply(placement.parent.turn_id, history)
            if new is None or not self._prints_names():
                new = await self._render(
                    call, rendering.extend, recorded, is_finished, history, placement.new, call.tools
                )
            if not isinstance(new, str):
                return CallPrompt(placement, recorded, new)
            placement = Placement("rewrites", new, None, call.messages)
        if (tokens := self._fork_tokens(call, conversation)) is not None:
            return CallPrompt(placement, TokenIds(), tuple(tokens))
        return CallPrompt(placement, TokenIds(), await self._render(call, rendering.first, call.messages, call.tools))

    def _fork_tokens(self, call: ModelCall, conversation: Conversation | None) -> TokenIds | None:
        """Return the recorded tokens of a call that repeats the moment that its run was forked at; None for any other.

        Raises CallError if the first call of a fork is another one, or the tokens are another tokenizer's.
        """
        began = None if conversation is None else conversation.began
        fork = None if began is None else began.fork
        if conversation is None or fork is None or not fork.token_ids:
            return None
        is_first = not conversation.chains.turns
        run = f"run {conversation.trajectory_id} is a fork of run {fork.trajectory_id} at turn {fork.turn}"
        if conversation_digest(Digests(call.messages, call.tools)) != fork.messages_digest:
            if is_first:
                text = f"{run}, and its first call has other messages or tools than its task; send those of the task"
                raise CallError("invalid", text, "messages")
            return None
        if fork.tokenizer_digest != self._rendering.tokenizer_digest:
            text = f"{run}, and the server has another tokenizer than that of its tokens"
            raise CallError("invalid", f"{text}; serve the model that they were recorded with", "model")
        return fork.token_ids

    def _place(self, call: ModelCall, conversation: Conversation | None, prompt: TokenIds | None) -> Placement:
        """Return how a call relates to the turns of its trajectory. It continues no turn that was rendered
        differently."""
        chains = Chains() if conversation is None else conversation.chains
        placement = chains.place(call.messages, call.tools, prompt, call.digests)
        for name in ("tokenizer_digest", "template_digest"):
            parent = placement.parent
            if parent is not None and getattr(parent, name) != getattr(self._rendering, name):
                reason = f"the server's {name} is not that of turn {parent.number}"
                return Placement("rewrites", reason, None, call.messages)
        if placement.parent is not None and REDACTED in placement.parent.metadata:
            reason = f"words of the answer of turn {placement.parent.number} were replaced"
            return Placement("rewrites", reason, None, call.messages)
        return placement

    def _prints_names(self) -> bool:
        """Return whether the template prints the name of an assistant's message."""
        if self._names is None:
            reply = Message(role="assistant", content="b")
            chats = [(Message(role="user", content="a"), sent) for sent in (reply, replace(reply, name="c"))]
            with self._one_at_a_time:
                first, second = (self._rendering.first((*chat, chat[0]), ()) for chat in chats)
            self._names = first != second
        return self._names

    def _check_length(self, call: ModelCall, parameter: str) -> None:
        """Refuse a prompt that is too long even with the longest tokens. Raises CallError."""
        least_tokens = math.ceil(_characters(call) / self._rendering.longest_token)
        if least_tokens > self._engine.context_tokens:
            raise self._too_long(least_tokens, parameter, " (at least: it was not tokenized)")

    def _too_long(self, tokens: int, parameter: str, note: str = "") -> CallError:
        """Return the error for a prompt of this many tokens, in words that clients of several protocols look for."""
        context = self._engine.context_tokens
        return CallError(
            "context_length_exceeded",
            f"prompt is too long: {tokens} tokens > {context - 1} maximum{note}, which leaves room for an answer in "
            f"the context of {context}; shorten the conversation",
            parameter,
        )

    async def _render(self, call: ModelCall, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def render() -> T:
            with self._one_at_a_time:
                return function(*args, **kwargs)

        tools = sum(len(tool.description) + len(tool.parameters) for tool in call.tools)
        if _characters(call) + tools <= SHORT and self._one_at_a_time.acquire(blocking=False):
            try:
                return function(*args, **kwargs)
            finally:
                self._one_at_a_time.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, render)


def _characters(call: ModelCall) -> int:
    whole = call.prompt if isinstance(call.prompt, str) else ""
    return len(whole) + sum(len(message.content) for message in call.messages)
