"""The metrics of the server of agents: its engine, and the conversations that it remembers.

engine.counts, Conversations ──► gauges and counters, when they are read
"""

from __future__ import annotations

from collections import Counter

from streams.engines.protocol import EngineCounts, TokenEngine
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.stages.agents.recording.served_conversations import ServedConversations


class ServerMetrics:
    """Reports to a meter whenever it is asked."""

    def __init__(self, meter: Meter, engine: TokenEngine, conversations: ServedConversations) -> None:
        self._meter, self._engine, self._conversations = meter, engine, conversations
        self._counts, self._evicted = EngineCounts(), 0
        self._fates, self._actions = Counter(conversations.fates), Counter(conversations.actions)
        meter.collect(self.report)

    def report(self) -> None:
        """Set the gauges, and add to the counters what is new since the last time."""
        meter, conversations, before = self._meter, self._conversations, self._counts
        self._counts = now = self._engine.counts()
        meter.set(catalog.SERVE_ROWS, now.rows_running, "running")
        meter.set(catalog.SERVE_ROWS, now.rows_waiting, "waiting")
        meter.set(catalog.SERVE_CACHED_TOKENS, now.cached_tokens)
        meter.set(catalog.SERVE_CACHED_BYTES, now.cached_bytes)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "run", by=now.prompt_tokens_run - before.prompt_tokens_run)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "reused", by=now.prompt_tokens_reused - before.prompt_tokens_reused)
        meter.add(catalog.SERVE_TOKENS, by=now.tokens_drawn - before.tokens_drawn)
        meter.set(catalog.SERVE_TRAJECTORIES, conversations.count)
        meter.set(catalog.SERVE_REMEMBERED, conversations.nbytes)
        evicted, self._evicted = conversations.evicted - self._evicted, conversations.evicted
        meter.add(catalog.SERVE_EVICTED, by=evicted)
        fates, self._fates = conversations.fates - self._fates, Counter(conversations.fates)
        for fate in ("delivered", "not_delivered", "failed"):
            meter.add(catalog.SERVE_TURNS, fate, by=fates[fate])
        actions, self._actions = conversations.actions - self._actions, Counter(conversations.actions)
        for use in ("usable", "unusable"):
            meter.add(catalog.SERVE_ACTIONS, use, by=actions[use])
