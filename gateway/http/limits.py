"""How often each key may send requests, and how many at once.

    request ──► the bucket of its key ──► a token, or in how many seconds there is one ──► 429, Retry-After
            └─► requests of its key in progress ──► one more, or 429

Not covered: several servers share no bucket, and requests without a key that is valid have none: they are refused
before anything is read of them. A batch of JSON-RPC is one request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from streams.access.token_bucket import TokenBucket, take
from streams.settings.model import Serve

AT_ONCE_RETRY_S = 1.0
"""When to try again where another request has to end first, which may be any time."""


class Refused429(NamedTuple):
    """Why a request has to wait, and how long."""

    why: str
    retry_after_s: float


class KeyLimits:
    """The limits of each key. All of it runs in one event loop; there are as many entries as valid keys that called."""

    def __init__(self, rule: Serve, clock: Callable[[], float] = time.monotonic) -> None:
        self._rule, self._clock = rule, clock
        self._buckets: dict[str, TokenBucket] = {}
        self._at_once: Counter[str] = Counter()

    def begin(self, who: str) -> Refused429 | None:
        """Begin a request of a key, or return why it has to wait. A request that is not refused ends with `end`."""
        rule = self._rule
        if rule.key_at_once and self._at_once[who] >= rule.key_at_once:
            why = f"{who} has {rule.key_at_once} requests in progress (serve.key_at_once); wait for one of them"
            return Refused429(why, AT_ONCE_RETRY_S)
        if rule.key_per_s:
            bucket = self._buckets.get(who)
            self._buckets[who], wait_s = take(bucket, self._clock(), rate=rule.key_per_s, burst=rule.key_burst)
            if wait_s:
                why = f"{who} asks more often than {rule.key_per_s:g} times a second (serve.key_per_s)"
                return Refused429(why, wait_s)
        self._at_once[who] += 1
        return None

    def end(self, who: str) -> None:
        """End a request: it has its answer, or its client has left."""
        self._at_once -= Counter((who,))  # which drops those at 0
