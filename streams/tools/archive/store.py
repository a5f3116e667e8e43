"""The files of an archive, in a folder or an object store.

    local file ──put──► STORE/TOPIC/_partition=P/_day=D/NAME          bytes ──create──► a small file, unless it is there

In a folder a file appears by one rename or link, once its bytes are on disk. In an object store it appears once it is
uploaded; `create` looks beforehand. Object stores are those that Delta's own driver has (s3, gs, az), which takes
credentials from the environment.

A folder must be on a file system with hard links: Delta uses them to decide which writer was first.
"""

from __future__ import annotations

import configparser
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import PyFileSystem

from streams import files
from streams.errors import LogError, SettingsError
from streams.files import Scratch

HALF = ".half-"
"""Prefix of files that are being written; their writer holds a lock on them."""
CHUNK_BYTES = 1 << 20
_REFUSED = re.compile(r"[\[\]^|\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""What Delta's driver ends the process for in a folder's path, or takes for another folder."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m|↳")
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class Store:
    """An archive's files. Every method raises LogError if the store does not do what it should."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.options = _options(url)
        """The options of Delta's driver."""
        self._fs, self._root = _open(url, self.options)
        self.local = Path(self._root) if _is_local(self._fs) else None

    def location(self, name: str) -> str:
        """Return a file's path, or its URL in an object store."""
        return f"{self._root}/{name}"

    def uri(self, folder: str) -> str:
        """Return where a folder is, as Delta takes it."""
        return str(self.local.absolute() / folder) if self.local else f"{self._root}/{folder}"

    @property
    def filesystem(self) -> Any:
        """The files as fsspec has them, by the names that `location` gives."""
        return self._fs

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        with self._translate_errors(f"{folder} cannot be listed"):
            self._fs.invalidate_cache()
            try:
                paths = self._fs.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def read(self, name: str) -> bytes | None:
        """Return a small file's bytes, or None if it does not exist."""
        with self._translate_errors(f"{name} cannot be read"):
            try:
                data: bytes = self._fs.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data

    def open(self, name: str) -> IO[bytes]:
        """Return a file to read. Raises FileNotFoundError if it is not there."""
        with self._translate_errors(f"{name} cannot be read", keep=FileNotFoundError):
            file: IO[bytes] = self._fs.open(f"{self._root}/{name}", "rb")
            return file

    def sha256(self, name: str) -> str:
        """Return the sha256 of a file. Raises FileNotFoundError if it is not there."""
        digest = hashlib.sha256()
        with self.open(name) as file, self._translate_errors(f"{name} cannot be read"):
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    @contextlib.contextmanager
    def half(self, folder: str) -> Iterator[Path]:
        """Yield the path of a new local file, which is removed afterwards unless `put` moved it."""
        if self.local is None:
            with self._translate_errors("the temporary folder cannot be written"):
                scratch = Scratch("archive")
            with scratch as place:
                (place / HALF).touch()
                yield place / HALF
            return
        with self._translate_errors(f"{folder} cannot be written"):
            place = self.local / folder
            place.mkdir(parents=True, exist_ok=True)
            path, lock = _new_locked_file(place)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def put(self, half: Path, name: str) -> None:
        """Move a finished file to its name, under which it is only ever seen whole."""
        with self._translate_errors(f"{name} cannot be written"):
            if self.local is None:
                with half.open("rb") as source, self._fs.open(f"{self._root}/{name}", "wb") as target:
                    shutil.copyfileobj(source, target, CHUNK_BYTES)
                return
            (self.local / name).parent.mkdir(parents=True, exist_ok=True)
            files.sync(half)
            half.rename(self.local / name)
            files.sync((self.local / name).parent)

    def write(self, name: str, data: bytes, *, half_in: str) -> None:
        """Write a file, which is in the folder `half_in` until it is whole."""
        with self.half(half_in) as half:
            with self._translate_errors(f"{name} cannot be written"):
                half.write_bytes(data)
            self.put(half, name)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file, and return True; or False if the name is taken."""
        if self.local is None:
            with self._translate_errors(f"{name} cannot be written"):
                if self._fs.exists(f"{self._root}/{name}"):
                    return False
                self._fs.pipe_file(f"{self._root}/{name}", data)
                return True
        with self.half(name.rpartition("/")[0]) as half, self._translate_errors(f"{name} cannot be written"):
            half.write_bytes(data)
            files.sync(half)
            try:
                os.link(half, self.local / name)
            except FileExistsError:
                return False
            files.sync((self.local / name).parent)
            return True

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._translate_errors(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
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
    def _translate_errors(
        self, failure: str, *, keep: type[OSError] | tuple[type[OSError], ...] = ()
    ) -> Iterator[None]:
        try:
            yield
        except keep:
            raise
        except OSError as exc:
            hint = "make room, or set archive.store to a place that can be read and written"
            if exc.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                hint = "the store must be readable, writable, and have hard links if it is a folder"
            raise LogError(f"archive.store={self._url}: {failure}: {exc}; {hint}") from exc


class _Upload:
    """A file that is being written. Arrow hands over buffers, and Delta's driver wants bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.close, self.flush, self.tell = stream.close, stream.flush, stream.tell

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))


