"""Write the derived files: a schema version for each event that changed, the lock, and README.md.

    python -m schemas.generate           write
    python -m schemas.generate --check   print what would change, and exit 1 if anything would
    python -m schemas.generate thumbs.events:Thumb …   the same for the events of a plugin, next to their module

A change to an event's dataclass becomes the next version with the next id. A schema that has an id is never edited.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas import versions
from schemas.avro_schema import record_schema
from schemas.events import EVENTS

README_HEAD = """# The events, field by field

Generated from `events.py` by `python -m schemas.generate`; do not edit. On the wire each record is `00`, the schema id
in 4 bytes, big-endian, and the Avro body. `streamward admin schemas serve` offers these schemas over Confluent's Schema
Registry API (read only), so any Confluent-compatible consumer reads the topics. Ids may also be those of a registry of
your own: docs/schemas.md.

What is per token is `bytes`, one number after the other without a gap. The meaning of the field says of what type and
byte order, and so does the attribute `layout` of its Avro type.
"""


def main() -> int:
    """Write or check; return the exit code."""
    check, names = "--check" in sys.argv[1:], [name for name in sys.argv[1:] if name != "--check"]
    if names:
        _, changes = _schemas([_event(name) for name in names], check)
    else:
        lock, changes = _schemas(EVENTS, check)
        changes += _readme(versions.FOLDER, lock, check)
    for change in changes:
        print(change)
    return 1 if check and changes else 0


def _event(name: str) -> type[Any]:
    module, _, event = name.partition(":")
    found: type[Any] = getattr(importlib.import_module(module), event)
    return found


def _schemas(events: Sequence[type[Any]], check: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Write the changed files of the events in one folder, and return its lock."""
    folder, first_id = versions.folder_of(events[0]), versions.first_id_of(events[0])
    lock_path = folder / "lock.json"
    lock: list[dict[str, Any]] = json.loads(lock_path.read_text(encoding="utf-8")) if lock_path.exists() else []
    changes = []
    for event in events:
        text = json.dumps(record_schema(event), indent=1, ensure_ascii=False) + "\n"
        digest = hashlib.sha256(text.encode()).hexdigest()
        earlier = [entry for entry in lock if entry["event"] == event.__name__]
        if earlier and earlier[-1]["sha256"] == digest:
            continue
        version, schema_id = len(earlier) + 1, first_id + len(lock)
        path = folder / "avro" / event.__name__ / f"{version}.avsc"
        changes.append(f"{path.relative_to(folder)}: new, id {schema_id}")
        lock.append({"id": schema_id, "event": event.__name__, "version": version, "sha256": digest})
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if changes and not check:
        lock_path.write_text("[\n" + ",\n".join(" " + json.dumps(entry) for entry in lock) + "\n]\n", encoding="utf-8")
    return lock, changes


def _readme(folder: Path, lock: list[dict[str, Any]], check: bool) -> list[str]:
    parts = [README_HEAD]
    ids = {entry["event"]: entry for entry in lock}
    for event in EVENTS:
        schema = record_schema(event)
        entry = ids[event.__name__]
        parts.append(f"\n## {event.__name__}\n\n{schema['doc']} Schema id {entry['id']}, version {entry['version']}.\n")
        parts.append(_table(schema))
    text = "\n".join(part.rstrip("\n") for part in parts) + "\n"
    path = folder / "README.md"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    if not check:
        path.write_text(text, encoding="utf-8")
    return ["README.md: changed"]


def _table(schema: dict[str, Any]) -> str:
    rows = ["| field | type | meaning |", "|---|---|---|"]
    nested: list[dict[str, Any]] = []
    for field in schema["fields"]:
        rows.append(f"| `{field['name']}` | {_type_name(field['type'], nested)} | {field.get('doc', '')} |")
    parts = ["\n".join(rows)]
    for record in nested:
        parts.append(f"\n`{record['name']}`: {record['doc']}\n\n{_table(record)}")
    return "\n".join(parts)


def _type_name(avro_type: Any, nested: list[dict[str, Any]]) -> str:
    if isinstance(avro_type, list):
        return f"{_type_name(avro_type[1], nested)}?"
    if isinstance(avro_type, str):
        return avro_type.rpartition(".")[2]
    match avro_type["type"]:
        case "array":
            return f"{_type_name(avro_type['items'], nested)} []"
        case "map":
            return f"map of {_type_name(avro_type['values'], nested)}"
        case "record":
            nested.append(avro_type)
            return str(avro_type["name"])
        case _:
            return str(avro_type.get("logicalType", avro_type["type"]))


if __name__ == "__main__":
    sys.exit(main())
