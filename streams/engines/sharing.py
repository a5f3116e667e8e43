"""One engine for many policies: rounds take turns, and streams run together.

policy ──► EngineShare.serve, sample ──► SharedEngine: is its adapter in the engine now? ────► engine
                                            └── another policy's: exchanged first
several policies ──► sample_mixed: one round, each row by its own policy's adapter

policy, version ──► TokenEngineShare ──► a number that no other version has ──► token engine: rows of all policies
                                                                               in one pass

Version 0 of a token engine is the base model, which all policies share.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from streams.engines.constraint import Constraint
from streams.engines.protocol import (
    NONE,
    Completion,
    Engine,
    EngineCounts,
    EnginePart,
    MixedEngine,
    SamplingRequest,
    TextScores,
    TokenEngine,
)
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError
from streams.observability import catalog
from streams.observability.metrics import Meter


class SharedEngine:
    """An engine, and the policy that it serves."""

    def __init__(self, engine: Engine, capacity: int, meter: Meter) -> None:
        """`capacity`: number of versions that the engine keeps in memory."""
        self.engine = engine
        self.owner: str | None = None
        """The policy that is served."""
        self._capacity, self._meter = capacity, meter
        self._folders: dict[str, tuple[int, Path | None]] = {}
        """The last served version and folder of each policy."""
        self._resident: OrderedDict[tuple[str, int], None] = OrderedDict({("", 0): None})
        """The versions in its memory, the least recently used first; the base model belongs to no policy."""

    def share(self, policy: str) -> EngineShare:
        """Return the engine as this policy sees it."""
        return EngineShare(self, policy)

    def serve(self, policy: str, version: int, adapter: Path | None) -> None:
        """Serve another version. Raises as `Engine.serve`, and then keeps the old one."""
        began = time.perf_counter()
        self.engine.serve(version, adapter)
        self.owner, self._folders[policy] = policy, (version, adapter)
        key = ("", 0) if adapter is None else (policy, version)
        source = "memory" if key in self._resident else "store"
        self._resident[key] = None
        self._resident.move_to_end(key)
        while len(self._resident) > self._capacity:
            self._resident.popitem(last=False)
            self._meter.add(catalog.FLEET_EVICTIONS)
        self._meter.add(catalog.FLEET_SWAPS, source)
        self._meter.observe(catalog.FLEET_SWAP_SECONDS, time.perf_counter() - began, source)
        self._meter.set(catalog.FLEET_HELD, len({policy for policy, _ in self._resident if policy}))

    @property
    def mixes(self) -> bool:
        """Whether a round may have requests of several policies."""
        return isinstance(self.engine, MixedEngine)

    def sample_mixed(self, rounds: Mapping[str, Sequence[SamplingRequest]]) -> list[list[list[Completion]]]:
        """Answer requests of several policies in one round, each by its last served version."""
        engine = self.engine
        if not isinstance(engine, MixedEngine):
            raise TypeError(f"engine {engine.name} answers for one version at a time")
        return engine.sample_mixed(
            [EnginePart(*self._folders[policy], requests) for policy, requests in rounds.items()]
        )


class EngineShare:
    """A policy's view of an `Engine` that others use, too. Its builder closes it."""

    def __init__(self, shared: SharedEngine, policy: str) -> None:
        engine = shared.engine
        self.name, self.base_digest, self.tokenizer_digest = engine.name, engine.base_digest, engine.tokenizer_digest
        self._shared, self._policy = shared, policy

    @property
    def served_version(self) -> int:
        """The version of this policy that the engine reports as served; NONE while it serves another policy."""
        return self._shared.engine.served_version if self._shared.owner == self._policy else NONE

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version` of this policy; see `Engine.serve`."""
        self._shared.serve(self._policy, version, adapter)

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer requests of this policy; see `Engine.sample`."""
        return self._shared.engine.sample(requests)

    def close(self) -> None:
        """Release nothing."""


class SharedTokenEngine:
    """A token engine, and its numbers for adapters. Any thread may call it."""

    def __init__(self, engine: TokenEngine) -> None:
        self.engine = engine
        self._unused, self._lock = itertools.count(1), threading.Lock()

    def share(self, policy: str) -> TokenEngineShare:
        """Return the engine as this policy sees it."""
        return TokenEngineShare(self, policy)

    def unused_number(self) -> int:
        """Return an unused number."""
        with self._lock:
            return next(self._unused)


class TokenEngineShare:
    """A policy's view of a `TokenEngine` that others use, too, with its own version numbers. Its builder closes it."""

    def __init__(self, shared: SharedTokenEngine, policy: str) -> None:
        engine = shared.engine
        self.name, self.base_digest, self.tokenizer_digest = engine.name, engine.base_digest, engine.tokenizer_digest
        self.token_table = engine.token_table
        self.context_tokens = engine.context_tokens
        self._shared, self._engine, self._policy = shared, engine, policy
        self._numbers = {0: 0}
        """The engine's number of each loaded version."""

    def load(self, version: int, adapter: Path | None) -> None:
        """Make a version of this policy ready; see `TokenEngine.load`."""
        if version in self._numbers:
            return
        number = self._shared.unused_number()
        self._engine.load(number, adapter)
        self.context_tokens = self._engine.context_tokens  # with servers it may be known only now
        self._numbers[version] = number

    def unload(self, version: int) -> None:
        """Take no more generations for a version of this policy; see `TokenEngine.unload`."""
        if version and (number := self._numbers.pop(version, None)) is not None:
            self._engine.unload(number)

    def constrain(self, grammar: str) -> Constraint:
        """Compile a grammar; see `TokenEngine.constrain`."""
        return self._engine.constrain(grammar)

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; see `TokenEngine.submit`."""
        number = self._number(generation.version)
        return self._engine.submit(replace(generation, version=number, owner=self._policy))

    def score(self, version: int, tokens: tuple[int, ...], top: int) -> TextScores:
        """Score a text with a version of this policy; see `TokenEngine.score`."""
        return self._engine.score(self._number(version), tokens, top)

    def counts(self) -> EngineCounts:
        """Return the engine's present work, for all policies."""
        return self._engine.counts()

    def close(self) -> None:
        """Release nothing."""

    def _number(self, version: int) -> int:
        """Return the engine's number of a version. Raises EventError if it is not loaded."""
        number = self._numbers.get(version)
        if number is None:
            raise EventError(f"version {version} of {self._policy} is not loaded; load it", reason="unknown_version")
        return number
