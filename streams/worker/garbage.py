"""Tune Python's cyclic garbage collection for processes that answer or join within milliseconds.

Modules and a model are hundreds of thousands of objects that stay. Each full search looks at all of them, which stopped
a server for 20 to 50 ms; and thousands of records arrive at once without making a cycle.
"""

from __future__ import annotations

import gc

SEARCH_AFTER = (100_000, 20, 50)
"""New objects before the youngest generation is searched, and the numbers of searches before the older ones are."""


def settle() -> None:
    """Exclude all present objects from later searches, and search seldom. Call it once a process is ready."""
    gc.freeze()
    gc.set_threshold(*SEARCH_AFTER)
