"""Records in bulk are what they are one by one: the same events, the same values, the same verdicts."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from schemas import serde, versions
from schemas.avro_schema import shapes
from schemas.events import (
    EVENTS,
    Coordinates,
    EpisodeStart,
    Event,
    Message,
    Response,
    Reward,
    RewardSource,
    Sampling,
    Task,
    ToolCall,
)
from schemas.serde import Poison, encode
from schemas.tokens import PerToken
from streams.arrow import rules
from streams.arrow.decode import CHUNK_RECORDS, Bad, arrow_schema, decode, judge
from streams.arrow.events import decode_events, decode_values
from streams.kafka.record import Record
from streams.stages.advantages.incoming import FIELDS, columns_of
from tests.support.any_event import any_event, values
from tests.support.factories import group, in_version_1, member, one_of_each, plain as raw, response, reward, task
from tests.support.older_schemas import older_schemas
from tests.support.processes import by_another_writer
from tests.support.thoroughness import examples

EPISODE: dict[str, Any] = {"agent": "a", "environment": EpisodeStart(name="guess", seed=1), "max_turns": 4}


def records(payloads: Sequence[bytes | None], *, key: bytes | None = b"k") -> list[Record]:
    return [Record(Coordinates("t", 3, 100 + i), 1000 + i, key, payload) for i, payload in enumerate(payloads)]


def plain(value: Any) -> Any:
    """Return an event's values as a table has them."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | PerToken):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return sorted(value.items())
    return value


def events_in(table: pa.Table, kind: type[Event]) -> list[dict[str, Any]]:
    """Return the events of a table as plain values; times are milliseconds, which Python's own could not hold."""
    rows: list[dict[str, Any]] = table.select(table.column_names[5:]).cast(_with_numbers(kind)).to_pylist()
    return [{name: _sorted_maps(shape, row[name]) for name, shape in shapes(kind).items()} for row in rows]


def _with_numbers(kind: type[Event]) -> pa.Schema:
    fields = list(arrow_schema(kind))[5:]
    return pa.schema([f.with_type(pa.int64()) if pa.types.is_timestamp(f.type) else f for f in fields])


def _sorted_maps(shape: Any, value: Any) -> Any:
    if shape.base is dict and value is not None:
        return sorted(value)
    if shape.base is tuple and dataclasses.is_dataclass(shape.item.base):
        return [{n: _sorted_maps(s, each[n]) for n, s in shapes(shape.item.base).items()} for each in value]
    return value


def assert_the_same(payloads: Sequence[bytes | None], kind: Any) -> None:
    """Assert that decoding in bulk gives what serde gives, record by record."""
    given_ = records(payloads)
    verdicts = [serde.decode(payload, kind) for payload in payloads]
    sound = [verdict for verdict in verdicts if not isinstance(verdict, Poison)]
    wrong = {place: verdict for place, verdict in enumerate(verdicts) if isinstance(verdict, Poison)}
    assert decode_events(kind, payloads) == ([sound] if sound else [], wrong)
    if kind in FIELDS:
        columns = [[value for (value,) in each] for each in zip(*map(columns_of, sound), strict=True)]
        found = decode_values(kind, payloads, FIELDS[kind])
        assert (repr(found.columns), found.wrong) == (repr(columns), wrong)
    decoded = decode(kind, given_)
    expected = [(r, v) for r, v in zip(given_, verdicts, strict=True) if not isinstance(v, Poison)]
    assert decoded.table.schema == arrow_schema(kind)
    assert decoded.table["_offset"].to_pylist() == [record.at.offset for record, _ in expected]
    assert [repr(row) for row in events_in(decoded.table, kind)] == [repr(plain(event)) for _, event in expected]
    assert decoded.bad == tuple(
        Bad(record.at, verdict.reason, verdict.error)
        for record, verdict in zip(given_, verdicts, strict=True)
        if isinstance(verdict, Poison)
    )


