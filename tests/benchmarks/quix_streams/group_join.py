"""The join of tasks, responses and rewards as a Quix Streams application; tests/benchmarks/peers.py runs it.

    tasks ─────┐
    responses ─┼─► concat ─► join ─► groups: once every slot is answered and scored, with the bytes of its responses
    rewards ───┘              └─ state of a task, in RocksDB with a changelog: a row of ids and rewards, and each
                                 response until its group leaves

At least once, a commit a second. What comes again for a slot is skipped, also after the group has left. Of an Avro body
only the leading fields are read, by fastavro. Groups are written as GroupJoin.java does, and what is not covered is
the same. It runs in an environment of its own: `quixstreams` wants other versions than Streamward.
"""

from __future__ import annotations

import io
import statistics
import struct
import sys
from collections.abc import Callable
from typing import Any

import fastavro
from quixstreams import Application, State
from quixstreams.models import Serializer

EPS = 1e-4
FRAME_BYTES = 5
ROW = b"row"

Event = tuple[str, dict[str, Any], bytes]
"""Of which topic, its leading fields, and the whole record."""
Group = tuple[str, bytes]
"""Policy and record."""


def main(bootstrap: str, prefix: str, folder: str) -> None:
    """Run until SIGTERM."""
    app = Application(
        bootstrap,
        consumer_group=f"{prefix}quix-streams",
        auto_offset_reset="earliest",
        commit_interval=1.0,
        state_dir=folder,
        consumer_extra_config={"session.timeout.ms": 60_000},  # it is stopped for a while
        producer_extra_config={"compression.type": "lz4"},  # as Streamward's
        loglevel="WARNING",
    )
    tasks, responses, rewards = (
        app.dataframe(app.topic(prefix + label, key_deserializer="str", value_deserializer="bytes")).apply(read(label))
        for label in LEADING
    )
    joined = tasks.concat(responses).concat(rewards).apply(join, stateful=True).filter(lambda group: group is not None)
    groups = app.topic(f"{prefix}groups", key_serializer="str", value_serializer=GroupSerializer())
    joined.to_topic(groups, key=lambda group: group[0])
    app.run()


class GroupSerializer(Serializer):  # type: ignore[misc]  # not in the environment that mypy looks at
    """Writes the record of a group."""

    def __call__(self, group: Group, ctx: object) -> bytes:
        return group[1]


# --- events ----------------------------------------------------------------------------------------------------------

TEXT, NULLABLE = "string", ["null", "string"]
ENVELOPE = {"created_at": "long", "traceparent": NULLABLE, "metadata": {"type": "map", "values": TEXT}}
LEADING: dict[str, dict[str, Any]] = {
    "tasks": {
        "task_id": TEXT,
        **ENVELOPE,
        **dict.fromkeys(("policy", "purpose", "scenario"), TEXT),
        "tenant": NULLABLE,
        "group_size": "int",
    },
    "responses": {
        **dict.fromkeys(("response_id", "sampling_id", "task_id"), TEXT),
        **ENVELOPE,
        "policy": TEXT,
        "slot": "int",
    },
    "rewards": {
        **dict.fromkeys(("reward_id", "response_id", "task_id"), TEXT),
        **ENVELOPE,
        "policy": TEXT,
        "slot": "int",
        "source": TEXT,
        "value": ["null", "double"],
    },
}
"""The fields that Avro bodies begin with, as far as they are read."""


def read(label: str) -> Callable[[bytes], Event]:
    """Return what reads the records of a topic."""
    fields = [{"name": name, "type": kind} for name, kind in LEADING[label].items()]
    schema = fastavro.parse_schema({"type": "record", "name": label, "fields": fields})

    def event(payload: bytes) -> Event:
        body = io.BytesIO(payload)
        body.seek(FRAME_BYTES)
        return label, fastavro.schemaless_reader(body, schema), payload

    return event


# --- the join --------------------------------------------------------------------------------------------------------


def join(event: Event, state: State) -> Group | None:
    """Note an event, and return its group if that is whole now."""
    label, fields, payload = event
    row = state.get(ROW) or {"group_size": 0, "policy": "", "responses": {}, "rewards": {}}
    slot = str(fields.get("slot"))
    if row == LEFT_ROW or (slot in row[label] if label in row else row["group_size"]):
        return None  # delivered again
    if label == "tasks":
        row |= {"group_size": fields["group_size"], "policy": fields["policy"]}
    elif label == "responses":
        row[label][slot] = fields["response_id"]
        state.set_bytes(_body_key(slot), payload)
    else:
        row[label][slot] = [fields["response_id"], fields["value"]]
    if not _is_whole(row):
        state.set(ROW, row)
        return None
    made = _group(fields["task_id"], row, state)
    state.set(ROW, LEFT_ROW)
    return row["policy"], made


LEFT_ROW = {"left": True}


def _body_key(slot: int | str) -> bytes:
    return f"response-{slot}".encode()


def _is_whole(row: dict[str, Any]) -> bool:
    size, responses, rewards = row["group_size"], row["responses"], row["rewards"]
    if not size or len(responses) < size or len(rewards) < size:
        return False
    slots = map(str, range(size))
    return all(slot in responses and slot in rewards and rewards[slot][0] == responses[slot] for slot in slots)


def _group(task_id: str, row: dict[str, Any], state: State) -> bytes:
    """Return the record of a group that leaves, and forget its responses."""
    slots = range(row["group_size"])
    values = [row["rewards"][str(slot)][1] for slot in slots]
    parts = [_block(task_id.encode()), struct.pack(">i", len(values))]
    for slot, value, advantage in zip(slots, values, _advantages(values), strict=True):
        key = _body_key(slot)
        parts += [struct.pack(">i", slot), _block(row["responses"][str(slot)].encode())]
        parts += [struct.pack(">dd", value, advantage), _block(state.get_bytes(key) or b"")]
        state.delete(key)
    return b"".join(parts)


def _block(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _advantages(values: list[float]) -> list[float]:
    """Return (r_i - mean) / (std + eps), std dividing by n - 1; zeros where all are equal."""
    mean = statistics.fmean(values)
    std = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
    return [(value - mean) / (std + EPS) if std else 0.0 for value in values]


if __name__ == "__main__":
    main(*sys.argv[1:])
