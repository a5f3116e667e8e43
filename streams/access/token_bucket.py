"""A token bucket, as a pure function.

A bucket holds `burst` tokens at most and gains `rate` a second, so in any t seconds no more happens than
burst + rate * t. A refusal takes no token.
"""

from __future__ import annotations

from typing import NamedTuple

ROUNDING = 1e-6
"""A token that lacks so little is whole: a caller that waited as long as told gets it."""


class TokenBucket(NamedTuple):
    """The rest of a bucket, at a time."""

    tokens: float
    at_s: float


def take(bucket: TokenBucket | None, now_s: float, *, rate: float, burst: float) -> tuple[TokenBucket, float]:
    """Return a bucket after one request, and the seconds until there is a token for it: 0 if it got one.

    None: a new, full bucket. A clock that goes back neither adds nor removes tokens.

    >>> take(TokenBucket(0.5, 10.0), 10.1, rate=2, burst=3)[1]
    0.15...
    """
    bucket = _refill(bucket, now_s, rate, burst)
    if bucket.tokens >= 1 - ROUNDING:
        return bucket._replace(tokens=max(0.0, bucket.tokens - 1)), 0.0
    return bucket, (1 - bucket.tokens) / rate


def give_back(bucket: TokenBucket | None, now_s: float, *, rate: float, burst: float) -> TokenBucket:
    """Return a bucket after a token that was taken and is not counted.

    >>> give_back(TokenBucket(0.0, 10.0), 10.5, rate=2, burst=3)
    TokenBucket(tokens=2.0, at_s=10.5)
    """
    bucket = _refill(bucket, now_s, rate, burst)
    return bucket._replace(tokens=min(burst, bucket.tokens + 1))


def spend(bucket: TokenBucket | None, now_s: float, amount: float, *, rate: float, burst: float) -> TokenBucket:
    """Return a bucket after an amount that was not known before. It may owe tokens then, which come in with time.

    >>> spend(TokenBucket(1.0, 10.0), 10.0, 5, rate=2, burst=3)
    TokenBucket(tokens=-4.0, at_s=10.0)
    """
    bucket = _refill(bucket, now_s, rate, burst)
    return bucket._replace(tokens=bucket.tokens - amount)


def _refill(bucket: TokenBucket | None, now_s: float, rate: float, burst: float) -> TokenBucket:
    """Return a bucket with what it gained until now."""
    if bucket is None:
        return TokenBucket(burst, now_s)
    at_s = max(now_s, bucket.at_s)
    return TokenBucket(min(burst, bucket.tokens + (at_s - bucket.at_s) * rate), at_s)
