"""Keep tensors of calls and results that are too large for a record in the adapter store.

    bytes ──► STORE/_calls/SHA256.safetensors ──► uri and sha256, in the record ──► bytes, hash compared

A file is named by its bytes, so writing it again changes nothing. No policy can have the name `_calls`.

Not covered: files stay after retention has deleted their records.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from streams.adapters.store import add_file, is_local, open_store
from streams.errors import EventError, SettingsError

FOLDER = "_calls"
SUFFIX = ".safetensors"


def put(store: str, content: bytes) -> tuple[str, str]:
    """Store bytes; return their URI and sha256. Raises SettingsError if the store cannot be written."""
    sha256 = hashlib.sha256(content).hexdigest()
    fs, root = open_store(store)
    path = f"{root.rstrip('/')}/{FOLDER}/{sha256}{SUFFIX}"
    try:
        if not fs.exists(path):
            if is_local(fs):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            add_file(fs, path, content)
    except OSError as exc:
        raise SettingsError(f"adapters.store={store}: tensors of a call cannot be written: {exc}; make room") from exc
    return str(fs.unstrip_protocol(path)), sha256


def get(store: str, uri: str, sha256: str) -> bytes:
    """Return the bytes with this sha256, also from a store that was moved. Raises EventError without them here."""
    fs, root = open_store(store)
    path = f"{root.rstrip('/')}/{FOLDER}/{sha256}{SUFFIX}"
    try:
        if not uri.endswith(f"/{FOLDER}/{sha256}{SUFFIX}"):
            raise EventError(f"{uri[:200]} is no file of calls in adapters.store={store}", reason="bad_tensors")
        content: bytes = fs.cat_file(path)
    except FileNotFoundError as exc:
        raise EventError(f"{uri} is missing from the store", reason="bad_tensors") from exc
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EventError(f"{uri} was changed: it has another sha256 than its record says", reason="bad_tensors")
    return content
