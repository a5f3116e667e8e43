"""How much of a test's work is done: a part of it in `make test`, all of it in `make test-full`."""

from __future__ import annotations

import os

FULL = os.environ.get("TEST_FULL") == "1"
LEAST = 10
"""Examples below which a property is hardly looked at."""


def examples(most: int) -> int:
    """Return how many examples hypothesis draws for a test that is drawn `most` of them in full."""
    return most if FULL else min(most, max(LEAST, most // 4))
