"""When a failed request is sent again: pauses that double, and one budget of retries for each server.

    retry n ──► first_s * 2^(n - 1), at most longest_s, less up to a half ──┐
    its server's budget: BURST at once, then one each SPACING_S ────────────┴──► the longer of the two

All threads that wait for a server share its budget, so a server that fails is not sent everything a second time at
once. A retry that is over the budget waits; it is not given up, since its answer would be lost.

Not covered: other processes, which have a budget of their own.
"""

from __future__ import annotations

import functools
import random
import threading
from time import monotonic
from urllib.parse import urlsplit

BURST = 20
"""Retries to a server at once."""
SPACING_S = 0.1
"""Time between further ones."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class RetryBudget:
    """The retries of one server. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_free_at = 0.0
        """When the burst is whole again, by time.monotonic()."""

    def pause_s(self, retry: int, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> float:
        """Return how long to wait before a retry, 1 or higher, and take it from the budget."""
        pause_s = min(longest_s, first_s * 2.0 ** (retry - 1)) * random.uniform(0.5, 1)  # noqa: S311 - spreads them
        with self._lock:
            now = monotonic()
            self._is_free_at = max(now, self._is_free_at) + SPACING_S
            return max(pause_s, self._is_free_at - now - BURST * SPACING_S)


def budget_of(url: str) -> RetryBudget:
    """Return the budget of the server of a URL."""
    return _budget_of(urlsplit(url).netloc)


@functools.cache
def _budget_of(_netloc: str) -> RetryBudget:
    return RetryBudget()
