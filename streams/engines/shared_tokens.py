"""One token engine for many policies, each with version numbers of its own.

    policy, version ──► TokenEngineShare ──► a number that no other has ──► engine: rows of all policies in one pass

What the engine calls version 0 is the base model, and everybody's.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

from streams.engines.constraint import Constraint
from streams.engines.protocol import EngineCounts, TokenEngine
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError


class SharedTokenEngine:
    """An engine, and the numbers that it knows adapters by. Any thread may call it."""

    def __init__(self, engine: TokenEngine) -> None:
        self.engine = engine
        self._unused, self._lock = itertools.count(1), threading.Lock()

    def share(self, policy: str) -> TokenEngineShare:
        """Return the engine as this policy sees it."""
        return TokenEngineShare(self, policy)

    def number(self) -> int:
        """Return a number that nothing was loaded under."""
        with self._lock:
            return next(self._unused)


class TokenEngineShare:
    """A `TokenEngine` that others use, too. Closing it is left to who built it."""

    def __init__(self, shared: SharedTokenEngine, policy: str) -> None:
        engine = shared.engine
        self.name, self.base_digest, self.tokenizer_digest = engine.name, engine.base_digest, engine.tokenizer_digest
        self.vocabulary_size, self.ends = engine.vocabulary_size, engine.ends
        self.context_tokens = engine.context_tokens
        self._shared, self._engine, self._policy = shared, engine, policy
        self._numbers = {0: 0}
        """What the engine calls each version that is loaded."""

    def load(self, version: int, adapter: Path | None) -> None:
        """Make a version of this policy ready; see `TokenEngine.load`."""
        if version in self._numbers:
            return
        number = self._shared.number()
        self._engine.load(number, adapter)
        self.context_tokens = self._engine.context_tokens  # of servers it may be known only now
        self._numbers[version] = number

    def unload(self, version: int) -> None:
        """Take no more generations for a version of this policy; see `TokenEngine.unload`."""
        if version and (number := self._numbers.pop(version, None)) is not None:
            self._engine.unload(number)

    def constrain(self, grammar: str) -> Constraint:
        """Compile what an answer may be; see `TokenEngine.constrain`."""
        return self._engine.constrain(grammar)

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; see `TokenEngine.submit`."""
        number = self._numbers.get(generation.version)
        if number is None:
            what = f"version {generation.version} of {self._policy} is not loaded; load it"
            raise EventError(what, reason="unknown_version")
        return self._engine.submit(replace(generation, version=number, owner=self._policy))

    def counts(self) -> EngineCounts:
        """Return what the engine is doing, for all of its policies."""
        return self._engine.counts()

    def close(self) -> None:
        """Release nothing."""
