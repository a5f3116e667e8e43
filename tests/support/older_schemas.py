"""Schema files with a past: version 1 of some events lacked fields, and version 2 is the schema of today.

with older_schemas(tmp_path, {Task: {"tenant"}}) as files:
    payload = in_version_1(task(), files)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from schemas import ids, serde, versions
from schemas.events import EVENTS, Event
from schemas.versions import FIRST_ID, SchemaVersions


@contextmanager
def older_schemas(folder: Path, lacking: Mapping[type[Event], Set[str]]) -> Iterator[SchemaVersions]:
    """Read and write with such schemas; `lacking` has the names of the fields that came later, at any depth."""
    made = written(folder, lacking)
    with in_use(made):
        yield made


@contextmanager
def in_use(files: SchemaVersions) -> Iterator[None]:
    """Read and write with these schemas instead of those of the package."""
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(versions, "files", lambda: files)
            _forget()
            yield
    finally:
        _forget()


def _forget() -> None:
    for cache in (serde._newest, ids._by_fingerprint):
        cache.cache_clear()


def written(folder: Path, lacking: Mapping[type[Event], Set[str]], *, newest: bool = True) -> SchemaVersions:
    """Write such schema files, without version 2 unless `newest`."""
    today = {event: versions.files().newest(event).definition for event in EVENTS}
    entries = [(event, 1, _without(today[event], lacking.get(event, set()))) for event in EVENTS]
    entries += [(event, 2, today[event]) for event in lacking if newest]
    lock = []
    for number, (event, version, definition) in enumerate(entries, start=FIRST_ID):
        text = json.dumps(definition)
        path = folder / "avro" / event.__name__ / f"{version}.avsc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = sha256(text.encode()).hexdigest()
        lock.append({"id": number, "event": event.__name__, "version": version, "sha256": digest})
    (folder / "lock.json").write_text(json.dumps(lock))
    return SchemaVersions(folder)


def _without(node: Any, names: Set[str]) -> Any:
    if isinstance(node, list):
        return [_without(each, names) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: [_without(field, names) for field in value if field["name"] not in names]
        if key == "fields"
        else _without(value, names)
        for key, value in node.items()
    }
