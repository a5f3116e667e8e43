"""Lists of tools in settings: patterns of names, with arguments where they matter.

mail.*, acme.*/wipe, send_money(recipient) ──► ToolPattern each
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

_PATTERN = re.compile(r"([^\s,()]+)(?:\(([^()]*)\))?")
_LIST = re.compile(rf"\s*(?:{_PATTERN.pattern}\s*(?:,\s*|$))*")


class ToolPattern(NamedTuple):
    """Tools, by a pattern of their names."""

    pattern: str
    """Of TOOL, or of AGENT/TOOL."""
    arguments: tuple[str, ...] = ()
    """Arguments: a call of which the user named the values needs no consent."""

    def fits(self, agent_id: str, names: Iterable[str]) -> bool:
        """Return whether a tool of an agent is one of these, by one of its names."""
        return any(
            fnmatchcase(name, self.pattern) or ("/" in self.pattern and fnmatchcase(f"{agent_id}/{name}", self.pattern))
            for name in names
        )


def read_patterns(text: str) -> tuple[ToolPattern, ...]:
    """Return the patterns of a setting, as `mail.*, send_money(recipient)`. Raises ValueError."""
    if _LIST.fullmatch(text) is None:
        raise ValueError(f"{text[:200]!r} is no list of tools; expected names or patterns, as mail.*, pay(recipient)")
    return tuple(
        ToolPattern(pattern, tuple(name.strip() for name in arguments.split(",") if name.strip()))
        for pattern, arguments in _PATTERN.findall(text)
    )
