"""The keys of persons, outside the log: a folder with a file each, or a command.

    create ──► a file that appears complete, or the one that is there          delete ──► overwritten, and gone

A key is written, flushed to the disk, and only then linked under its name, so of two processes that create one both get
the same, and a crash leaves none or all of it.

Not covered: what a disk or a backup keeps of a deleted file. An erasure holds all the same: the log has it, and a key
that comes back opens nothing (person_keys.py).
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import shlex
import subprocess
from pathlib import Path
from typing import Protocol

from plugins.privacy.privacy_settings import Privacy
from schemas.key_source import KEY_BYTES
from streams.errors import StreamwardError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
NOT_THERE = 3
"""Exit code of a command for a key that does not exist."""
COMMAND_S = 30.0


class KeyStoreError(StreamwardError):
    """The key store cannot be used now."""

    exit_code = 5


class KeyStore(Protocol):
    """Keys by name. Its methods may be called from any thread and process, and raise KeyStoreError."""

    def get(self, name: str) -> bytes | None:
        """Return a key; None: it does not exist."""

    def create(self, name: str) -> bytes:
        """Return a key, which is made if it does not exist."""

    def delete(self, name: str) -> None:
        """Delete a key if it exists."""


def store_of(rule: Privacy) -> KeyStore:
    """Return the store of the settings."""
    return FolderStore(Path(rule.key_folder)) if rule.key_folder else CommandStore(shlex.split(rule.command))


class FolderStore:
    """A file for each key, in folders by the end of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """As KeyStore."""
        path = self._path(name)
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise KeyStoreError(f"privacy.key_folder: {path} cannot be read: {exc.strerror}") from exc
        return _check(key, str(path))

    def create(self, name: str) -> bytes:
        """As KeyStore."""
        if (key := self.get(name)) is not None:
            return key
        path = self._path(name)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(key := secrets.token_bytes(KEY_BYTES))
                out.flush()
                os.fsync(out.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                return _check(path.read_bytes(), str(path))
            finally:
                draft.unlink()
                _flush(path.parent)
        except OSError as exc:
            raise KeyStoreError(f"privacy.key_folder: {path} cannot be written: {exc.strerror}") from exc
        return key

    def delete(self, name: str) -> None:
        """As KeyStore."""
        path = self._path(name)
        try:
            with path.open("r+b") as old:
                old.write(bytes(KEY_BYTES))
                old.flush()
                os.fsync(old.fileno())
            path.unlink()
            _flush(path.parent)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise KeyStoreError(f"privacy.key_folder: {path} cannot be deleted: {exc.strerror}") from exc

    def _path(self, name: str) -> Path:
        if NAME.fullmatch(name) is None:
            raise KeyStoreError(f"{name[:140]!r} is no name of a key; expected one that matches {NAME.pattern}")
        return self._folder / name[-2:] / name


class CommandStore:
    """A command that keeps keys elsewhere."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def get(self, name: str) -> bytes | None:
        """As KeyStore."""
        return self._run("get", name)

    def create(self, name: str) -> bytes:
        """As KeyStore."""
        if (key := self._run("create", name)) is None:
            raise KeyStoreError(f"privacy.command has no key {name} after create; check it")
        return key

    def delete(self, name: str) -> None:
        """As KeyStore."""
        self._run("delete", name, has_output=False)

    def _run(self, verb: str, name: str, *, has_output: bool = True) -> bytes | None:
        what = f"privacy.command {self._words[0]} {verb}"
        try:
            done = subprocess.run([*self._words, verb, name], capture_output=True, timeout=COMMAND_S)
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise KeyStoreError(f"{what} cannot be run: {type(exc).__name__}") from exc
        if done.returncode == NOT_THERE:
            return None
        if done.returncode:
            raise KeyStoreError(f"{what} ended with code {done.returncode}; expected 0, or {NOT_THERE} without a key")
        if not has_output:
            return None
        try:
            return _check(base64.b64decode(done.stdout.strip(), validate=True), what)
        except ValueError as exc:  # binascii.Error is one
            raise KeyStoreError(f"{what} printed no base64") from exc


def _check(key: bytes, place: str) -> bytes:
    if len(key) != KEY_BYTES or not any(key):
        raise KeyStoreError(f"{place} has {len(key)} bytes, and a key {KEY_BYTES} that are not all zero; restore it")
    return key


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
