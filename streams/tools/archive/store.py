"""The files of an archive, in a folder or an object store.

    local file ──put──► STORE/TOPIC/PARTITION/NAME          bytes ──create──► the same, unless it is there

In a folder a file appears by one rename or link, once its bytes are on disk. In an object store it appears once it is
uploaded; `create` is a conditional put where the driver has one (s3, gcs), and a check beforehand where it has not.

A folder must be on a file system with hard links: `create` needs them to decide which writer was first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from streams.errors import LogError, SettingsError
from streams.files import Scratch

HALF = ".half-"
"""Prefix of files that are being written; their writer holds a lock on them."""
CHUNK_BYTES = 1 << 20


class Store:
    """An archive's files. Every method raises LogError if the store does not do what it should."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._root = _open(url)
        self.local = Path(self._root) if _is_local(self._fs) else None

    def where(self, name: str) -> str:
        """Return a file's path, or its URL in an object store."""
        path = f"{self._root}/{name}"
        return path if self.local else str(self._fs.unstrip_protocol(path))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if the folder does not exist."""
        with self._translated(f"{folder} cannot be listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def read(self, name: str) -> bytes | None:
        """Return a small file's bytes, or None if it does not exist."""
        with self._translated(f"{name} cannot be read"):
            try:
                data: bytes = self._fs.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data

    def open(self, name: str) -> IO[bytes]:
        """Return a file to read. Raises FileNotFoundError if it is not there."""
        with self._translated(f"{name} cannot be read", keep=FileNotFoundError):
            file: IO[bytes] = self._fs.open(f"{self._root}/{name}", "rb")
            return file

    def sha256(self, name: str) -> str:
        """Return the sha256 of a file. Raises FileNotFoundError if it is not there."""
        digest = hashlib.sha256()
        with self.open(name) as file, self._translated(f"{name} cannot be read"):
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    @contextlib.contextmanager
    def half(self, folder: str) -> Iterator[Path]:
        """Yield the path of a new local file, which is removed afterwards unless `put` moved it."""
        if self.local is None:
            with self._translated("the temporary folder cannot be written"):
                scratch = Scratch("archive")
            with scratch as place:
                (place / HALF).touch()
                yield place / HALF
            return
        with self._translated(f"{folder} cannot be written"):
            place = self.local / folder
            place.mkdir(parents=True, exist_ok=True)
            path, lock = _locked(place)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def put(self, half: Path, name: str) -> None:
        """Move a finished file to its name, under which it is only ever seen whole."""
        with self._translated(f"{name} cannot be written"):
            if self.local is None:
                self._fs.put_file(str(half), f"{self._root}/{name}")
                return
            _sync(half)
            half.rename(self.local / name)
            _sync((self.local / name).parent)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file, and return True; or False if the name is taken."""
        if self.local is None:
            with self._translated(f"{name} cannot be written"):
                try:
                    self._fs.pipe_file(f"{self._root}/{name}", data, mode="create")
                except (FileExistsError, PermissionError) as exc:
                    if self._fs.exists(f"{self._root}/{name}"):
                        return False
                    raise exc
                return bool(self._fs.cat_file(f"{self._root}/{name}") == data)
        with self.half(name.rpartition("/")[0]) as half, self._translated(f"{name} cannot be written"):
            half.write_bytes(data)
            _sync(half)
            try:
                os.link(half, self.local / name)
            except FileExistsError:
                return False
            _sync((self.local / name).parent)
            return True

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._translated(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def sweep(self, folder: str) -> None:
        """Remove what killed writers left unfinished; files that are still written are locked, and stay."""
        if self.local is None:
            return
        for path in (self.local / folder).glob(f"{HALF}*"):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(handle)

    @contextlib.contextmanager
    def _translated(self, what: str, *, keep: type[OSError] | tuple[type[OSError], ...] = ()) -> Iterator[None]:
        try:
            yield
        except keep:
            raise
        except OSError as exc:
            hint = "make room, or set archive.store to a place that can be read and written"
            if exc.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                hint = "the store must be readable, writable, and have hard links if it is a folder"
            raise LogError(f"archive.store={self._url}: {what}: {exc}; {hint}") from exc


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as exc:
        raise SettingsError(f"archive.store={url}: {exc}; install the driver, or use a folder") from exc
    return fs, str(path).rstrip("/")


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _locked(folder: Path) -> tuple[Path, int]:
    """Return a new file and a handle that holds its lock."""
    while True:
        path = folder / f"{HALF}{uuid.uuid4().hex}"
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # swept away between the two


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