# --- the same as one by one -------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(st.lists(any_event, max_size=5), st.sampled_from(EVENTS))
def test_any_events_come_out_with_the_values_that_serde_reads(events: list[Event], kind: type[Event]) -> None:
    assert_the_same([encode(event) for event in events], kind)
    for event in events:
        assert_the_same([encode(event), encode(event)], type(event))


unruly = st.sampled_from(EVENTS).flatmap(
    lambda kind: st.lists(st.builds(kind, **{n: values(s) for n, s in shapes(kind).items()}), min_size=1, max_size=3)
)
"""Events drawn by their types alone: most break a rule between fields."""


@settings(max_examples=examples(80))
@given(unruly)
def test_a_rule_that_serde_knows_is_kept_in_bulk(events: list[Any]) -> None:
    assert_the_same([by_another_writer(event) for event in events], type(events[0]))


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_a_changed_byte_is_seen_where_serde_sees_it(event: Event) -> None:
    whole = encode(event)
    places = range(0, len(whole), 1 + len(whole) // 100)
    changed = [whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :] for at in places for mask in (0x02, 0x80)]
    assert_the_same([payload for each in changed for payload in (each, whole)], type(event))


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_a_record_cut_short_or_too_long_is_bad_and_its_neighbours_are_not(event: Event) -> None:
    whole = encode(event)
    odd = [whole[:length] for length in range(0, len(whole), 1 + len(whole) // 60)]
    odd += [whole + more for more in (b"\0", b"\0\0", b"xyz", whole, whole[5:])]
    found = decode(type(event), records([payload for each in odd for payload in (each, whole)]))
    assert [bad.at.offset - 100 for bad in found.bad] == list(range(0, 2 * len(odd), 2))
    assert_the_same([payload for each in odd for payload in (each, whole)], type(event))


def test_what_one_record_lacks_is_not_taken_from_the_next() -> None:
    whole = encode(reward(components={}))
    short, long = whole[:-1], whole[:5] + whole[-1:] + whole[5:]  # side by side, their bodies have the right length
    assert_the_same([whole] * 40 + [short, long] + [whole] * 40, Reward)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"\0\0\0",
        b'{"task": 1}',
        struct.pack(">bI", 0, 4242) + b"rest",
        struct.pack(">bI", 0, 4_294_967_295) + b"rest",
        b"\1" + encode(reward())[1:],
        encode(task()),
        by_another_writer(reward(), value=float("nan")),
        by_another_writer(reward(), components={"a": 0.5, "b": float("inf")}),
        by_another_writer(reward(), value=None),
        by_another_writer(reward(), value=1e13),
        by_another_writer(reward(), components={str(n): 0.5 for n in range(257)}),
        by_another_writer(reward(), components={"\u00e9" * 201: 0.5}),
        by_another_writer(reward(), rationale="\u00e9" * 10_001),
        by_another_writer(reward(), reward_id="r"),
        by_another_writer(reward(), reward_id="5" * 36),
    ],
    ids=str,
)
def test_poison_is_bad_for_the_reason_serde_gives_and_hides_nothing(payload: bytes | None) -> None:
    good = encode(reward())
    assert_the_same([good] * 20 + [payload] + [good] * 20, Reward)
    assert len(decode(Reward, records([good, payload, good])).bad) == 1


def test_a_reward_may_have_as_much_as_the_rule_says_and_is_read_at_once() -> None:
    parts = {f"{n:0199}\u00e9": 0.5 for n in range(256)}
    assert_the_same([encode(reward(components=parts, rationale="\u00e9" * 10_000))] * 2, Reward)


CHECKED_IN_COLUMNS = {*rules._RULES, *rules._WITHOUT_RULES}


@pytest.mark.parametrize(
    "event",
    [event for event in one_of_each() if type(event) in CHECKED_IN_COLUMNS],
    ids=lambda event: type(event).__name__,
)
def test_a_sound_event_is_decoded_with_others_also_without_what_it_may_lack(event: Event) -> None:
    """A rule that a null breaks changes no result, but serde then judges every record, at ten times the CPU time."""
    ((_, events),) = judge(type(event), [encode(event)] * 2).pieces
    assert rules.hold(type(event), events)


