"""A page of docs that a module of the tests makes: written, or with --check compared with the one that is there."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Return the exit code of the command: 1 if it only checks, and the page would change."""
    if "--check" in sys.argv[1:]:
        return int(path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")
    return 0
