"""Map schemas to the ids in records, and ids in frames to schemas.

    schema ──► id_of ──► id in the frame             id in the frame, event of the topic ──► schema_of ──► schema

Ids are those of lock.json, the same everywhere (`LockIds`), or a Schema Registry's (`RegistryIds`). Only the four bytes
in the frame differ: bodies, and so values, are the same. With a registry, an id in a topic's record means

    1. the registry's schema under the topic's subject: one of our versions, compared by canonical form, or another
    2. else, the version of the topic's event with that id in lock.json: written before there was a registry
    3. else, the registry's schema with that id in any subject; it is looked up once

An id for which 1 and 2 give different schemas is a clash (`RegistryIds.clashes`): such a record could be read as
either, so no process starts. Without `own_ids` there is no 2, and no clash.

Not covered: ids of two registries in one log.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import fastavro

from schemas import versions
from schemas.versions import Schema

MAGIC = 0
FRAME = struct.Struct(">bI")
"""The frame before a body: MAGIC and the schema id."""
MAX_LEARNED = 10_000
"""Maximum of looked-up ids in memory, since any producer may write any id."""

Ask = Callable[[int], str | None]
"""Returns the schema of an id as text, or None. It may wait for the registry, or raise."""


class LockIds:
    """The ids of lock.json. Nothing has to be looked up."""

    def id_of(self, schema: Schema) -> int:
        """Return the id for writing records with this schema."""
        return schema.id

    def schema_of(self, event: str, schema_id: int) -> Schema | None:
        """Return the schema of this id in a topic of `event`, or None; it may belong to another event."""
        return versions.files().by_id(schema_id)

    def ids_meaning(self, schema: Schema) -> frozenset[int]:
        """Return the ids known to mean this schema in a topic of its event."""
        return frozenset({schema.id})

    def id_to_look_up(self, event: str, payload: bytes | None) -> int | None:
        """Return the id in a payload if `schema_of` would have to look it up, which may take long."""
        return None

    def describe(self) -> str:
        """Return where ids are looked up, for the message about an unknown one."""
        ids = [schema_id for schema_id in versions.files().schemas if schema_id < versions.FIRST_PLUGIN_ID]
        return f"in schemas/lock.json (known: {min(ids)} to {max(ids)}; smaller ones are from before release 0.2.0)"


class RegistryVersion(NamedTuple):
    """A version in a registry, under the subject of a topic."""

    event: str
    """The event of the topic."""
    number: int
    """The registry's number of the version."""
    id: int
    text: str


