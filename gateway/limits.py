"""How often a key may ask, and how much at once.

    request ──► the bucket of its key ──► a token, or in how many seconds there is one ──► 429, Retry-After
            └─► requests of its key in progress ──► one more, or 429

A bucket holds `burst` tokens at most and gains `rate` a second, so in any time of t seconds a key gets no more than
burst + rate * t answers. What is refused takes no token.

Not covered: several servers share no bucket, and requests without a key that is valid have none: they are refused
before anything is read of them. A batch of JSON-RPC is one request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from streams.settings.model import Serve

AT_ONCE_RETRY_S = 1.0
"""When to try again where another request has to end first: nobody knows when."""
ROUNDING = 1e-6
"""A token that lacks so little is whole: who waited as long as was said gets it."""


class TokenBucket(NamedTuple):
    """What is left of a bucket, at a time."""

    tokens: float
    at_s: float


class Refused429(NamedTuple):
    """Why a request has to wait, and how long."""

    why: str
    retry_after_s: float


def take(bucket: TokenBucket | None, now_s: float, *, rate: float, burst: float) -> tuple[TokenBucket, float]:
    """Return a bucket after one request, and the seconds until there is a token for it: 0 if it got one.

    None is a bucket that was never used, and full. A clock that goes back adds nothing, and takes nothing away.
    """
    before = TokenBucket(burst, now_s) if bucket is None else bucket
    now_s = max(now_s, before.at_s)
    tokens = min(burst, before.tokens + (now_s - before.at_s) * rate)
    if tokens >= 1 - ROUNDING:
        return TokenBucket(max(0.0, tokens - 1), now_s), 0.0
    return TokenBucket(tokens, now_s), (1 - tokens) / rate


class KeyLimits:
    """What each key has left. All of it runs in one event loop; there are as many entries as valid keys that asked."""

    def __init__(self, rule: Serve, clock: Callable[[], float] = time.monotonic) -> None:
        self._rule, self._clock = rule, clock
        self._buckets: dict[str, TokenBucket] = {}
        self._at_once: Counter[str] = Counter()

    def begin(self, key_id: str) -> Refused429 | None:
        """Take in that a key asks, or return why it has to wait. What is not refused ends with `end`."""
        rule = self._rule
        if rule.key_at_once and self._at_once[key_id] >= rule.key_at_once:
            why = f"key {key_id} has {rule.key_at_once} requests in progress (serve.key_at_once); wait for one of them"
            return Refused429(why, AT_ONCE_RETRY_S)
        if rule.key_per_s:
            bucket = self._buckets.get(key_id)
            self._buckets[key_id], wait_s = take(bucket, self._clock(), rate=rule.key_per_s, burst=rule.key_burst)
            if wait_s:
                why = f"key {key_id} asks more often than {rule.key_per_s:g} times a second (serve.key_per_s)"
                return Refused429(why, wait_s)
        self._at_once[key_id] += 1
        return None

    def end(self, key_id: str) -> None:
        """Take in that a request has its answer, or nobody waits for it any more."""
        self._at_once -= Counter((key_id,))  # which drops those at 0
