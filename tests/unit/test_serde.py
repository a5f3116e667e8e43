"""Bytes: strict on write, never raising on read, and the same facts are the same bytes."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas import versions
from schemas.event_sizes import most_bytes
from schemas.events import (
    EVENTS,
    AdvantagedGroup,
    Coordinates,
    Event,
    Message,
    Response,
    Reward,
    Sampling,
    Task,
    problems,
)
from schemas.serde import EncodeError, Poison, decode, encode, fields_read
from schemas.tokens import Logprobs
from streams.arrow.decode import judge
from streams.errors import EventError
from streams.kafka.record import Record, check_size
from streams.kafka.topics import SHAPES, key_field, topic_of
from streams.settings.model import Topics
from tests.support.any_event import any_event
from tests.support.factories import group, member, one_of_each, plain, response, reward, task
from tests.support.processes import by_another_writer
from tests.support.thoroughness import examples


@settings(max_examples=examples(150))
@given(any_event)
def test_every_event_comes_back_from_its_bytes_as_it_was(event: Event) -> None:
    assert list(problems(event)) == []
    assert decode(encode(event), type(event)) == event


def test_the_order_of_a_map_does_not_show_in_the_bytes() -> None:
    assert encode(task(metadata={"a": "1", "b": "2"})) == encode(task(metadata={"b": "2", "a": "1"}))


def test_the_frame_is_a_zero_and_the_schema_id_in_four_bytes() -> None:
    assert encode(reward())[:5] == b"\0" + struct.pack(">I", versions.files().newest(Reward).id)


def test_text_beyond_ascii_survives() -> None:
    assert decode(encode(response(text="Grüße, 世界 🦆")), Response) == response(text="Grüße, 世界 🦆")


# --- strict on write -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (reward(value=float("nan")), "Reward.value: expected a finite number, got nan"),
        (reward(value=float("-inf")), "Reward.value: expected a finite number, got -inf"),
        (reward(value=True), "Reward.value: expected float, got bool True"),
        (reward(value="1.0"), "Reward.value: expected float, got str '1.0'"),
        (reward(value=10**400), "Reward.value: expected a float, got an integer of 1329 bits"),
        (reward(slot=True), "Reward.slot: expected int, got bool True"),
        (reward(slot=1.0), "Reward.slot: expected int, got float 1.0"),
        (reward(slot=2**31), "Reward.slot: expected an integer from -2147483648 to 2147483647, got 2147483648"),
        (reward(created_at=2**63), "Reward.created_at: expected an integer from -9223372036854775808"),
        (reward(created_at=None), "Reward.created_at: expected int, got NoneType None"),
        (reward(source=b"exact"), "Reward.source: expected str, got bytes b'exact'"),
        (reward(components={"a": float("nan")}), "Reward.components['a']: expected a finite number"),
        (reward(components={1: 1.0}), "Reward.components: expected a dict with text keys, got {1: 1.0}"),
        (reward(components=[("a", 1.0)]), "Reward.components: expected a dict"),
        (task(purpose="training"), "Task.purpose: expected one of train, serve, eval, got 'training'"),
        (task(purpose=True), "Task.purpose: expected one of train, serve, eval, got True"),
        (task(messages=[Message(role="user", content="hi")]), "Task.messages: expected tuple, got list"),
        (task(messages=({"role": "user"},)), "Task.messages[0]: expected Message, got dict"),
        (task(messages=(Message(role="user", content=7),)), "Task.messages[0].content: expected str, got int 7"),  # type: ignore[arg-type]
        (task(scenario="\ud83e half"), "Task.scenario: expected text, got half a surrogate pair at character 0"),
        (task(metadata={"\udd86": "x"}), "Task.metadata: expected text, got half a surrogate pair"),
        (task(sampling=None), "Task.sampling: expected Sampling, got NoneType None"),
        (response(logprobs=[-0.5, -0.25]), "Response.logprobs: expected Logprobs, got list [-0.5, -0.25]"),
        (response(loss_mask=b"\1\1"), "Response.loss_mask: expected LossMask, got bytes"),
        (response(completion_token_ids=Logprobs()), "Response.completion_token_ids: expected TokenIds, got Logprobs"),
        (response(slot=9), "Response: slot is 9; expected 0 to 3"),
    ],
)
def test_what_is_not_what_its_schema_says_is_refused_at_the_producer(event: Event, says: str) -> None:
    with pytest.raises(EncodeError) as refused:
        encode(event)
    assert str(refused.value).startswith(says)


def test_a_field_too_many_or_too_few_is_no_event_at_all() -> None:
    with pytest.raises(TypeError, match="colour"):
        task(colour="red")
    with pytest.raises(TypeError, match="scorer_version"):
        Reward(  # type: ignore[call-arg]
            reward_id="", response_id="", task_id="", created_at=0, policy="", slot=0, source="", value=1.0
        )


def test_an_integer_is_good_where_a_float_belongs() -> None:
    assert decode(encode(reward(value=1)), Reward) == reward(value=1.0)


# --- never raising on read -------------------------------------------------------------------------------------------


def is_sound(payload: bytes | None, kind: type[Any]) -> bool:
    """Whether `payload` gives a Poison that says something, or an event that could be written again."""
    event = decode(payload, kind)
    if isinstance(event, Poison):
        return len(event.error) > 40
    return bool(decode(encode(event), kind) == event)


@given(st.binary(max_size=200), st.sampled_from(EVENTS))
def test_any_bytes_give_an_event_or_a_poison(payload: bytes, kind: type[Any]) -> None:
    assert is_sound(payload, kind)


@settings(max_examples=examples(200))
@given(st.binary(max_size=300), st.sampled_from(EVENTS))
def test_any_body_under_a_good_frame_gives_an_event_or_a_poison(body: bytes, kind: type[Any]) -> None:
    assert is_sound(struct.pack(">bI", 0, versions.files().newest(kind).id) + body, kind)


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_a_record_cut_short_anywhere_is_poison(event: Event) -> None:
    whole = encode(event)
    for length in range(len(whole)):
        assert isinstance(decode(whole[:length], type(event)), Poison), length


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_a_flipped_byte_gives_an_event_or_a_poison(event: Event) -> None:
    whole = encode(event)
    for position in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            assert is_sound(whole[:position] + bytes([whole[position] ^ mask]) + whole[position + 1 :], type(event))


def poison(payload: bytes | None, kind: type[Any] = Task) -> Poison:
    found = decode(payload, kind)
    assert isinstance(found, Poison)
    return found


def test_bytes_that_are_no_avro_say_what_was_expected_and_what_came() -> None:
    found = poison(b'{"task": 1}')
    assert found.reason == "not_avro"
    assert "expected a Task in Confluent framing" in found.error
    assert "got 11 bytes beginning 7b 22 74 61" in found.error


def test_a_tombstone_is_poison() -> None:
    assert poison(None).reason == "not_avro"
    assert "got no value" in poison(None).error


def test_an_unknown_schema_id_says_which_ids_are_known() -> None:
    known = versions.files().schemas
    found = poison(struct.pack(">bI", 0, 4242) + b"rest")
    assert found.reason == "unknown_schema"
    assert "schema id 4242" in found.error and f"known: {min(known)} to {max(known)}" in found.error


@pytest.mark.parametrize("old", range(1, 13))
def test_a_record_from_before_the_schemas_were_cut_is_refused_by_name(old: int) -> None:
    for event in one_of_each():
        found = poison(struct.pack(">bI", 0, old) + encode(event)[5:], type(event))
        assert found.reason == "unknown_schema" and "smaller ones are from before release 0.2.0" in found.error


def test_another_event_says_which_it_is() -> None:
    found = poison(encode(reward()))
    assert found.reason == "wrong_event"
    assert "expected a Task, got a Reward" in found.error


def test_bytes_after_the_event_are_counted() -> None:
    found = poison(encode(task()) + b"xyz")
    assert found.reason == "undecodable"
    assert found.error.startswith("3 bytes follow the Task; expected none")


def test_a_text_that_is_not_utf8_is_poison() -> None:
    found = poison(encode(task()).replace(b"4 + 7", b"\xff\xfe\xfd 7"))
    assert found.reason == "undecodable"
    assert "UnicodeDecodeError" in found.error


def members(**changes: Any) -> dict[str, Any]:
    """Return the responses of a group of one, with these changes."""
    return {"responses": [plain(member(), **changes)]}


@pytest.mark.parametrize(
    ("event", "changes", "says"),
    [
        (reward(), {"value": float("nan")}, "Reward.value: expected a finite number, got nan"),
        (reward(), {"value": None}, "Reward: value is None, error is None and"),
        (task(), {"purpose": "teach"}, "Task.purpose: expected one of train, serve, eval, got 'teach'"),
        (task(), {"group_size": 0}, "Task: group_size is 0"),
        (task(), {"reward_sources": []}, "Task: reward_sources is empty"),
        (
            response(),
            {"logprobs": [float("inf"), 0.0]},
            "Response.logprobs[0]: expected a finite number of 32 bits, got inf",
        ),
        (
            response(),
            {"logprobs": [-0.5, float("nan")]},
            "Response.logprobs[1]: expected a finite number of 32 bits, got nan",
        ),
        (
            response(),
            {"logprobs": [-0.5, 0.5]},
            "Response.logprobs[1]: expected a logprob, which is at most 0, got 0.5",
        ),
        (response(), {"logprobs": b"1234567"}, "Response.logprobs: expected little-endian float32, 4 bytes a token, g"),
        (
            response(),
            {"completion_token_ids": [4, -1]},
            "Response.completion_token_ids[1]: expected an id from 0 to 21",
        ),
        (
            response(),
            {"prompt_token_ids": b"12345"},
            "Response.prompt_token_ids: expected little-endian int32, 4 bytes",
        ),
        (response(), {"loss_mask": b"\1\2"}, "Response.loss_mask[1]: expected 0 or 1, got 2"),
        (response(), {"logprobs": [-0.5]}, "Response: completion_token_ids has 2 entries, logprobs 1, loss_mask 2"),
        (group(), members(logprobs=[-0.5, 0.5]), "AdvantagedGroup.responses[0].logprobs[1]: expected a logprob, which"),
        (group(), members(loss_mask=b"\1"), "AdvantagedGroup: slot 0: completion_token_ids has 2 entries, logprobs 2"),
        (reward(), {"components": {"a": 0.5, "b": float("nan")}}, "Reward.components['b']: expected a finite number"),
        (task(), {"sampling": {**dataclasses.asdict(Sampling()), "top_p": float("nan")}}, "Task.sampling.top_p: expe"),
        (response(), {"sampling_id": "s2"}, "Response: response_id is not uuid5(sampling_id, slot)"),
    ],
)
def test_what_another_writer_got_past_the_schema_is_contradictory(
    event: Event, changes: dict[str, Any], says: str
) -> None:
    found = poison(by_another_writer(event, **changes), type(event))
    assert found.reason == "contradictory"
    assert found.error.startswith(says)


def test_an_integer_beyond_32_bits_is_not_read_where_it_could_not_be_written() -> None:
    # Avro's varints carry any width, and decoders do not look: 05 at the end of a Reward's slot becomes 2^40
    good = encode(reward(slot=5, source="SOURCE"))
    at = good.index(b"\x0cSOURCE") - 1
    assert good[at] == 10
    wide = good[:at] + b"\x80\x80\x80\x80\x80\x40" + good[at + 1 :]
    assert poison(wide, Reward).error.startswith("Reward.slot: expected an integer from -2147483648")


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_what_is_wrong_with_bytes_is_said_in_the_same_words_each_time(event: Event) -> None:
    payload = encode(event)
    for length in range(5, len(payload)):
        first, second = (decode(payload[:length], type(event)) for _ in range(2))
        assert isinstance(first, Poison)
        assert first == second
        assert " at 0x" not in first.error


def test_the_fields_of_a_record_that_is_refused_show_what_is_per_token_as_lists() -> None:
    fields = fields_read(by_another_writer(response(), logprobs=[-0.5, 0.5], prompt_token_ids=b"\1\2\3"), Response)
    assert (fields["logprobs"], fields["completion_token_ids"]) == ([-0.5, 0.5], list(response().completion_token_ids))
    assert fields["prompt_token_ids"] == "010203"  # not of whole tokens
    (member,) = fields_read(by_another_writer(group(), **members(loss_mask=b"\1\2")), AdvantagedGroup)["responses"]
    assert member["loss_mask"] == [1, 2]


@pytest.mark.parametrize(
    "kind",
    [shape.event for shape in SHAPES.values() if shape.event in EVENTS and most_bytes(shape.event)],
    ids=lambda kind: kind.__name__,
)
def test_a_record_that_is_too_long_for_its_kind_is_not_written_and_skipped_by_every_reader(kind: type[Event]) -> None:
    whole: Any = next(event for event in one_of_each() if type(event) is kind)
    longest = (most_bytes(kind) or 0) - len(encode(dataclasses.replace(whole, metadata={"pad": ""}))) - 8
    for length, is_event in ((longest, True), (longest + 16, False)):
        event = dataclasses.replace(whole, metadata={"pad": "x" * length})
        payload = encode(event)
        record = Record(Coordinates("t", 0, 0), 0, getattr(event, key_field(kind)).encode(), payload)
        read = record.decode_placed(kind, None)
        if is_event:
            assert read == event
        else:
            assert isinstance(read, Poison) and (read.reason, "has at most" in read.error) == ("too_large", True)
            with pytest.raises(EventError, match="no setting raises that"):
                check_size(topic_of(kind, Topics()), None, payload)
        assert (judge(kind, [encode(whole), payload]).wrong == {}) == is_event
