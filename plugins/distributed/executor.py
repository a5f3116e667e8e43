"""The check that an executor runs the release of the process that sent it work.

    this process: release() ──► ReleaseCheck(work) ──► executor: release() the same? ──► work

The same events give the same bytes only under the same code, so another release is an error and never a difference.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from schemas import ids as numbering, versions
from streams.errors import SettingsError
from streams.files import code_version
from streams.tools.archive.store import Store


class Release(NamedTuple):
    """A release of Streamward: the code and schemas that decide the bytes of an event."""

    version: str
    code: str
    """A digest of the source files."""
    schemas: tuple[str, ...]
    """The ids in schemas/lock.json, each with the first digits of its sha256."""


@cache
def release() -> Release:
    """Return the release that this process runs."""
    version, code = code_version().split()
    schemas = sorted(versions.files().schemas.items())
    return Release(version, code, tuple(f"{number}-{schema.sha256[:8]}" for number, schema in schemas))


def release_and_unseen(store: str, folders: tuple[str, ...]) -> dict[str, Any]:
    """Return this release, and the folders of an archive that are not seen from here."""
    archive = Store(store)
    return {**release()._asdict(), "unseen": [folder for folder in folders if not archive.names(folder)]}


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """Work that is done only where the release is the same, with the schema ids of the process that sent it."""

    work: Any
    expected: Release
    ids: numbering.LockIds

    def __call__(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Do it. Raises SettingsError on another release, and what the work raises."""
        if (installed := release()) != self.expected:
            raise SettingsError(
                f"{socket.gethostname()} has Streamward {installed.version} ({installed.code}), expected "
                f"{self.expected.version} ({self.expected.code}); install the same on every node"
            )
        numbering.use(self.ids)
        yield from self.work(task)


def same_release(work: Any) -> ReleaseCheck:
    """Return work for executors that run the release of this process."""
    return ReleaseCheck(work, release(), numbering.current())
