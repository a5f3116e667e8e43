"""Ids of a Schema Registry beside our own: what is written, and which schema an id means when it is read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import ids, versions
from schemas.events import Coordinates, Event, Reward, Task
from schemas.ids import RegistryIds, RegistryVersion
from schemas.serde import Poison, decode, encode
from streams.arrow import decode as columns
from streams.kafka.record import Record
from tests.support.factories import in_version_1, one_of_each, reward, task
from tests.support.older_schemas import older_schemas

TASK, REWARD = (versions.files().newest(event).id for event in (Task, Reward))
OFFSET = 100
"""What this registry counts from; so far off that no id of its means anything else in lock.json."""


@pytest.fixture(autouse=True)
def own_ids_again() -> Iterator[None]:
    yield
    ids.use(ids.LOCK_IDS)


def never(schema_id: int) -> str | None:
    raise AssertionError(f"asked for {schema_id}")


def held(offset: int = OFFSET) -> list[RegistryVersion]:
    """What a registry holds that registered ours in their order, behind `offset` schemas of others."""
    return [
        RegistryVersion(each.event, each.version, each.id + offset, each.text)
        for each in versions.files().schemas.values()
    ]


def given(*more: RegistryVersion, offset: int = OFFSET, own_ids: bool = True, ask: ids.Ask = never) -> RegistryIds:
    return RegistryIds([*held(offset), *more], ask, url="http://registry", own_ids=own_ids)


def renumbered(payload: bytes, schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload[5:]


def without_docs(text: str) -> str:
    def strip(node: object) -> object:
        if isinstance(node, dict):
            return {key: strip(value) for key, value in node.items() if key != "doc"}
        return [strip(value) for value in node] if isinstance(node, list) else node

    return json.dumps(strip(json.loads(text)))


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_the_frame_has_the_registrys_id_and_the_body_does_not_change(event: Event) -> None:
    own = encode(event)
    ids.use(given())
    assert encode(event) == renumbered(own, int.from_bytes(own[1:5], "big") + OFFSET)
    assert decode(encode(event), type(event)) == event


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_what_was_written_before_there_was_a_registry_is_still_read(event: Event) -> None:
    own = encode(event)
    ids.use(given())
    assert decode(own, type(event)) == event
    assert decode(renumbered(own, int.from_bytes(own[1:5], "big") + OFFSET), type(event)) == event


def test_an_older_version_is_read_under_its_own_id_and_the_registrys(tmp_path: Path) -> None:
    with older_schemas(tmp_path, {Reward: {"rationale"}}) as files:
        first = in_version_1(reward(), files)
        ids.use(given())
        assert decode(first, Reward) == reward()
        assert decode(renumbered(first, int.from_bytes(first[1:5], "big") + OFFSET), Reward) == reward()


def test_without_own_ids_only_the_registrys_count() -> None:
    own = encode(reward())
    ids.use(given(own_ids=False, ask=lambda _: None))
    found = decode(own, Reward)
    assert isinstance(found, Poison) and found.reason == "unknown_schema"
    assert (
        f"schema id {REWARD} is not the id of a schema of ours in the registry at http://registry. Update"
        in found.error
    )
    assert decode(encode(reward()), Reward) == reward()


def test_an_id_of_two_versions_of_one_event_is_a_clash(tmp_path: Path) -> None:
    with older_schemas(tmp_path, {Task: {"tenant"}, Reward: {"rationale"}}) as files:
        first, second = files.versions("Reward")
        assert list(given(offset=second.id - first.id).clashes()) == [
            f"a Reward with schema id {second.id} may be version 2 of lock.json, or version 1 of "
            "Reward of the registry at http://registry"
        ]


def offsets_between_events() -> list[int]:
    """Return offsets by which ids of one event become ids of another, and never of another version of their own."""
    schemas = versions.files().schemas.values()
    apart = {one.id - other.id for one in schemas for other in schemas if one.event == other.event}
    return [0, *[offset for offset in range(1, len(schemas)) if offset not in apart][:3], OFFSET]


@pytest.mark.parametrize("offset", offsets_between_events())
def test_an_id_of_two_events_is_none_since_a_topic_has_one(offset: int) -> None:
    assert list(given(offset=offset).clashes()) == []
    own = {type(event): encode(event) for event in one_of_each()}
    ids.use(given(offset=offset))
    for event in one_of_each():
        assert decode(own[type(event)], type(event)) == decode(encode(event), type(event)) == event


def test_a_strange_schema_in_our_subject_clashes_with_an_own_id_and_with_no_other() -> None:
    assert list(given(RegistryVersion("Reward", 2, TASK, '"string"')).clashes()) == []
    (clash,) = given(RegistryVersion("Reward", 2, REWARD, '"string"')).clashes()
    assert clash.startswith(
        f"a Reward with schema id {REWARD} may be version 4 of lock.json, or no schema of ours of the"
    )
    assert list(given(RegistryVersion("Reward", 2, REWARD, '"string"'), own_ids=False).clashes()) == []


def test_an_unknown_id_is_asked_for_once() -> None:
    asked: list[int] = []
    texts = {500: without_docs(versions.files().newest(Reward).text), 501: '"string"', 502: 'syntax = "proto3";'}

    def ask(schema_id: int) -> str | None:
        asked.append(schema_id)
        return texts.get(schema_id)

    registry = given(ask=ask)
    ids.use(registry)
    payload = encode(reward())
    assert registry.id_to_look_up("Reward", payload) is None and registry.id_to_look_up("Reward", None) is None
    assert registry.id_to_look_up("Reward", renumbered(payload, 500)) == 500
    for _ in range(2):
        assert decode(renumbered(payload, 500), Reward) == reward()  # the same on the wire
        for unknown in (501, 502, 503):
            found = decode(renumbered(payload, unknown), Reward)
            assert isinstance(found, Poison) and found.reason == "unknown_schema"
    assert asked == [500, 501, 502, 503]
    assert registry.id_to_look_up("Reward", renumbered(payload, 500)) is None


def test_what_cannot_be_asked_is_raised_and_asked_again() -> None:
    answers = iter([OSError("away"), versions.files().newest(Reward).text])

    def ask(_: int) -> str | None:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    ids.use(given(ask=ask))
    payload = renumbered(encode(reward()), 500)
    with pytest.raises(OSError, match="away"):
        decode(payload, Reward)
    assert decode(payload, Reward) == reward()


def test_a_record_on_the_wrong_topic_is_known_for_what_it_is() -> None:
    ids.use(given())
    found = decode(encode(task()), Reward)
    assert isinstance(found, Poison) and found.reason == "wrong_event"
    assert f"expected a Reward, got a Task (schema id {TASK + OFFSET})" in found.error


def test_of_two_ids_for_one_schema_the_one_with_its_very_text_is_written_and_both_are_read() -> None:
    text = versions.files().newest(Reward).text
    registry = RegistryIds([RegistryVersion("Reward", 1, 70, without_docs(text)), *held()], never, url="")
    ids.use(registry)
    assert encode(reward())[1:5] == (REWARD + OFFSET).to_bytes(4, "big")
    assert decode(renumbered(encode(reward()), 70), Reward) == reward()
    assert registry.lacking() == [] and len(RegistryIds([], never, url="").lacking()) == len(versions.files().schemas)


def test_a_schema_is_the_same_on_the_wire_whatever_its_comments_and_layout() -> None:
    for schema in versions.files().schemas.values():
        assert ids.schema_from_text(without_docs(schema.text)) == schema
        assert ids.schema_from_text(schema.text.replace('"string"', '"int"', 1)) is None


def test_bulk_decoding_gives_what_serde_gives_in_a_log_with_both_numberings() -> None:
    own = encode(reward())
    ids.use(given(ask=lambda _: None))
    payloads = [own, encode(reward()), own, renumbered(own, 777), encode(reward())]
    records = [Record(Coordinates("rewards", 0, i), i, b"t", payload) for i, payload in enumerate(payloads)]
    found = columns.decode(Reward, records)
    assert found.table["_offset"].to_pylist() == [0, 1, 2, 4]
    assert found.table["_schema_id"].to_pylist() == [REWARD, REWARD + OFFSET] * 2
    assert set(found.table["reward_id"].to_pylist()) == {reward().reward_id}
    assert [(bad.at.offset, bad.reason) for bad in found.bad] == [(3, "unknown_schema")]


def test_the_numbering_of_a_process_can_be_handed_to_another() -> None:
    registry = pickle.loads(pickle.dumps(given()))  # noqa: S301 - our own
    assert registry.id_of(versions.files().newest(Reward)) == REWARD + OFFSET


def test_a_numbering_is_found_out_when_the_first_record_needs_it() -> None:
    asked = []

    def find_out() -> ids.LockIds:
        asked.append(1)
        return given()

    ids.use_later(find_out)
    assert asked == []
    assert decode(encode(reward()), Reward) == reward()
    assert asked == [1]
