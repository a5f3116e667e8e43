"""Every schema version that records may have, by id.

    avro/<Event>/<version>.avsc, lock.json ──► SchemaVersions ──► id of an event, schema of an id

An id, once given, means the same schema for ever: `lock.json` is only appended to and has the sha256 of each file, so
an edited schema is found when it is loaded. Services only read these files.

A plugin has such files next to the module of its events, with ids from its own range (`first_id_of`).

`check` is FULL_TRANSITIVE in Confluent's words: every version can read every other, old or new. Old trainers read new
topics, and new code reads offset 0.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import fastavro

from schemas.avro_schema import LAYOUT, record_schema

FOLDER = Path(__file__).parent
"""The folder of this package, with lock.json and avro/."""
FIRST_ID = 1001
"""The first id. Smaller ids belong to schemas from before release 0.2.0, which nothing reads any more, and to Schema
Registries, which count from 1, so that their ids do not collide with ours."""
FIRST_PLUGIN_ID, IDS_OF_A_PLUGIN = 1 << 24, 1 << 8
"""First id of plugins, and the size of each of their 2^22 ranges."""


class SchemaError(Exception):
    """The schema files do not match the lock."""


@dataclass(frozen=True)
class Schema:
    """One version of one event."""

    id: int
    event: str
    version: int
    sha256: str
    text: str

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The schema as JSON."""
        definition: dict[str, Any] = json.loads(self.text)
        return definition

    @cached_property
    def fastavro_schema(self) -> Any:
        """The schema for fastavro, without logical types and layouts: times stay integers, the bytes are the same."""
        records: dict[str, Any] = {}
        parsed = fastavro.parse_schema(_plain(self.definition), named_schemas=records)
        for record in records.values():
            for field in record["fields"]:
                if field["type"] == "bytes" and "default" in field:  # a text in JSON, and fastavro leaves it one
                    field["default"] = field["default"].encode("latin-1")
        return parsed


