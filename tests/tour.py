"""Follow one task through the files, and print the bytes it leaves in the log.

    a task of `sums` ──► scripted engine ──► scorers ──► join ──► cut ──► rollouts ──► the blocks of docs/tour.md

    python -m tests.tour           write the blocks between `<!-- bytes: … -->` and `<!-- end -->`
    python -m tests.tour --check   exit 1 if the page would change

Every function that decides something is the product's own; ids, times and offsets are fixed, so the bytes are always
the same. They are those of a log in which this task is the first.

Not covered: training. The `trained` record is written by hand, since its hashes are those of a real run's weights.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fastavro

from schemas import serde, versions
from schemas.avro_schema import LAYOUT
from schemas.events import AdapterEvent, AdapterFile, AdvantagedGroup, Batch, Coordinates, Event, derive_id
from schemas.tokens import VIEWS
from streams import scorers
from streams.engines.protocol import SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topic_of
from streams.settings.model import Batches, Settings
from streams.stages.policy import response_writer as written
from streams.stages.rollouts import rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutState
from streams.stages.scoring import scoring_agent as scoring
from streams.stages.tasks import generators
from streams.tools.replay import driver

PAGE = Path(__file__).parents[1] / "docs" / "tour.md"
T0 = 1_800_000_000_000
"""When the task is submitted, ms since the epoch."""
SETTINGS = Settings(batches=Batches(groups=1))
"""One group makes a batch, so that one task goes all the way."""
BYTES_SHOWN = 12
VALUE_SHOWN = 66

SHOWN = {
    "Task": "task_id created_at traceparent metadata policy purpose scenario tenant group_size deadline_at "
    "adapter_version sampling verifier reward_sources messages",
    "Response": "response_id sampling_id task_id slot adapter_version base_digest engine finish_reason text "
    "completion_token_ids logprobs loss_mask",
    "Reward": "reward_id response_id slot source value error scorer_version components",
    "AdvantagedGroup": "group_id created_at policy sampling_id group_size adapter_version complete dropped_reason "
    "formula formula_version reward_mean reward_std prompt_token_ids responses left_out",
    "Batch": "batch_id policy created_at sequence closed_by groups responses loss_tokens groups_partition "
    "groups_offsets lags dropped",
    "AdapterEvent": "event_id policy created_at version kind actor reason expected_version",
}
"""The fields that the page shows; the others are counted."""


def walk() -> Iterator[tuple[str, Record]]:
    """Yield (name of the block, record) along the way of one task."""
    spec = generators.TaskSpec(family="sums", count=1, seed=4, purpose="train", policy="default", group_size=2)
    (task,) = generators.generate(spec, now_ms=T0)
    asked = _record(task, key=task.task_id, offset=0, timestamp_ms=T0)
    yield "task", asked

    engine = ScriptedEngine('{"accuracy": 0.5}')
    request = SamplingRequest(sampling_id=derive_id(task.task_id, 0, *asked.at, "tour", 0), task=task)
    served = written.ServedVersion(
        adapter_version=engine.served_version,
        engine=engine.name,
        base_digest=engine.base_digest,
        tokenizer_digest=engine.tokenizer_digest,
        created_at=T0 + 400,
        latency_ms=250.0,
    )
    responses = [written.response(request, slot, served) for slot in engine.sample([request])[0]]
    answered = [
        _record(response, key=task.task_id, offset=response.slot, timestamp_ms=T0 + 401) for response in responses
    ]
    yield "response", answered[0]

    judges = scorers.Scorers(SETTINGS.scoring)
    (source,) = task.reward_sources
    rewards = [
        scoring.reward_of(response, source, replace(judges.score(task, response, source), latency_ms=0.25), T0 + 410)
        for response in responses
    ]
    judged = [_record(reward, key=task.task_id, offset=reward.slot, timestamp_ms=T0 + 411) for reward in rewards]
    yield "reward", judged[0]

    (group,) = driver.join_records(SETTINGS, [asked, *answered, *judged])
    assert isinstance(group, AdvantagedGroup)
    whole = _record(group, key=group.policy, offset=0, timestamp_ms=T0 + 420)
    yield "group", whole

    (batch,) = driver.cut(SETTINGS, [whole])
    assert isinstance(batch, Batch)
    yield "batch", _record(batch, key=batch.policy, offset=0, timestamp_ms=T0 + 430)

    _, (promoted,) = rollouts.reduce(RolloutState(), _trained(batch))
    yield "promoted", _record(promoted, key=promoted.policy, offset=1, timestamp_ms=T0 + 910)


def _trained(batch: Batch) -> AdapterEvent:
    """Return what the trainer writes once batch 0 has become version 1."""
    return AdapterEvent(
        event_id=derive_id(batch.policy, 1, "trained"),
        policy=batch.policy,
        created_at=T0 + 900,
        version=1,
        kind="trained",
        actor="trainer",
        reason="batch 0",
        parent_version=0,
        uri="adapters/default/1",
        first_batch=0,
        last_batch=0,
        files=(AdapterFile(path="adapter_model.safetensors", sha256="0" * 64, bytes=0),),
    )


def _record(event: Event, *, key: str, offset: int, timestamp_ms: int) -> Record:
    topic = topic_of(type(event), SETTINGS.topics)
    at = Coordinates(topic.name, partition_of(key, topic.partitions), offset)
    return Record(at, timestamp_ms, key.encode(), serde.encode(event))


# --- bytes as people read them ----------------------------------------------------------------------------------------


def dump(record: Record) -> str:
    """Return where a record lies, its key, and its payload field by field: offset, bytes, name = value."""
    payload = record.payload or b""
    schema = versions.files().by_id(int.from_bytes(payload[1:5]))
    assert schema is not None
    lines = [
        f"{record.at}   key {(record.key or b'').decode()}   {len(payload)} bytes",
        "",
        _line(0, payload[:1], "Confluent framing"),
        _line(1, payload[1:5], f"schema id {schema.id}: {schema.event}, version {schema.version}"),
    ]
    plain = fastavro.schemaless_reader(io.BytesIO(payload[5:]), schema.fastavro_schema, None)
    at, left_out = 5, 0
    for field in schema.definition["fields"]:
        body = _encoded(schema.definition, field["type"], plain[field["name"]])
        assert payload[at : at + len(body)] == body
        if field["name"] in SHOWN[schema.event].split():
            lines.append(_line(at, body, f"{field['name']} = {_value(field['type'], plain[field['name']])}"))
        else:
            left_out += 1
        at += len(body)
    assert at == len(payload)
    return "\n".join([*lines, *([f"      … and {left_out} fields more"] if left_out else [])])


def _encoded(whole: dict[str, object], kind: object, value: object) -> bytes:
    """Return the bytes of one field, which Avro writes one after the other with nothing in between."""
    names: dict[str, object] = {}
    fastavro.parse_schema(whole, named_schemas=names)
    out = io.BytesIO()
    alone = {"type": "record", "name": "streamward.tour.One", "fields": [{"name": "one", "type": _by_name(kind)}]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(alone, named_schemas=names), {"one": value})
    return out.getvalue()


def _by_name(kind: object) -> object:
    """Return a type with the records in it referred to, not spelt out a second time."""
    if isinstance(kind, list):
        return [_by_name(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "record":
        return f"streamward.{kind['name']}"
    return {name: _by_name(part) if name in ("items", "values") else part for name, part in kind.items()}


def _line(at: int, body: bytes, text: str) -> str:
    more = f" +{len(body) - BYTES_SHOWN}" if len(body) > BYTES_SHOWN else ""
    return f"{at:5d}  {body[:BYTES_SHOWN].hex(' ') + more:<{BYTES_SHOWN * 3 + 4}}  {text}"


def _value(kind: object, value: object) -> str:
    """Return a value as text; what is per token as a list of numbers."""
    if isinstance(kind, dict) and isinstance(value, bytes):
        (view,) = (each for each in VIEWS if kind[LAYOUT] == each.LAYOUT)
        value = list(view(value))
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN else text[: VALUE_SHOWN - 1] + "…"


# --- the page ---------------------------------------------------------------------------------------------------------


def filled(page: str) -> str:
    """Return the page with every block written anew. Raises KeyError for a block that nothing leads to."""
    blocks = {name: dump(record) for name, record in walk()}
    return re.sub(
        r"(<!-- bytes: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}```text\n{blocks[found[2]]}\n```\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


def main() -> int:
    """Write or check; return the exit code."""
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
