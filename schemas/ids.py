"""Which id a record is written with, and which schema the id in a frame means.

    schema ──► id_of ──► id in the frame             id in the frame, event of the topic ──► schema_of ──► schema

Ids are those of lock.json, the same everywhere (`LockIds`), or a Schema Registry's (`RegistryIds`). Only the four bytes
in the frame differ: bodies, and so values, are the same. With a registry, an id in a topic's record means

    1. what the registry has under the topic's subject: one of our versions, compared by canonical form, or none of ours
    2. else, the version of the topic's event with that id in lock.json: written before there was a registry
    3. else, what the registry has under that id in any subject; it is asked once

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
"""What precedes a body: MAGIC and the schema id."""
MOST_LEARNED = 10_000
"""Looked-up ids that are kept; a bound, since anybody may write any id."""

Ask = Callable[[int], str | None]
"""Returns the schema of an id as text, None if there is none. It may wait for the registry, or raise."""


class LockIds:
    """The ids of lock.json. Nothing has to be looked up."""

    def id_of(self, schema: Schema) -> int:
        """Return the id that records with this schema are written with."""
        return schema.id

    def schema_of(self, event: str, schema_id: int) -> Schema | None:
        """Return the schema of this id in a topic of `event`, or None; it may turn out to be of another event."""
        return versions.files().by_id(schema_id)

    def ids_meaning(self, schema: Schema) -> frozenset[int]:
        """Return the ids known to mean this schema in a topic of its event."""
        return frozenset({schema.id})

    def undecided(self, event: str, payload: bytes | None) -> int | None:
        """Return the id in a payload if `schema_of` would have to ask for it, which may take long."""
        return None

    def known(self) -> str:
        """Return where ids are looked up, for the message about an unknown one."""
        known = versions.files().schemas
        return f"in schemas/lock.json (known: {min(known)} to {max(known)}; smaller ones are from before release 0.2.0)"


class RegistryVersion(NamedTuple):
    """A version that a registry has under the subject of a topic."""

    event: str
    """The event of the topic."""
    number: int
    """The registry's number of the version."""
    id: int
    text: str


class RegistryIds(LockIds):
    """The ids that a registry gave."""

    def __init__(self, held: Iterable[RegistryVersion], ask: Ask, *, where: str, own_ids: bool = True) -> None:
        """Use what the registry at `where` has under our subjects; `ask` it about any other id."""
        self._ask, self._where, self._own_ids = ask, where, own_ids
        self._held: dict[str, dict[int, Schema | None]] = {}
        self._anywhere: dict[int, Schema | None] = {}
        """The same for all subjects: an id means one schema, whatever subject it is in."""
        self._written: dict[int, int] = {}
        """The registry's id by our own."""
        self._learned: dict[int, Schema | None] = {}
        exact: set[int] = set()
        for one in held:
            schema = ours(one.text)
            self._held.setdefault(one.event, {})[one.id] = self._anywhere[one.id] = schema
            if schema is None or schema.event != one.event:
                continue
            same = json.loads(one.text) == schema.definition
            if schema.id not in self._written or (same and schema.id not in exact):
                self._written[schema.id] = one.id
            if same:
                exact.add(schema.id)

    def lacking(self) -> list[Schema]:
        """Return our schemas that the registry does not have."""
        return [schema for schema in versions.files().schemas.values() if schema.id not in self._written]

    def clashes(self) -> Iterator[str]:
        """Yield a sentence for each id that means one thing in the registry and another in lock.json."""
        for event, held in self._held.items() if self._own_ids else ():
            for schema_id, schema in held.items():
                own = versions.files().by_id(schema_id)
                if own is None or own.event != event or (schema and schema.event == event and _same(schema, own)):
                    continue
                there = f"version {schema.version} of {schema.event}" if schema else "no schema of ours"
                yield (
                    f"a {event} with schema id {schema_id} may be version {own.version} of lock.json, or {there} of "
                    f"the registry at {self._where}"
                )

    def id_of(self, schema: Schema) -> int:
        """Return the registry's id of a schema. Raises KeyError if it is `lacking`."""
        return self._written[schema.id]

    def schema_of(self, event: str, schema_id: int) -> Schema | None:
        """Return the schema of this id in a topic of `event`, or None. Raises what asking raises."""
        held = self._held.get(event, {})
        if schema_id in held:
            return held[schema_id]
        own = self._own(schema_id)
        if own is not None and own.event == event:
            return own
        if schema_id in self._anywhere:
            return self._anywhere[schema_id]
        if schema_id not in self._learned:
            text = self._ask(schema_id)
            if len(self._learned) >= MOST_LEARNED:
                self._learned.clear()
            self._learned[schema_id] = own if text is None else ours(text)
        return self._learned.get(schema_id)

    def ids_meaning(self, schema: Schema) -> frozenset[int]:
        """Return the ids known to mean this schema in a topic of its event."""
        held = self._held.get(schema.event, {})
        found = {schema_id for schema_id, each in held.items() if each is not None and each.id == schema.id}
        return frozenset(found | ({schema.id} if self._own(schema.id) and schema.id not in held else set()))

    def undecided(self, event: str, payload: bytes | None) -> int | None:
        """Return the id in a payload if the registry must be asked for its meaning."""
        if payload is None or len(payload) < FRAME.size or payload[0] != MAGIC:
            return None
        schema_id = int.from_bytes(payload[1 : FRAME.size], "big")
        own = self._own(schema_id)
        decided = schema_id in self._anywhere or schema_id in self._learned
        return None if decided or (own is not None and own.event == event) else schema_id

    def known(self) -> str:
        """Return where ids are looked up, for the message about an unknown one."""
        own = ", and not in schemas/lock.json" if self._own_ids else ""
        return f"the id of a schema of ours in the registry at {self._where}{own}"

    def _own(self, schema_id: int) -> Schema | None:
        return versions.files().by_id(schema_id) if self._own_ids else None