class SchemaVersions:
    """Every schema under a folder, checked against its lock."""

    def __init__(self, folder: Path = FOLDER, first_id: int = FIRST_ID) -> None:
        lock_path = folder / "lock.json"
        if not lock_path.exists():
            raise SchemaError(f"{lock_path} is missing; restore it: it has the schema of each record")
        lock = json.loads(lock_path.read_text(encoding="utf-8"))
        self.schemas: dict[int, Schema] = {}
        self._newest: dict[str, Schema] = {}
        for number, entry in enumerate(lock, start=first_id):
            schema = self._load(folder, number, entry)
            before = self._newest[schema.event].version if schema.event in self._newest else 0
            if schema.version != before + 1:
                raise SchemaError(
                    f"lock.json has id {number} for version {schema.version} of {schema.event} after version {before}; "
                    "versions are numbered in order. Restore lock.json"
                )
            self.schemas[schema.id] = schema
            self._newest[schema.event] = schema

    @staticmethod
    def _load(folder: Path, number: int, entry: dict[str, Any]) -> Schema:
        path = folder / "avro" / entry["event"] / f"{entry['version']}.avsc"
        if entry["id"] != number:
            raise SchemaError(f"lock.json has id {entry['id']} in place of {number}; ids count up and are never reused")
        if not path.exists():
            raise SchemaError(f"{path} is missing; it has id {number}. Restore it: records may carry this id")
        text = path.read_text(encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest != entry["sha256"]:
            raise SchemaError(
                f"{path} has sha256 {digest[:12]}, but lock.json says {entry['sha256'][:12]}. A schema with an id is "
                "never edited: restore the file, change the dataclass, and run `python -m schemas.generate`"
            )
        return Schema(id=number, event=entry["event"], version=entry["version"], sha256=entry["sha256"], text=text)

    def add(self, others: SchemaVersions) -> None:
        """Take in the schemas of a plugin. Raises SchemaError if its id or event is taken."""
        for schema in others.schemas.values():
            if schema.event in self._newest or schema.id in self.schemas:
                raise SchemaError(f"event {schema.event} or its schema id {schema.id} is another's; rename the event")
        self.schemas |= others.schemas
        self._newest |= others._newest

    def newest(self, event: type[Any]) -> Schema:
        """Return the schema for writing events of this type."""
        return self._newest[event.__name__]

    def by_id(self, schema_id: int) -> Schema | None:
        """Return the schema with this id, or None."""
        return self.schemas.get(schema_id)

    def versions(self, event: str) -> list[Schema]:
        """Return every version of an event, oldest first."""
        return [schema for schema in self.schemas.values() if schema.event == event]


@cache
def files() -> SchemaVersions:
    """Return the schemas that come with this package."""
    return SchemaVersions()


def folder_of(event: type[Any]) -> Path:
    """Return the folder with the schema files of an event: that of the module that defines it."""
    return FOLDER if _package(event) == "schemas" else Path(inspect.getfile(event)).parent


def first_id_of(event: type[Any]) -> int:
    """Return the first id of the schemas that are in the folder of an event."""
    package = _package(event)
    number = zlib.crc32(package.encode()) % (1 << 22)
    return FIRST_ID if package == "schemas" else FIRST_PLUGIN_ID + number * IDS_OF_A_PLUGIN


def _package(event: type[Any]) -> str:
    return event.__module__.partition(".")[0]


def add_plugin(events: Collection[type[Any]]) -> None:
    """Read and write these events of a plugin, too. Raises SchemaError if their schema files do not match."""
    for folder, first_id in {(folder_of(event), first_id_of(event)) for event in events}:
        if folder != FOLDER:
            files().add(SchemaVersions(folder, first_id))
    for event in events:
        known = files().versions(event.__name__)
        if not known or known[-1].definition != record_schema(event):
            name = f"{event.__module__}:{event.__name__}"
            raise SchemaError(f"{name} is not as its newest schema has it; run `python -m schemas.generate {name}`")


def check(schemas: SchemaVersions) -> Iterator[str]:
    """Yield a sentence for each pair of versions of an event where one cannot read what the other wrote."""
    for event in dict.fromkeys(schema.event for schema in schemas.schemas.values()):
        versions = schemas.versions(event)
        for reader in versions:
            for writer in versions:
                reason = cannot_read(reader.text, writer.text)
                if reason is not None:
                    yield (
                        f"{event}: version {reader.version} cannot read version {writer.version}: {reason}. "
                        "Give new fields a default, and never rename, retype or take one away"
                    )


@lru_cache(maxsize=4096)
def cannot_read(reader: str, writer: str) -> str | None:
    """Return why one schema cannot read records of another, both as text; None if it can."""
    import avro.compatibility
    import avro.errors

    try:
        (reads, reader_layouts), (writes, writer_layouts) = _parse(reader), _parse(writer)
    except (avro.errors.AvroException, ValueError, RecursionError) as exc:  # JSON Schema or Protobuf
        return f"one of them is no Avro schema: {exc}"
    result = avro.compatibility.ReaderWriterCompatibilityChecker().get_compatibility(reads, writes)
    if result.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        both = reader_layouts.keys() & writer_layouts.keys()
        changed = sorted(path for path in both if reader_layouts[path] != writer_layouts[path])
        return f"the layout of bytes differs at {', '.join(changed)}" if changed else None
    return f"{'; '.join(sorted(result.messages))} at {', '.join(sorted(result.locations))}"


@lru_cache(maxsize=64)
def _parse(text: str) -> tuple[Any, dict[str, str]]:
    """Return a schema, and the layout of each type in it that is bytes, by its path."""
    import avro.schema

    return avro.schema.parse(text), dict(_layouts(json.loads(text)))


def _layouts(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each type that is bytes, with its layout: Avro takes bytes for bytes, whatever is in them."""
    if isinstance(node, list):
        for kind in node:
            yield from _layouts(kind, path)
    elif node == "bytes" or (isinstance(node, dict) and node["type"] == "bytes"):
        yield path, "" if node == "bytes" else node.get(LAYOUT, "")
    elif isinstance(node, dict):
        for field in node.get("fields", ()):
            yield from _layouts(field["type"], f"{path}/{field['name']}")
        for name in ("items", "values"):
            yield from _layouts(node.get(name), path)


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        if node.get("type") == "bytes":
            return "bytes"
        return {key: _plain(value) for key, value in node.items() if key != "logicalType"}
    if isinstance(node, list):
        return [_plain(item) for item in node]
    return node