@pytest.mark.parametrize("event", [response(), reward()], ids=lambda event: type(event).__name__)
def test_an_id_that_is_wrong_in_one_character_is_found(event: Response | Reward) -> None:
    field = next(iter(shapes(type(event))))
    right, good = getattr(event, field), encode(event)
    digits = "0123456789abcdef"
    wrong = [
        right[:at] + (digits[digits.index(each) ^ 8] if each in digits else "_") + right[at + 1 :]
        for at, each in enumerate(right)
    ]
    for each in [*wrong, right.upper(), right.replace("-", "") + "0000", right[:-1] + "\u00e9"]:
        found = decode(type(event), records([good, by_another_writer(event, **{field: each}), good]))
        assert [bad.at.offset for bad in found.bad] == [101], each


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (task(), {"purpose": "teach"}),
        (task(), {"group_size": 1025}),
        (task(), {"reward_sources": []}),
        (task(), {"reward_sources": [dataclasses.asdict(RewardSource(name="exact"))] * 2}),
        (task(), {"reward_sources": [dataclasses.asdict(RewardSource(name="exact", weight=-2e12))]}),
        (task(), {"messages": []}),
        (task(), {"sampling": dataclasses.asdict(Sampling(top_p=0.0))}),
        (task(), {"sampling": dataclasses.asdict(Sampling(max_tokens=0))}),
        (task(), {"max_turns": 0}),
        (task(**EPISODE), {"max_turns": 10_000}),
        (task(**EPISODE), {"agent": None}),
        (response(), {"logprobs": [float("inf"), 0.0]}),
        (response(), {"logprobs": [0.0]}),
        (response(), {"logprobs": [-0.5, 0.5]}),
        (response(), {"logprobs": [0.001, 0.0]}),  # beyond 2 ** -10 by less than 32 bits could show of a decimal limit
        (response(), {"logprobs": b"1234567"}),
        (response(), {"prompt_token_ids": [-1]}),
        (response(), {"prompt_token_ids": b"12345"}),
        (response(), {"loss_mask": b"\1\2"}),
        (group(), {"responses": [raw(member(), loss_mask=b"\1")]}),
        (group(), {"responses": [raw(member(), logprobs=[-0.5, float("nan")])]}),
        (response(), {"slot": 4}),
        (response(), {"error": "out of memory"}),
        (response(), {"sampling_id": "s2"}),
    ],
)
def test_a_contradiction_among_many_is_found(event: Event, changes: dict[str, Any]) -> None:
    good = encode(event)
    assert_the_same([good] * 30 + [by_another_writer(event, **changes)] + [good] * 30, type(event))


def test_an_integer_beyond_32_bits_is_not_wrapped() -> None:
    good = encode(reward(slot=5, source="SOURCE"))
    at = good.index(b"\x0cSOURCE") - 1
    assert_the_same([good, good[:at] + b"\x80\x80\x80\x80\x80\x40" + good[at + 1 :]], Reward)


def test_a_layout_that_other_writers_use_is_read() -> None:
    good = encode(reward(components={}))
    assert good.endswith(b"\0\0\0")  # no components, no steps, and it is not sealed
    # a block with its size in bytes, and a key given twice: the later one counts
    blocks = good[:-3] + b"\x01\x14\x02a" + struct.pack("<d", 1.0) + b"\x04\x02a" + struct.pack("<d", 2.0)
    blocks += b"\x02b" + struct.pack("<d", 3.0) + b"\0\0\0"
    found = decode(Reward, records([good, blocks]))
    assert found.bad == ()
    assert found.table["components"].to_pylist() == [[], [("a", 2.0), ("b", 3.0)]]
    assert_the_same([good, blocks], Reward)


