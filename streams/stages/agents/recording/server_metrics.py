"""What the server of agents says of itself: its engine, and what it remembers.

engine.counts, Conversations ──► gauges and counters, when somebody looks
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from streams.engines.protocol import EngineCounts, TokenEngine
from streams.observability import catalog
from streams.observability.metrics import Meter


class Remembered(Protocol):
    """Trajectories: one policy's, or those of all."""

    @property
    def count(self) -> int:
        """How many are remembered."""

    @property
    def nbytes(self) -> int:
        """What their turns take in memory."""

    @property
    def evicted(self) -> int:
        """How many were left without their turns because memory was full."""

    @property
    def fates(self) -> Counter[str]:
        """Turns, by what became of them."""

    @property
    def actions(self) -> Counter[str]:
        """Actions, by whether environments could use them."""


class ServerMetrics:
    """Reports to a meter whenever it is asked."""

    def __init__(self, meter: Meter, engine: TokenEngine, conversations: Remembered) -> None:
        self._meter, self._engine, self._conversations = meter, engine, conversations
        self._before, self._evicted = EngineCounts(), 0
        self._fates, self._actions = Counter(conversations.fates), Counter(conversations.actions)
        meter.collect(self.report)

    def report(self) -> None:
        """Set what is so now, and add what has come since the last time."""
        meter, remembered, before = self._meter, self._conversations, self._before
        self._before = now = self._engine.counts()
        meter.set(catalog.SERVE_ROWS, now.rows_running, "running")
        meter.set(catalog.SERVE_ROWS, now.rows_waiting, "waiting")
        meter.set(catalog.SERVE_CACHED_TOKENS, now.cached_tokens)
        meter.set(catalog.SERVE_CACHED_BYTES, now.cached_bytes)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "run", by=now.prompt_tokens_run - before.prompt_tokens_run)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "reused", by=now.prompt_tokens_reused - before.prompt_tokens_reused)
        meter.add(catalog.SERVE_TOKENS, by=now.tokens_drawn - before.tokens_drawn)
        meter.set(catalog.SERVE_TRAJECTORIES, remembered.count)
        meter.set(catalog.SERVE_REMEMBERED, remembered.nbytes)
        evicted, self._evicted = remembered.evicted - self._evicted, remembered.evicted
        meter.add(catalog.SERVE_EVICTED, by=evicted)
        fates, self._fates = remembered.fates - self._fates, Counter(remembered.fates)
        for fate in ("delivered", "not_delivered", "failed"):
            meter.add(catalog.SERVE_TURNS, fate, by=fates[fate])
        actions, self._actions = remembered.actions - self._actions, Counter(remembered.actions)
        for use in ("usable", "unusable"):
            meter.add(catalog.SERVE_ACTIONS, use, by=actions[use])
