"""The prompt of a call: the recorded tokens that its history ends with, and the rendering of what is new.

    ModelCall, Conversation ──► place ──► tokens of the turn it continues, verbatim ──┬──► CallPrompt
                                  └─────► template, tokenizer, in a thread ───────────┘

A template takes long over a long conversation, and so does a tokenizer. They run beside the event loop, so that others
are answered meanwhile, one at a time, since nobody says of a tokenizer that it may be called twice at once. A short
one is rendered on the spot if nothing else is just then: to go to the thread and back takes longer. What cannot fit the
context whatever its tokens are is refused before either of them sees it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from schemas.tokens import TokenIds
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.errors import CallError, EventError
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.trajectories.chains import Chains, Placement

SHORT = 1000
"""Characters of a call's messages and tools that take less than a millisecond to render."""

P = ParamSpec("P")
T = TypeVar("T")


class CallPrompt(NamedTuple):
    """What a call is to the turns before it, and its tokens."""

    placement: Placement
    known: TokenIds
    """The tokens of the turn it continues."""
    new: tuple[int, ...]
    """Behind those."""


class CallPrompts:
    """Makes prompts. Of one event loop; call `close` at the end."""

    def __init__(self, engine: TokenEngine, rendering: Rendering) -> None:
        self._engine, self._rendering = engine, rendering
        self._thread = ThreadPoolExecutor(1, "renders")
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def of(self, call: ModelCall, known: Conversation | None) -> CallPrompt:
        """Return the prompt of a call that belongs to `known`. Raises CallError."""
        where = "messages" if call.prompt is None else "prompt"
        self._check_length(call, where)
        try:
            if call.prompt is not None:
                return await self._plain(call.prompt, call, known)
            return await self._templated(call, known)
        except (EventError, ValueError) as exc:
            raise CallError("invalid", str(exc), where) from exc

    async def _plain(self, prompt: str | tuple[int, ...], call: ModelCall, known: Conversation | None) -> CallPrompt:
        ids = await self._rendered(call, self._rendering.plain, prompt) if isinstance(prompt, str) else prompt
        tokens = TokenIds.of(ids)
        placed = self._placed(call, known, tokens)
        return CallPrompt(placed, tokens[: placed.new_from], tuple(ids[placed.new_from :]))

    async def _templated(self, call: ModelCall, known: Conversation | None) -> CallPrompt:
        render, placed = self._rendering, self._placed(call, known, None)
        if placed.parent is not None and known is not None:
            before = known.chains.tokens(placed.parent.turn_id)
            finished = bool(before) and before[-1] in self._engine.ends
            history = call.messages[: len(call.messages) - len(placed.new)]
            behind = await self._rendered(call, render.extend, before, finished, history, placed.new, call.tools)
            if not isinstance(behind, str):
                return CallPrompt(placed, before, behind)
            placed = Placement("rewrites", behind, None, call.messages)
        return CallPrompt(placed, TokenIds(), await self._rendered(call, render.first, call.messages, call.tools))

    def _placed(self, call: ModelCall, known: Conversation | None, prompt: TokenIds | None) -> Placement:
        """Return what a call is to the turns of its trajectory. It continues none that was rendered otherwise."""
        chains = Chains() if known is None else known.chains
        placed = chains.place(call.messages, call.tools, prompt, call.digests)
        for name in ("tokenizer_digest", "template_digest"):
            if placed.parent is not None and getattr(placed.parent, name) != getattr(self._rendering, name):
                reason = f"the server's {name} is not that of turn {placed.parent.number}"
                return Placement("rewrites", reason, None, call.messages)
        return placed

    def _check_length(self, call: ModelCall, where: str) -> None:
        """Refuse what is too long even for the longest tokens. Raises CallError."""
        characters = _characters(call)
        context = self._engine.context_tokens
        if characters > context * self._rendering.longest_token:
            what = f"{characters} characters never fit the context of {context} tokens"
            raise CallError("invalid", f"{what}; shorten the conversation", where)

    async def _rendered(self, call: ModelCall, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
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
