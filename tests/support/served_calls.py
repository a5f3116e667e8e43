"""Calls and an engine for tests of a step in front of an engine alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from schemas.events import Message, Sampling
from streams.engines.sampling_step import ServedCall
from streams.engines.token_stream import Generation, TokenStream

NUMBERS = itertools.count()


def call(question: str = "2 + 2 =", **changed: Any) -> ServedCall:
    """Return a call of agent `calc` at temperature 0."""
    sampling = changed.pop("sampling", Sampling(temperature=0.0))
    generation = Generation(prompt_token_ids=tuple(question.encode()), sampling=sampling, draw_key="k")
    messages = (Message(role="user", content=question),)
    values: dict[str, Any] = {
        "agent_id": "calc",
        "subject": None,
        "policy": "sums",
        "version": 0,
        "turn_id": f"t{next(NUMBERS)}",
        "messages": messages,
        "tools": (),
        "calls_freely": True,
        "form": None,
        "prompt_version": None,
        "names_version": False,
        "in_canary": False,
        "cache_control": None,
        "limit_s": 60.0,
        "earlier": lambda: 0,
        "folder": lambda _: None,
        "generations": (generation,),
    }
    return ServedCall(**values | changed)


class Answering:
    """Answers calls, and counts them."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.calls = list(texts), list[ServedCall]()

    async def begin(self, call: ServedCall) -> list[TokenStream]:
        """Answer with the next text; the last one for ever."""
        self.calls.append(call)
        stream = TokenStream(replace(call.generations[0], version=call.version))
        for byte in (self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]).encode():
            stream.push(byte, -0.5)
        stream.finish("stop")
        return [stream]


def said(stream: TokenStream) -> str:
    """Return the text of a stream."""
    return bytes(token for token, _ in stream.drawn).decode()