def ours(text: str) -> Schema | None:
    """Return our schema that is the same on the wire as this text, whatever its comments and layout, or None."""
    wanted = fingerprint(text)
    return None if wanted is None else _by_fingerprint().get(wanted)


@cache
def _by_fingerprint() -> Mapping[str, Schema]:
    found = {}
    for schema in versions.files().schemas.values():
        print_ = fingerprint(schema.text)
        assert print_ is not None  # noqa: S101 - our own files are Avro
        found[print_] = schema
    return found


def fingerprint(text: str) -> str | None:
    """Return the SHA-256 of a schema's Parsing Canonical Form (Avro specification), or None if it is no Avro schema."""
    try:
        form: str = fastavro.schema.to_parsing_canonical_form(json.loads(text))
        return str(fastavro.schema.fingerprint(form, "SHA-256"))
    except Exception:  # fastavro raises anything for what people register: KeyError, TypeError, its own ...
        return None


def _same(one: Schema, other: Schema) -> bool:
    return fingerprint(one.text) == fingerprint(other.text)


# --- the ids of this process ------------------------------------------------------------------------------------------

LOCK_IDS = LockIds()


class _ProcessIds:
    """The ids that this process writes and reads with. They are the deployment's, so a process has one set."""

    def __init__(self, known: LockIds) -> None:
        self._known: LockIds | None = known
        self._find_out: Callable[[], LockIds] = lambda: known
        self._lock = threading.RLock()

    def set(self, known: LockIds | None, find_out: Callable[[], LockIds]) -> None:
        """Use `known` from now on, or what `find_out` returns when the first record needs it."""
        with self._lock:
            self._known, self._find_out = known, find_out

    def get(self) -> LockIds:
        """Return the ids, which are found out once, whichever thread asks first."""
        if (known := self._known) is not None:
            return known
        with self._lock:
            if self._known is None:
                self._known = self._find_out()
            return self._known


_of_this_process = _ProcessIds(LOCK_IDS)


def current() -> LockIds:
    """Return the ids that this process writes and reads with. Raises what finding them out raises."""
    return _of_this_process.get()


def use(ids: LockIds) -> None:
    """Write and read with these ids from now on, in the whole process."""
    _of_this_process.set(ids, lambda: ids)


def use_later(find_out: Callable[[], LockIds]) -> None:
    """Write and read with the ids that `find_out` returns; it is called when the first record is written or read."""
    _of_this_process.set(None, find_out)
