"""Limits of login attempts: a token bucket for each name at each address, and larger ones for name and for address.

    name, address ──► Attempts.wait_ms ──► 0, or milliseconds             a login that succeeds ──► give_back_tokens

An attempt takes a token from all of them. The small bucket stops guessing without locking out another person at the
same address, such as a proxy's, or the same person elsewhere. The larger ones limit one address with many names, and
many addresses with one name. A name that does not exist has buckets, too.

Not covered: each gateway counts separately; and one client of a proxy can keep the bucket of its address empty.
"""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass

from streams.access.token_bucket import TokenBucket, give_back, take

MOST_BUCKETS = 100_000
"""Beyond it those that were used longest ago are forgotten: memory is limited, whatever comes."""


@dataclass(frozen=True, slots=True)
class AttemptRule:
    """The burst and the refill rate of login attempts."""

    size: int
    every_ms: int

    @property
    def rate(self) -> float:
        """Attempts a second."""
        return 1000 / self.every_ms


A_NAME_THERE = AttemptRule(10, 30_000)
"""Of a name at one address."""
A_NAME = AttemptRule(100, 30_000)
"""Of a name at all addresses: as many as NIST SP 800-63B lets fail, and refilled as fast as one address may try."""
AN_ADDRESS = AttemptRule(300, 200)
"""Of an address with all names."""


class Attempts:
    """The buckets of one gateway; methods may be called from any thread."""

    def __init__(self, limit: int = MOST_BUCKETS) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        self._limit, self._lock = limit, threading.Lock()

    def wait_ms(self, name: str | None, address: str, now_ms: int) -> int:
        """Return 0, and take a token from each bucket; or how long to wait, and take none. `name`: None without one."""
        with self._lock:
            takes = [
                (key, *take(self._buckets.get(key), now_ms / 1000, rate=rule.rate, burst=rule.size))
                for key, rule in _keys(name, address)
            ]
            longest_s = max(wait_s for _, _, wait_s in takes)
            if longest_s > 0:
                return max(1, round(1000 * longest_s))
            for key, bucket, _ in takes:
                self._buckets.pop(key, None)  # to the end: it was used last
                self._buckets[key] = bucket
            while len(self._buckets) > self._limit:
                del self._buckets[next(iter(self._buckets))]
            return 0

    def give_back_tokens(self, name: str | None, address: str, now_ms: int) -> None:
        """Give back the tokens of a login that succeeded: a user with the right password is not guessing."""
        with self._lock:
            for key, rule in _keys(name, address):
                bucket = give_back(self._buckets.pop(key, None), now_ms / 1000, rate=rule.rate, burst=rule.size)
                if bucket.tokens < rule.size:
                    self._buckets[key] = bucket


def _keys(name: str | None, address: str) -> list[tuple[str, AttemptRule]]:
    at = f"address {network(address)}"
    if name is None:
        return [(at, AN_ADDRESS)]
    return [(f"{at} name {name}", A_NAME_THERE), (f"name {name}", A_NAME), (at, AN_ADDRESS)]


def network(address: str) -> str:
    """Return what one person has of addresses: an IPv4 address, or the /64 of an IPv6 one.

    >>> network("10.1.2.3"), network("2001:db8::7:1"), network("testclient")
    ('10.1.2.3', '2001:db8::/64', 'testclient')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
