"""Recorded histories: a small log, and what was decided about it when it was recorded.

    <formula>-<formula version>.<batch rule version>.jsonl.xz ──► load ──► History ──► decide, today ──► differences
    settings, records, decisions: one JSON object a line

Today's code over yesterday's log must decide the same. Where it decides otherwise, its version is raised and a new
history is recorded (`python -m tests.histories`); those of older versions stay, because a log may hold their records
for ever: their payloads must still be read, and every task of theirs must still leave one group.

`xz -dc grpo-1.1.jsonl.xz | head -2` shows one. What is compared is every byte, under the schema it was written with,
except the sentence of a dead letter: that is for people, and may be said better.

Not covered: speed, and the live driver. The parity test compares that with this one.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import lzma
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from schemas import versions
from schemas.convert import to_plain
from schemas.events import AdvantagedGroup, Batch, Coordinates, DeadLetter
from schemas.serde import Poison, decode
from schemas.tokens import PerToken
from streams import advantage_formulas
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages import batches
from streams.tools.replay import driver

FOLDER = Path(__file__).parent
SUFFIX = ".jsonl.xz"
_HEADER = struct.Struct(">bI")
TOLD = 8
"""Most differences that are told: the first ones say what it is about."""

Decision = AdvantagedGroup | DeadLetter | Batch
DECISIONS: dict[str, type[Decision]] = {"groups": AdvantagedGroup, "dead-letters": DeadLetter, "batches": Batch}


class History(NamedTuple):
    """A log and what was decided about it."""

    name: str
    formula_version: int
    rule_version: int
    """Of the batches."""
    settings: Settings
    records: Mapping[tuple[str, int], Sequence[Record]]
    """By topic label and partition. Those of `groups` are the batch stage's input, and need not be of these tasks."""
    decided: Sequence[tuple[str, bytes]]
    """Topic label and payload, in the order in which they were decided."""


def load(path: Path) -> History:
    """Return the history in a file."""
    head, *lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    records: dict[tuple[str, int], list[Record]] = {}
    decided = []
    for line in lines:
        payload = base64.b64decode(line["payload"])
        if "decided" in line:
            decided.append((line["decided"], payload))
            continue
        at = Coordinates(line["topic"], line["partition"], line["offset"])
        record = Record(at, line["timestamp_ms"], line["key"].encode(), payload)
        records.setdefault((at.topic, at.partition), []).append(record)
    settings = Settings.model_validate(head["settings"])
    return History(path.name, head["formula_version"], head["rule_version"], settings, records, decided)


def save(history: History, path: Path) -> None:
    """Write a history."""
    chosen = {name: getattr(history.settings, name).model_dump(mode="json") for name in ("advantages", "batches")}
    topic_settings = {"prefix": "", "max_record_bytes": history.settings.topics.max_record_bytes}
    head = {
        "formula_version": history.formula_version,
        "rule_version": history.rule_version,
        "settings": {**chosen, "topics": topic_settings},
    }
    lines: list[dict[str, Any]] = [head]
    for (label, partition), records in history.records.items():
        for record in records:
            place = {"topic": label, "partition": partition, "offset": record.at.offset}
            key, payload = (record.key or b"").decode(), base64.b64encode(record.payload or b"").decode()
            lines.append({**place, "timestamp_ms": record.timestamp_ms, "key": key, "payload": payload})
    for label, payload in history.decided:
        lines.append({"decided": label, "payload": base64.b64encode(payload).decode()})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def decide(history: History) -> list[tuple[str, Decision]]:
    """Return what today's code decides about the log of a history: topic label and event."""
    from tests.support.log.in_memory import (
        joined,  # one of the modules of tests/ that go by their bare names; see __main__
    )

    label_of = {topic.event: label for label, topic in topics(history.settings.topics).items()}
    keyed = {at: records for at, records in history.records.items() if at[0] != "groups"}
    made: list[Decision] = list(joined(history.settings, keyed))
    topics_of_groups = history.settings.topics.model_copy(update={"policy_partitions": 1})  # all policies are in it
    for (label, _), records in history.records.items():
        if label == "groups":
            made += driver.cut(history.settings.model_copy(update={"topics": topics_of_groups}), records)
    return [(label_of[type(event)], event) for event in made]


