"""The manifests of an archive: which segments a partition has, and what each must be, byte for byte.

    Manifest ──► manifest_bytes ──► STORE/TOPIC/PARTITION/00000007.json ──► parsed ──► the same, or LogError

Whoever can write to the store can write a manifest whose digest is right, so each value is checked too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from schemas import json_text
from streams.errors import LogError
from streams.tools.archive.store import Store

MOST_PARTITIONS = 1_000_000
"""Kafka takes far fewer of one topic."""


class Segment(NamedTuple):
    """One file of an archive: all records of a partition in a range of offsets."""

    label: str
    partition: int
    first: int
    next: int
    """The offset after the last."""
    path: str
    """A file's path, or its URL in an object store."""
    sha256: str
    footer_sha256: str
    last_sha256: str
    """Of the last record (see `fingerprint`): tells whether a log is the one that was archived."""
    records: int
    bad: int
    """Records that are not events: `_bad` has the reason, and their event columns are null."""
    bytes: int
    payload_bytes: int
    from_ms: int
    to_ms: int
    """Smallest and largest record timestamp."""
    schema_ids: tuple[int, ...]


class Manifest(NamedTuple):
    """What is archived of a partition."""

    number: int
    partitions: int
    """Of the topic, when it was written."""
    first: int
    """The first offset."""
    segments: tuple[Segment, ...]
    """None if the partition was empty."""

    @property
    def next(self) -> int:
        """The offset after the last."""
        return self.segments[-1].next if self.segments else self.first


_IN_FILE = tuple(name for name in Segment._fields if name not in ("label", "partition", "path"))


def manifest_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the manifests among these file names, in order."""
    return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())


def partition_numbers(names: Iterable[str]) -> list[int]:
    """Return the partitions among these folder names, in order."""
    return sorted(int(name) for name in names if name.isdecimal() and int(name) < MOST_PARTITIONS)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as it is written."""
    body = {
        "format": 1,
        "number": manifest.number,
        "partitions": manifest.partitions,
        "first": manifest.first,
        "next": manifest.next,
        "segments": [
            {"file": s.path.rsplit("/", 1)[-1], **{name: getattr(s, name) for name in _IN_FILE}}
            for s in manifest.segments
        ],
    }
    return (json.dumps({**body, "sha256": _body_sha256(body)}, indent=1) + "\n").encode()


def _body_sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"it has {value!r} where a whole number is expected")
    return value


def _typed(field: str, value: Any) -> Any:
    """Return the value of a segment's field: a digest, a time (-1: none, as Kafka has it), or a whole number."""
    if not field.endswith("sha256"):
        return _whole(value, -1 if field in ("from_ms", "to_ms") else 0)
    if not isinstance(value, str):
        raise ValueError(f"it has {value!r} where a sha256 is expected")
    return value


def _plain_name(value: Any) -> str:
    """Return a file's name, which does not lead out of its folder: DuckDB opens what it names."""
    if not isinstance(value, str) or re.fullmatch(r"[\w-]+\.parquet", value, re.ASCII) is None:
        raise ValueError(f"it names {value!r}, which is no segment's file")
    return value


def parsed(label: str, partition: int, store: Store, name: str, data: bytes) -> Manifest:
    """Return the manifest in a file of the store. Raises LogError if it is not one that was written there."""
    folder = name.rpartition("/")[0]
    try:
        body = json_text.parse(data)
        recorded = body.pop("sha256")
        if body["format"] != 1:
            raise LogError(f"{store.where(name)} has format {body['format']}, expected 1; update Streamward")
        if recorded != _body_sha256(body):
            raise ValueError(f"its sha256 is {_body_sha256(body)[:12]}, but it records {recorded[:12]}")
        segments = tuple(
            Segment(
                label=label,
                partition=partition,
                path=store.where(f"{folder}/{_plain_name(entry['file'])}"),
                schema_ids=tuple(map(_whole, entry["schema_ids"])),
                **{field: _typed(field, entry[field]) for field in _IN_FILE if field != "schema_ids"},
            )
            for entry in body["segments"]
        )
        partitions = _whole(body["partitions"])
        if not partition < partitions <= MOST_PARTITIONS:
            raise ValueError(f"it is of partition {partition} of {partitions}")
        return Manifest(_whole(body["number"]), partitions, _whole(body["first"]), segments)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise LogError(
            f"{store.where(name)}: not the manifest that was written here: {exc}. Restore it from a copy of the archive"
        ) from exc
