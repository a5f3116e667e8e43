"""Look at a node: does it run Streamward, which, and does it see the archive? This module is sent there as source.

So it can be asked of a node that has nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `look`."""
    return look()


def look(store: str, folders: tuple[str, ...]) -> dict[str, Any]:
    """Return what this node is, host and python, then its release, or the error."""
    import socket
    import sys

    found: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable}
    try:
        from streams.tools.distributed import executor

        found |= executor.about(store, folders)
    except Exception as exc:  # whatever a foreign environment raises, it is what there is to say of this node
        found["error"] = f"{type(exc).__name__}: {exc}"
    return found
