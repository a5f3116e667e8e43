"""SQL over everything that happened, old and new, without moving it first.

For a notebook: `from streams.query import connect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.query.session import connect as connect


def __getattr__(name: str) -> Any:
    """Load DuckDB when it is asked for: the command line imports this package only to say what it can do."""
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streams.query.session import connect

    return connect