class _OpenedByDelta(DeltaStorageHandler):
    """Delta's driver as a file system of Arrow's."""

    def open_output_stream(self, path: str, metadata: Any = None) -> Any:
        """Open a file to write."""
        return pa.PythonFile(_Upload(self._handler.open_output_stream(path, metadata)), mode="w")


class _Objects(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """The files of an object store, as Delta's driver reads and writes them."""

    protocol = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
    cachable = False

    def __init__(self, url: str, options: dict[str, str]) -> None:
        super().__init__(PyFileSystem(_OpenedByDelta(url, options)))
        self._url = url

    def _strip_protocol(self, path: str) -> str:
        return path.removeprefix(self._url).lstrip("/")

    def unstrip_protocol(self, name: str) -> str:
        """Return a file's URL."""
        return f"{self._url}/{self._strip_protocol(name)}"


def _options(url: str) -> dict[str, str]:
    """Return what Delta's driver must be told of S3: that an endpoint has no TLS, and the keys in AWS's file of them.

    Everything else it finds in the environment. Raises SettingsError if that file is not one.
    """
    if not url.startswith("s3"):
        return {}
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    options = {"aws_allow_http": "true"} if plain else {}
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if path is None or "AWS_ACCESS_KEY_ID" in os.environ:
        return options
    credentials = configparser.RawConfigParser()
    try:
        credentials.read_string(Path(path).read_text(encoding="utf-8"))
        profile = credentials[os.environ.get("AWS_PROFILE", "default")]
    except (OSError, ValueError, KeyError, configparser.Error) as exc:
        raise SettingsError(
            f"AWS_SHARED_CREDENTIALS_FILE={path}: no credentials for archive.store={url} in it: {exc!r}; write them "
            "there, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from exc
    return options | {name: profile[name] for name in _KEYS if name in profile}


def _open(url: str, options: dict[str, str]) -> tuple[Any, str]:
    """Return the files, and what their names begin with. Raises SettingsError for what no driver takes."""
    if "://" not in url:
        folder = LocalFileSystem._strip_protocol(url)
        if refused := _REFUSED.search(os.path.realpath(folder)):
            raise SettingsError(
                f"archive.store={url}: Delta's driver takes no folder with {refused[0]!r} in its path; name another one"
            )
        return LocalFileSystem(), folder
    root = url.rstrip("/")
    try:
        return _Objects(root, options), root
    except (DeltaError, ValueError, OSError, NotImplementedError) as exc:
        raise SettingsError(
            f"archive.store={url}: {message_of(exc)}; use a folder, or an object store that Delta has a driver for, "
            "e.g. s3://bucket/path"
        ) from exc


def message_of(exc: Exception) -> str:
    """Return what an error of Delta's driver says, in one line, without colours and the stack of Rust."""
    return " ".join(_COLOUR.sub("", str(exc)).split("\n   0: ", 1)[0].split())


def _is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


def _new_locked_file(folder: Path) -> tuple[Path, int]:
    """Return a new file and a handle that holds its lock."""
    while True:
        path = folder / f"{HALF}{uuid.uuid4().hex}"
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # `sweep` removed it between the two
