"""How often something may happen: a token bucket, as a pure function.

A bucket holds `burst` tokens at most and gains `rate` a second, so in any t seconds no more happens than
burst + rate * t. What is refused takes no token.
"""

from __future__ import annotations

from typing import NamedTuple

ROUNDING = 1e-6
"""A token that lacks so little is whole: who waited as long as was said gets it."""


class TokenBucket(NamedTuple):
    """What is left of a bucket, at a time."""

    tokens: float
    at_s: float


def take(bucket: TokenBucket | None, now_s: float, *, rate: float, burst: float) -> tuple[TokenBucket, float]:
    """Return a bucket after one request, and the seconds until there is a token for it: 0 if it got one.

    None is a bucket that was never used, and full. A clock that goes back adds nothing, and takes nothing away.

    >>> take(TokenBucket(0.5, 10.0), 10.1, rate=2, burst=3)[1]
    0.15...
    """
    before = TokenBucket(burst, now_s) if bucket is None else bucket
    now_s = max(now_s, before.at_s)
    tokens = min(burst, before.tokens + (now_s - before.at_s) * rate)
    if tokens >= 1 - ROUNDING:
        return TokenBucket(max(0.0, tokens - 1), now_s), 0.0
    return TokenBucket(tokens, now_s), (1 - tokens) / rate