class RegistryIds(LockIds):
    """The ids that a registry gave."""

    def __init__(self, registered: Iterable[RegistryVersion], ask: Ask, *, url: str, own_ids: bool = True) -> None:
        """Use the versions that the registry at `url` has under our subjects; `ask` is called for any other id."""
        self._ask, self._url, self._own_ids = ask, url, own_ids
        self._registered: dict[str, dict[int, Schema | None]] = {}
        self._anywhere: dict[int, Schema | None] = {}
        """The same for all subjects: an id means one schema, whatever subject it is in."""
        self._written: dict[int, int] = {}
        """The registry's ids by our own."""
        self._learned: dict[int, Schema | None] = {}
        exact: set[int] = set()
        for version in registered:
            schema = schema_from_text(version.text)
            self._registered.setdefault(version.event, {})[version.id] = self._anywhere[version.id] = schema
            if schema is None or schema.event != version.event:
                continue
            is_exact = json.loads(version.text) == schema.definition
            if schema.id not in self._written or (is_exact and schema.id not in exact):
                self._written[schema.id] = version.id
            if is_exact:
                exact.add(schema.id)

    def lacking(self) -> list[Schema]:
        """Return our schemas that the registry does not have."""
        return [schema for schema in versions.files().schemas.values() if schema.id not in self._written]

    def clashes(self) -> Iterator[str]:
        """Yield a sentence for each id that means one thing in the registry and another in lock.json."""
        for event, registered in self._registered.items() if self._own_ids else ():
            for schema_id, schema in registered.items():
                local = versions.files().by_id(schema_id)
                if local is None or local.event != event:
                    continue
                if schema and schema.event == event and _is_equal(schema, local):
                    continue
                remote = f"version {schema.version} of {schema.event}" if schema else "no schema of ours"
                yield (
                    f"a {event} with schema id {schema_id} may be version {local.version} of lock.json, or {remote} of "
                    f"the registry at {self._url}"
                )

    def id_of(self, schema: Schema) -> int:
        """Return the registry's id of a schema. Raises KeyError if it is `lacking`."""
        return self._written[schema.id]

    def schema_of(self, event: str, schema_id: int) -> Schema | None:
        """Return the schema of this id in a topic of `event`, or None. Raises as `ask` does."""
        registered = self._registered.get(event, {})
        if schema_id in registered:
            return registered[schema_id]
        local = self._local(schema_id)
        if local is not None and local.event == event:
            return local
        if schema_id in self._anywhere:
            return self._anywhere[schema_id]
        if schema_id not in self._learned:
            text = self._ask(schema_id)
            if len(self._learned) >= MAX_LEARNED:
                self._learned.clear()
            self._learned[schema_id] = local if text is None else schema_from_text(text)
        return self._learned.get(schema_id)

    def ids_meaning(self, schema: Schema) -> frozenset[int]:
        """Return the ids known to mean this schema in a topic of its event."""
        registered = self._registered.get(schema.event, {})
        meaning = {schema_id for schema_id, other in registered.items() if other is not None and other.id == schema.id}
        if self._local(schema.id) and schema.id not in registered:
            meaning.add(schema.id)
        return frozenset(meaning)

    def id_to_look_up(self, event: str, payload: bytes | None) -> int | None:
        """Return the id in a payload if the registry must be asked for its meaning."""
        if payload is None or len(payload) < FRAME.size or payload[0] != MAGIC:
            return None
        schema_id = int.from_bytes(payload[1 : FRAME.size], "big")
        if schema_id in self._anywhere or schema_id in self._learned:
            return None
        local = self._local(schema_id)
        return None if local is not None and local.event == event else schema_id

    def describe(self) -> str:
        """Return where ids are looked up, for the message about an unknown one."""
        lock = ", and not in schemas/lock.json" if self._own_ids else ""
        return f"the id of a schema of ours in the registry at {self._url}{lock}"

    def _local(self, schema_id: int) -> Schema | None:
        return versions.files().by_id(schema_id) if self._own_ids else None


def schema_from_text(text: str) -> Schema | None:
    """Return our schema that is the same on the wire as this text, apart from comments and layout, or None."""
    print_ = fingerprint(text)
    return None if print_ is None else _by_fingerprint().get(print_)


@cache
def _by_fingerprint() -> Mapping[str, Schema]:
    schemas = {}
    for schema in versions.files().schemas.values():
        print_ = fingerprint(schema.text)
        assert print_ is not None  # noqa: S101 - our own files are Avro
        schemas[print_] = schema
    return schemas


def fingerprint(text: str) -> str | None:
    """Return the SHA-256 of a schema's Parsing Canonical Form (Avro specification), or None if it is no Avro schema."""
    try:
        form: str = fastavro.schema.to_parsing_canonical_form(json.loads(text))
        return str(fastavro.schema.fingerprint(form, "SHA-256"))
    except Exception:  # fastavro raises anything for a foreign schema: KeyError, TypeError, its own ...
        return None


def _is_equal(first: Schema, second: Schema) -> bool:
    return fingerprint(first.text) == fingerprint(second.text)


# --- the ids of this process ------------------------------------------------------------------------------------------

LOCK_IDS = LockIds()


class _ProcessIds:
    """The ids that this process writes and reads with. They are the deployment's, so a process has one set."""

    def __init__(self, ids: LockIds) -> None:
        self._ids: LockIds | None = ids
        self._find_out: Callable[[], LockIds] = lambda: ids
        self._lock = threading.RLock()

    def set(self, ids: LockIds | None, find_out: Callable[[], LockIds]) -> None:
        """Use `ids` from now on, or the result of `find_out` once the first record needs it."""
        with self._lock:
            self._ids, self._find_out = ids, find_out

    def get(self) -> LockIds:
        """Return the ids, which the first caller finds out."""
        ids = self._ids
        if ids is not None:
            return ids
        with self._lock:
            if self._ids is None:
                self._ids = self._find_out()
            return self._ids


_of_this_process = _ProcessIds(LOCK_IDS)


def current() -> LockIds:
    """Return the ids that this process writes and reads with. Raises the errors of finding them."""
    return _of_this_process.get()


def use(ids: LockIds) -> None:
    """Write and read with these ids from now on, in the whole process."""
    _of_this_process.set(ids, lambda: ids)


def use_later(find_out: Callable[[], LockIds]) -> None:
    """Write and read with the ids that `find_out` returns; it is called when the first record is written or read."""
    _of_this_process.set(None, find_out)
