"""How often somebody may try to log in: a token bucket for each name, and one for each address.

    take(bucket, rule, now) ──► the bucket afterwards, and how long to wait: 0 if one may try now
    name, address ──► Attempts.wait_ms ──► 0, or milliseconds             a login that succeeds ──► given_back

A bucket is full at first, and gains a token in `every_ms`. Both have to have a token, so that an address cannot try
many names, nor many addresses one name. A name that does not exist has a bucket, too.

Not covered: other gateways, each of which counts for itself. Behind a proxy all people have its address, so there the
bucket of an address is that of everyone together.
"""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass
from typing import NamedTuple

MOST_BUCKETS = 100_000
"""Beyond it those that were used longest ago are forgotten: memory is limited, whatever comes."""


@dataclass(frozen=True, slots=True)
class BucketRule:
    """How many tokens fit in, and how soon there is one more."""

    size: int
    every_ms: int


class AttemptBucket(NamedTuple):
    """How many tokens there were at a time; a part of one is one that is still to come."""

    tokens: float
    at_ms: int


A_NAME = BucketRule(10, 30_000)
AN_ADDRESS = BucketRule(30, 2_000)


def take(bucket: AttemptBucket | None, rule: BucketRule, now_ms: int) -> tuple[AttemptBucket, int]:
    """Return the bucket without a token, and 0; or as it is, and in how many milliseconds it has one.

    >>> take(None, BucketRule(1, 1000), 0)
    (AttemptBucket(tokens=0.0, at_ms=0), 0)
    >>> take(AttemptBucket(0.0, 0), BucketRule(1, 1000), 400)
    (AttemptBucket(tokens=0.4, at_ms=400), 600)
    """
    tokens = _tokens(bucket, rule, now_ms)
    if tokens < 1:
        return AttemptBucket(tokens, now_ms), max(1, round((1 - tokens) * rule.every_ms))
    return AttemptBucket(tokens - 1, now_ms), 0


def _tokens(bucket: AttemptBucket | None, rule: BucketRule, now_ms: int) -> float:
    if bucket is None:
        return float(rule.size)
    return min(float(rule.size), bucket.tokens + max(0, now_ms - bucket.at_ms) / rule.every_ms)


class Attempts:
    """The buckets of one gateway; methods may be called from any thread."""

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self._buckets: dict[str, AttemptBucket] = {}
        self._most, self._lock = most, threading.Lock()

    def wait_ms(self, name: str, address: str, now_ms: int) -> int:
        """Return 0, and take a token from both; or how long to wait, and take none."""
        with self._lock:
            taken = [
                (key, *take(self._buckets.get(key), rule, now_ms))
                for key, rule in ((f"name {name}", A_NAME), (f"address {network(address)}", AN_ADDRESS))
            ]
            longest = max(wait for _, _, wait in taken)
            if longest == 0:
                for key, bucket, _ in taken:
                    self._buckets.pop(key, None)  # to the end: it was used last
                    self._buckets[key] = bucket
                while len(self._buckets) > self._most:
                    del self._buckets[next(iter(self._buckets))]
            return longest

    def given_back(self, name: str, address: str, now_ms: int) -> None:
        """Give back the tokens of a login that succeeded: who knows the password is not guessing."""
        with self._lock:
            for key, rule in ((f"name {name}", A_NAME), (f"address {network(address)}", AN_ADDRESS)):
                tokens = _tokens(self._buckets.pop(key, None), rule, now_ms) + 1
                if tokens < rule.size:
                    self._buckets[key] = AttemptBucket(tokens, now_ms)


def network(address: str) -> str:
    """Return what one person has of addresses: an IPv4 address, or the /64 of an IPv6 one.

    >>> network("10.1.2.3"), network("2001:db8::7:1"), network("testclient")
    ('10.1.2.3', '2001:db8::/64', 'testclient')
    """
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if known.version == 4:
        return str(known)
    return str(ipaddress.ip_network((known, 64), strict=False))