def is_compared(history: History, label: str, payload: bytes) -> bool:
    """Return whether a decision was made under the versions of today; under others it may be another today."""
    letter = decode(payload, DeadLetter) if label == "dead-letters" else None
    if label == "batches" or (isinstance(letter, DeadLetter) and letter.stage == batches.STAGE):
        return history.rule_version == batches.RULE_VERSION
    return history.formula_version == advantage_formulas.FORMULA_VERSION


def differences(history: History) -> list[str]:
    """Return one sentence for each decision that is another today: which, what it was, and what it is."""
    was = {
        name_of(event): (event, payload)
        for label, payload in history.decided
        if is_compared(history, label, payload)
        for event in [read(label, payload)]
    }
    now = {name_of(event): event for _, event in decide(history)}
    found: list[str] = []
    for name, (event, payload) in was.items():
        today = now.get(name)
        if today is None:
            found.append(f"{told(event)} was decided, and is not")
        else:
            found += (f"{told(event)}: {change}" for change in _changes(event, payload, today))
    if history.formula_version == advantage_formulas.FORMULA_VERSION and history.rule_version == batches.RULE_VERSION:
        found += [f"{told(event)} was not decided, and is" for name, event in now.items() if name not in was]
    return found


def advice(history: History, found: Sequence[str]) -> str:
    """Return what a failing test says."""
    more = f"\n  and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return (
        f"{history.name}: today's code decides otherwise about this log than when it was recorded:\n  "
        + "\n  ".join(found[:TOLD])
        + more
        + "\nIf that is not meant, it is a fault. If it is, raise streams.advantage_formulas.FORMULA_VERSION (for "
        "batches streams.stages.batches.RULE_VERSION), and record new histories with `python -m tests.histories`; the "
        "old ones stay: their records lie in logs that must still be read"
    )


def read(label: str, payload: bytes) -> Decision:
    """Return the decision in a payload. Raises ValueError if it cannot be read any more."""
    event: Decision | Poison = decode(payload, DECISIONS[label])
    if isinstance(event, Poison):
        raise ValueError(f"a recorded decision on {label} cannot be read any more: {event.error}")
    return event


def name_of(event: Decision) -> str:
    """Return the id of a decision."""
    match event:
        case AdvantagedGroup():
            return event.group_id
        case DeadLetter():
            return event.dead_letter_id
        case Batch():
            return event.batch_id


def told(event: Decision) -> str:
    """Return what a decision is about, in words."""
    match event:
        case AdvantagedGroup():
            return f"the group of task {event.task_id}"
        case DeadLetter():
            at = Coordinates(event.source_topic, event.source_partition, event.source_offset)
            return f"the dead letter ({event.reason}) of {at}"
        case Batch():
            return f"batch {event.sequence} of policy {event.policy}"


def _changes(was: Decision, payload: bytes, today: Decision) -> Iterator[str]:
    """Yield what is another today, field by field, as far as the schema of `payload` has the field."""
    if isinstance(was, DeadLetter) and isinstance(today, DeadLetter):
        today = dataclasses.replace(today, error=was.error)
    written = _as_then(today, payload)
    if written == payload:
        return
    kind: Any = type(was)
    again = decode(written, kind)
    assert not isinstance(again, Poison), again
    before, after = list(_flat("", dataclasses.asdict(was))), list(_flat("", dataclasses.asdict(again)))
    old, new = dict(before), dict(after)
    for field in dict.fromkeys([*old, *new]):
        if repr(old.get(field)) != repr(new.get(field)):
            yield f"{field} was {old.get(field, 'not there')!r}, is {new.get(field, 'not there')!r}"


def _as_then(event: Decision, payload: bytes) -> bytes:
    """Return the bytes of `event` under the schema that `payload` was written with."""
    _, schema_id = _HEADER.unpack_from(payload)
    schema = versions.files().by_id(schema_id)
    assert schema is not None, f"schema id {schema_id} is not in schemas/lock.json; numbers are never taken back"
    out = io.BytesIO(_HEADER.pack(0, schema_id))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, schema.fastavro_schema, to_plain(event))
    return out.getvalue()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every scalar below `value` with its path, e.g. `responses[1].advantage`."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, (tuple, list)) and value and isinstance(value[0], (dict, tuple)):
        for number, inner in enumerate(value):
            yield from _flat(f"{path}[{number}]", inner)
    else:
        yield path, list(value) if isinstance(value, PerToken) else value