def test_what_is_per_token_is_a_list_of_its_type() -> None:
    found = decode(Response, records([encode(response()), encode(response(error="oom"))])).table
    for name, kind, value in (
        ("completion_token_ids", pa.int32(), [4, 5]),
        ("logprobs", pa.float32(), [-0.5, -0.25]),
        ("loss_mask", pa.bool_(), [True, True]),
    ):
        assert found.schema.field(name).type == pa.list_(kind)
        assert found[name].to_pylist() == [value, []]


# --- where a record lies ----------------------------------------------------------------------------------------------


def test_a_table_begins_with_where_the_records_lie() -> None:
    found = decode(Reward, records([encode(reward()), None, encode(reward())])).table
    assert found.column_names[:5] == ["_partition", "_offset", "_timestamp", "_key", "_schema_id"]
    assert found["_partition"].to_pylist() == [3, 3]
    assert found["_offset"].to_pylist() == [100, 102]
    assert found["_timestamp"].cast(pa.int64()).to_pylist() == [1000, 1002]
    assert found["_schema_id"].to_pylist() == [versions.files().newest(Reward).id] * 2
    assert str(found.schema.field("_timestamp").type) == "timestamp[ms, tz=UTC]"


@pytest.mark.parametrize(("key", "text"), [(b"k", "k"), (None, None), (b"", ""), (b"\xffk", "\ufffdk")])
def test_a_key_is_text_as_far_as_it_can_be(key: bytes | None, text: str | None) -> None:
    assert decode(Reward, records([encode(reward())], key=key)).table["_key"].to_pylist() == [text]


def test_no_records_are_an_empty_table_with_all_columns() -> None:
    for kind in EVENTS:
        assert decode(kind, []).table.schema == arrow_schema(kind)
        assert decode(kind, records([None])).table.num_rows == 0


def test_records_of_several_topics_and_many_chunks_stay_in_order() -> None:
    payload, count = encode(reward()), CHUNK_RECORDS + 10
    mixed = [Record(Coordinates("ab"[i % 1000 < 500], 0, i), i, None, payload) for i in range(count)]
    mixed[7] = mixed[7]._replace(payload=b"?")
    mixed[count - 1] = mixed[count - 1]._replace(payload=b"?")
    found = decode(Reward, mixed)
    assert found.table["_offset"].to_pylist() == [i for i in range(count) if i not in (7, count - 1)]
    assert [bad.at for bad in found.bad] == [mixed[7].at, mixed[count - 1].at]


# --- a schema with a past ---------------------------------------------------------------------------------------------


LATER = {"scenario", "metadata", "deadline_at", "stop", "weight", "tool_calls", "loss_mask", "logprobs"}
"""Fields that version 1 had not: with every kind of default, at the top, in a record, and in an array of records."""


@pytest.fixture
def evolved(tmp_path: Path) -> Iterator[versions.SchemaVersions]:
    """Schemas in which Task and Response had fewer fields in version 1, and what we have now is version 2."""
    with older_schemas(tmp_path, {Task: LATER, Response: LATER}) as files:
        yield files


def test_records_of_an_older_version_have_the_new_fields_with_their_default(evolved: versions.SchemaVersions) -> None:
    assert list(versions.check(evolved)) == []
    calls = (ToolCall(id="1", name="n", arguments="{}"),)
    event = task(
        scenario="later", metadata={"a": "b"}, messages=(Message(role="user", content="hi", tool_calls=calls),) * 2
    )
    mixed = [in_version_1(event, evolved), encode(event), in_version_1(event, evolved)]
    found = decode(Task, records(mixed)).table
    first, second = (schema.id for schema in evolved.versions("Task"))
    assert found["_schema_id"].to_pylist() == [first, second, first]
    assert found["scenario"].to_pylist() == ["default", "later", "default"]
    assert [len(each[0]["tool_calls"]) for each in found["messages"].to_pylist()] == [0, 1, 0]
    assert_the_same(mixed, Task)


def test_rules_hold_for_older_versions_too(evolved: versions.SchemaVersions) -> None:
    with_tokens = response()
    without = response(completion_token_ids=(), logprobs=(), loss_mask=())
    assert_the_same([in_version_1(each, evolved) for each in (with_tokens, without, without)], Response)
