"""A file of JSON lines that holds all state: its contents are read when it is opened.

One process at a time writes it. A last line that was truncated by a kill is removed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Self

from schemas import json_text
from streams.errors import RefusedError


class LineFile:
    """Use as a context manager."""

    def __init__(self, path: Path, remember: Callable[[Any], None], description: str) -> None:
        """Open it, and repair its end. `remember` gets each line's value; it raises KeyError or TypeError for an
        invalid one.

        Raises RefusedError if it is not such a file, which `description` names, or another process writes it.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("a+b")
        try:
            self._begin(remember, description)
        except BaseException:  # KeyboardInterrupt too: the open file holds the lock
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _begin(self, remember: Callable[[Any], None], description: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RefusedError(f"{self.path}: another export writes it; stop that one, or name another folder") from exc
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):  # cut off: its writer was killed
                break
            try:
                remember(json_text.parse(line))
            except (ValueError, KeyError, TypeError) as exc:
                raise RefusedError(
                    f"{self.path}:{number}: expected a line of {description}; name another folder, or remove what is "
                    "in this file"
                ) from exc
            end += len(line)
        self._file.truncate(end)

    def append(self, value: Any) -> None:
        """Append a line."""
        self._file.write(json_text.one_line(value).encode() + b"\n")

    def flush(self) -> None:
        """Return when what was appended is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
