"""Python's search for cyclic garbage, in processes that answer or join within milliseconds.

Modules and a model are hundreds of thousands of objects that stay. Each full search looks at all of them, which stopped
a server for 20 to 50 ms; and thousands of records come at once that make no cycle.
"""

from __future__ import annotations

import gc

SEARCH_AFTER = (100_000, 20, 50)
"""New objects before the youngest are searched, and how many searches later the older ones are, and all of them."""


def settle() -> None:
    """Leave what there is now out of every later search, and search seldom: to be called once a process is ready."""
    gc.freeze()
    gc.set_threshold(*SEARCH_AFTER)
