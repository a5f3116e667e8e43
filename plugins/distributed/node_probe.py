"""Describe a node: does it run Streamward, which release, and does it see the archive?

This module is sent to the node as source, so that a node without Streamward can be described, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `probe`."""
    return probe()


def describe(store: str, folders: tuple[str, ...]) -> dict[str, Any]:
    """Return what this node is, host and python, then its release, or the error."""
    import socket
    import sys

    node: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable}
    try:
        from plugins.distributed import executor

        node |= executor.release_and_unseen(store, folders)
    except Exception as exc:  # a foreign environment may raise anything, and that describes the node
        node["error"] = f"{type(exc).__name__}: {exc}"
    return node
