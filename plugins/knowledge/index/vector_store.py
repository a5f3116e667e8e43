"""Vectors by chunk key, in one file per embedder that only grows until it is written again.

    key (32 bytes), checksum (4), float32 [dimensions] ──► appended under a lock ──► read when an index is made

A process that dies while it appends leaves a part of a record at the end, which the next one cuts off, or records that
do not have their checksum, which are not read. Nothing else is needed of the folder: without it the vectors are made
again.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from streams.files import hold_when_free, sync

SUFFIX = ".vectors"


class VectorStore:
    """The vectors of one embedder. Not thread-safe; several processes may have the same folder."""

    def __init__(self, folder: Path, embedder: str, dimensions: int) -> None:
        """Read what is there. Raises OSError. `embedder`: its digest."""
        self._folder, self._path = folder, folder / f"{embedder}{SUFFIX}"
        self._record = np.dtype([("key", "u1", 32), ("checksum", "<u4"), ("vector", "<f4", (dimensions,))])
        self._vectors: dict[bytes, np.ndarray] = {}
        records = self._records()
        keys, sums = records["key"], records["checksum"].tolist()
        for number, vector in enumerate(records["vector"]):
            key = keys[number].tobytes()
            if sums[number] == _checksum(key, vector):
                self._vectors[key] = vector

    def __contains__(self, key: bytes) -> bool:
        return key in self._vectors

    def __getitem__(self, key: bytes) -> np.ndarray:
        return self._vectors[key]

    def put(self, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        """Keep vectors. Raises OSError. What a machine that stops loses of them is made again."""
        records = self._records_of(keys, vectors)
        with hold_when_free(self._folder), self._path.open("ab") as file:
            os.ftruncate(file.fileno(), file.tell() // self._record.itemsize * self._record.itemsize)
            file.write(records.tobytes())
        self._vectors.update(zip(keys, records["vector"], strict=True))

    def keep(self, keys: Collection[bytes]) -> None:
        """Forget all others, here and on the disk. Raises OSError."""
        if len(self._records()) == len(keys) == len(self._vectors):
            return
        self._vectors = {key: self._vectors[key] for key in keys}
        records = self._records_of([*self._vectors], np.array([*self._vectors.values()]))
        with hold_when_free(self._folder):
            half = self._path.with_suffix(".half")
            half.write_bytes(records.tobytes())
            sync(half)
            half.replace(self._path)

    def _records(self) -> np.ndarray:
        data = self._path.read_bytes() if self._path.exists() else b""
        return np.frombuffer(data[: len(data) // self._record.itemsize * self._record.itemsize], self._record)

    def _records_of(self, keys: Sequence[bytes], vectors: np.ndarray) -> np.ndarray:
        records = np.zeros(len(keys), self._record)
        if keys:
            records["key"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
            records["vector"] = vectors
            records["checksum"] = [_checksum(key, row) for key, row in zip(keys, records["vector"], strict=True)]
        return records


def _checksum(key: bytes, vector: np.ndarray) -> int:
    return zlib.crc32(vector.tobytes(), zlib.crc32(key))
