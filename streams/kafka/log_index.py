"""Where in a topic the records of a key are, kept on this machine's disk, so that finding a few reads a few.

    topic ──► LogIndex ──► rows, sorted by the digest of the key: offset, partition, label
                 └──► ~/.cache/streamward/index/TOPIC_ID-NAME, written again once SAVED_ROWS and a twentieth are new

The file is a projection: without it the topic is read from its first record. It is used only if it is whole (by its
checksum), of this format and of this topic (by the id that Kafka gave it: a recreated topic has another), and if the
last record that it covers in each partition is where it was, with the same key and time. Where a file is
written, those that no process has opened for UNUSED_DAYS are removed, as those of deleted topics: topics of another
cluster have files here, too, and are not listed by this one.

Not covered: two keys with the same digest, of 16 bytes, would be taken for one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import struct
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schemas import json_text
from schemas.events import Coordinates
from streams.errors import LogError, SettingsError
from streams.files import cache_folder
from streams.kafka.admin import topic_ids
from streams.kafka.reader import fetch
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerUnreachable
from streams.kafka.topic_ids import NO_ID
from streams.settings.model import Settings

FORMAT = 1
"""Version of the file. One of another version is ignored."""
SAVED_ROWS = 10_000
"""New rows with which the file is written again; a short log has none."""
UNUSED_DAYS = 30
ROW = struct.Struct("<16sqii")
_DIGEST = 16
_CHECKSUM = 32

log = logging.getLogger("streamward.kafka")


class IndexRow(NamedTuple):
    """One row of a key."""

    offset: int
    partition: int
    label: int
    """A number that the writer chose."""


class LogIndex:
    """The rows of one topic, and how far they cover it. Not thread-safe."""

    def __init__(
        self, settings: Settings, topic: str, bounds: Mapping[TopicPartition, tuple[int, int]], *, name: str = "keys"
    ) -> None:
        """`topic`: its full name. `bounds`: first offset and end of the partitions to use. `name`: of the file.

        Raises LogError if the broker does not answer.
        """
        self._topic, self._name = topic, name
        self._bounds = {partition: bound for (of, partition), bound in bounds.items() if of == topic}
        self._topic_id = topic_ids(settings, [topic])[topic]
        self.clear()
        self._load(self._path or Path(os.devnull))
        if self._lasts and not self._is_of_this_log(settings):
            log.warning("%s: %s is not of this log as it is now, and is made again", topic, self._path)
            self.clear()

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that the rows do not cover."""
        nexts = {partition: offset + 1 for partition, (offset, *_) in self._lasts.items()}
        nexts |= {partition: record.at.offset + 1 for partition, record in self._covered.items()}
        return {
            (self._topic, partition): max(first, nexts.get(partition, 0))
            for partition, (first, _) in self._bounds.items()
        }

    def add(self, key: bytes, at: Coordinates, label: int = 0) -> None:
        """Add a row."""
        row = IndexRow(at.offset, at.partition, label)
        self._new.setdefault(_digest(key), []).append(row)
        self.new_rows += 1

    def cover(self, record: Record) -> None:
        """Note that the rows cover a partition up to this record."""
        self._covered[record.at.partition] = record

    def find(self, key: bytes) -> list[IndexRow]:
        """Return the rows of a key whose records retention has not deleted, oldest first."""
        digest = _digest(key)
        place = bisect_left(range(self._count), digest, key=self._digest_of)
        rows = []
        while place < self._count and self._digest_of(place) == digest:
            rows.append(IndexRow(*ROW.unpack_from(self._rows, place * ROW.size)[1:]))
            place += 1
        return [row for row in (*rows, *self._new.get(digest, ())) if row.offset >= self._first(row.partition)]

    def save(self) -> None:
        """Write the file if SAVED_ROWS are new, and a twentieth. A folder that cannot be written is no error."""
        if self.new_rows < max(SAVED_ROWS, self._count // 20) or self._path is None:
            return
        content = self._content()
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, half = tempfile.mkstemp(prefix=".half-", dir=self._path.parent)
            try:
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                self._load(Path(half))
                os.replace(half, self._path)
            except OSError:
                os.unlink(half)
                raise
            _remove_unused(self._path.parent)

    def clear(self) -> None:
        """Forget all rows, as if there were no file."""
        self._rows: memoryview = memoryview(b"")
        self._count = self.new_rows = 0
        self._new: dict[bytes, list[IndexRow]] = {}
        self._lasts: dict[int, tuple[int, int, str]] = {}
        """The end of what the file covers, by partition."""
        self._covered: dict[int, Record] = {}
        """The newest record of each that was covered since."""
        self.notes: dict[str, Any] = {}
        """What the writer keeps with the rows, as JSON."""

    @property
    def _path(self) -> Path | None:
        if self._topic_id == NO_ID:
            return None
        try:
            return cache_folder("index") / f"{self._topic_id}-{self._name}".replace("/", "_")
        except SettingsError:  # no home folder
            return None

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            if hashlib.sha256(whole[_CHECKSUM:]).digest() != whole[:_CHECKSUM]:
                raise ValueError("its checksum differs")
            start = _CHECKSUM + 4
            (size,) = struct.unpack_from("<i", whole, _CHECKSUM)
            header = json_text.parse(bytes(whole[start : start + size]).decode())
            if (header["format"], header["topic_id"]) != (FORMAT, self._topic_id):
                raise ValueError("it is of another format or topic")
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, LookupError, struct.error) as exc:
            if path != Path(os.devnull):
                log.warning("%s is not used, and is made again: %s", path, exc)
            return
        with contextlib.suppress(OSError):  # of a folder that cannot be written
            os.utime(path)
        self._rows = whole[start + size :]
        self._count, self._new, self.new_rows = len(self._rows) // ROW.size, {}, 0
        self._covered = {}
        self._lasts = {int(partition): tuple(last) for partition, last in header["lasts"].items()}
        self.notes = header["notes"]

    def _is_of_this_log(self, settings: Settings) -> bool:
        """Return whether the last record of each partition is the one that the rows cover, if it is not deleted."""
        lasts = {
            Coordinates(self._topic, p, self._lasts[p][0]): self._lasts[p] for p in self._bounds if p in self._lasts
        }
        if any(place.offset >= self._bounds[place.partition][1] for place in lasts):
            return False
        present = [place for place in lasts if place.offset >= self._bounds[place.partition][0]]
        try:
            return all(_identity(record) == lasts[place] for place, record in fetch(settings, present).items())
        except BrokerUnreachable:
            raise
        except LogError:  # no record has this offset
            return False

    def _content(self) -> bytes:
        """Return the header and all rows, without those of deleted records."""
        import numpy as np

        new = b"".join(ROW.pack(digest, *row) for digest, rows in self._new.items() for row in rows)
        kind = [("digest", f"S{_DIGEST}"), ("offset", "<i8"), ("partition", "<i4"), ("label", "<i4")]
        rows = np.frombuffer(bytes(self._rows) + new, dtype=kind)
        gone = np.zeros(len(rows), dtype=bool)
        for partition, (first, _) in self._bounds.items():
            gone |= (rows["partition"] == partition) & (rows["offset"] < first)
        rows = rows[~gone]
        lasts = self._lasts | {partition: _identity(record) for partition, record in self._covered.items()}
        header = {"format": FORMAT, "topic_id": self._topic_id, "lasts": lasts, "notes": self.notes}
        text = json.dumps(header).encode()
        return struct.pack("<i", len(text)) + text + rows[np.lexsort((rows["offset"], rows["digest"]))].tobytes()

    def _digest_of(self, place: int) -> bytes:
        return bytes(self._rows[place * ROW.size : place * ROW.size + _DIGEST])

    def _first(self, partition: int) -> int:
        return self._bounds[partition][0] if partition in self._bounds else 0


def _remove_unused(folder: Path) -> None:
    before_s = time.time() - UNUSED_DAYS * 86_400
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST).digest()


def _identity(record: Record) -> tuple[int, int, str]:
    return record.at.offset, record.timestamp_ms, _digest(record.key or b"").hex()
