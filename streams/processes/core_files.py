"""Disable core files in processes that hold secrets: a core file contains the whole memory.

Not covered: an attached debugger, and memory that is swapped out.
"""

from __future__ import annotations

import resource

LEAST_BYTES = 1
"""No core file is so small, so Linux writes none; and with 1, other than with 0, it starts no program that
/proc/sys/kernel/core_pattern names either (fs/coredump.c)."""


def leave_none() -> None:
    """Let this process, and those that it starts, crash without a core file."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    least = LEAST_BYTES if hard == resource.RLIM_INFINITY else min(LEAST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (least, hard))
