"""One engine for several policies, which take turns.

policy ──► EngineShare.serve, sample ──► SharedEngine: whose adapter is in the engine now? ──► engine
                                            └── another's: exchanged first
several policies ──► sample_mixed: one round, each row by its own policy's adapter
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from streams.engines.protocol import NONE, Completion, Engine, EnginePart, MixedEngine, SamplingRequest
from streams.observability import catalog
from streams.observability.metrics import Meter


class SharedEngine:
    """An engine, and whose adapter it serves."""

    def __init__(self, engine: Engine, kept: int, meter: Meter) -> None:
        """`kept`: how many versions the engine keeps in memory."""
        self.engine = engine
        self.owner: str | None = None
        """The policy that is served."""
        self._kept, self._meter = kept, meter
        self._folders: dict[str, tuple[int, Path | None]] = {}
        """What each policy was served by last."""
        self._held: OrderedDict[tuple[str, int], None] = OrderedDict({("", 0): None})
        """What it has in memory, the one unused for longest first; the base model is nobody's."""

    def share(self, policy: str) -> EngineShare:
        """Return the engine as this policy sees it."""
        return EngineShare(self, policy)

    def serve(self, policy: str, version: int, adapter: Path | None) -> None:
        """Exchange what is served. Raises as `Engine.serve`, and then keeps what was served."""
        began = time.perf_counter()
        self.engine.serve(version, adapter)
        self.owner, self._folders[policy] = policy, (version, adapter)
        key = ("", 0) if adapter is None else (policy, version)
        source = "memory" if key in self._held else "store"
        self._held[key] = None
        self._held.move_to_end(key)
        while len(self._held) > self._kept:
            self._held.popitem(last=False)
            self._meter.add(catalog.FLEET_EVICTIONS)
        self._meter.add(catalog.FLEET_SWAPS, source)
        self._meter.observe(catalog.FLEET_SWAP_SECONDS, time.perf_counter() - began, source)
        self._meter.set(catalog.FLEET_HELD, len({policy for policy, _ in self._held if policy}))

    @property
    def mixes(self) -> bool:
        """Whether a round may have requests of several policies."""
        return isinstance(self.engine, MixedEngine)

    def sample_mixed(self, asked: Mapping[str, Sequence[SamplingRequest]]) -> list[list[list[Completion]]]:
        """Answer requests of several policies in one round, each by the version that it was served by last."""
        engine = self.engine
        if not isinstance(engine, MixedEngine):
            raise TypeError(f"engine {engine.name} answers for one version at a time")
        return engine.sample_mixed([EnginePart(*self._folders[name], requests) for name, requests in asked.items()])


class EngineShare:
    """An engine that other policies use, too. Closing it is left to who built it."""

    def __init__(self, shared: SharedEngine, policy: str) -> None:
        engine = shared.engine
        self.name, self.base_digest, self.tokenizer_digest = engine.name, engine.base_digest, engine.tokenizer_digest
        self._shared, self._policy = shared, policy

    @property
    def served_version(self) -> int:
        """The version of this policy that the engine says it serves now; NONE while it serves another policy."""
        return self._shared.engine.served_version if self._shared.owner == self._policy else NONE

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version` of this policy; see `Engine.serve`."""
        self._shared.serve(self._policy, version, adapter)

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer requests of this policy; see `Engine.sample`."""
        return self._shared.engine.sample(requests)

    def close(self) -> None:
        """Release nothing."""
