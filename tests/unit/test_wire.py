"""The quick way through Avro gives what fastavro gives, or steps aside."""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings, strategies as st

from schemas import versions, wire, wire_read, wire_write
from schemas.convert import checked, doubtful, raised
from schemas.events import EVENTS, Event, Response, Task
from schemas.serde import decode, encode
from tests.support.any_event import any_event
from tests.support.factories import one_of_each, response, reward, task
from tests.support.thoroughness import examples


def slowly_written(event: Event) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, versions.files().newest(type(event)).parsed, checked(event))
    return out.getvalue()


def slowly_read(body: bytes, kind: Any) -> Any:
    file = io.BytesIO(body)
    plain: Any = fastavro.schemaless_reader(file, versions.files().newest(kind).parsed, None)
    assert file.tell() == len(body)
    assert not doubtful(kind)(plain)
    return raised(kind)(plain)


def quickly_written(event: Event) -> bytes:
    kind: Any = type(event)
    out = bytearray()
    wire_write.writer(kind)(event, out)
    return bytes(out)


def quickly_read(body: bytes, kind: Any) -> Any:
    """Return the event, or None where the quick way steps aside."""
    try:
        event, end = wire_read.reader(kind)(body, 0)
    except wire.ODD:
        return None
    return event if end == len(body) else None


def assert_as_fastavro_does(body: bytes, kind: Any) -> None:
    """Whatever is read quickly is what fastavro reads, and is written again as fastavro writes it."""
    if (quick := quickly_read(body, kind)) is not None:
        assert quick == slowly_read(body, kind)
        with contextlib.suppress(*wire.ODD):
            assert quickly_written(quick) == slowly_written(quick)


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_an_ordinary_event_takes_the_quick_way_both_ways(event: Event) -> None:
    assert quickly_written(event) == slowly_written(event)
    assert quickly_read(slowly_written(event), type(event)) == event


@settings(max_examples=examples(150))
@given(any_event)
def test_what_the_quick_way_takes_is_what_fastavro_makes_of_it(event: Event) -> None:
    slow = slowly_written(event)
    with contextlib.suppress(wire.Odd):
        assert quickly_written(event) == slow
    assert quickly_read(slow, type(event)) in (None, event)


@settings(max_examples=examples(300))
@given(st.sampled_from(one_of_each()), st.data())
def test_bytes_that_were_tampered_with_are_read_as_fastavro_reads_them_or_not_at_all(event: Event, data: Any) -> None:
    body = bytearray(slowly_written(event))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert_as_fastavro_does(bytes(body), type(event))


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.sampled_from(EVENTS))
def test_any_body_is_read_as_fastavro_reads_it_or_not_at_all(body: bytes, kind: Any) -> None:
    assert_as_fastavro_does(body, kind)


def test_token_arrays_of_any_width_survive() -> None:
    edges = tuple(edge + step for edge in (0, 64, 8192, 1 << 20, 1 << 27, 1 << 30) for step in (-1, 0, 1))
    event = response(
        completion_token_ids=edges, logprobs=(-0.5,) * len(edges), loss_mask=(True, False) * (len(edges) // 2)
    )
    assert quickly_written(event) == slowly_written(event)
    assert quickly_read(quickly_written(event), Response) == event


def test_numbers_that_were_read_are_passed_on_with_their_bytes() -> None:
    read = quickly_read(slowly_written(response()), Response)
    for name in ("prompt_token_ids", "completion_token_ids", "logprobs", "loss_mask"):
        assert type(getattr(read, name)) is wire.Numbers
    assert quickly_written(read) == slowly_written(read)
    mixed = replace(read, logprobs=read.completion_token_ids)  # integers, where floats belong
    with pytest.raises(wire.Odd):
        quickly_written(mixed)


def test_a_number_in_more_bytes_than_it_takes_is_left_to_fastavro_and_written_shorter() -> None:
    event = response(completion_token_ids=(77,), logprobs=(-0.5,), loss_mask=(True,))
    good = encode(event)
    assert good.count(b"\x02\x9a\x01\x00") == 1
    longer = good.replace(b"\x02\x9a\x01\x00", b"\x02\x9a\x81\x00\x00")
    assert quickly_read(longer[5:], Response) is None
    read = decode(longer, Response)
    assert isinstance(read, Response) and read == event and encode(read) == good


def test_a_prompt_like_the_last_one_but_longer_is_not_taken_for_it() -> None:
    prompts = [(5, 6), (5, 6, 7), (), (5,), (5, 6)]
    events = [response(prompt_token_ids=prompt) for prompt in prompts]
    assert [quickly_read(slowly_written(event), Response) for event in events] == events


def test_blocks_that_say_their_size_in_bytes_are_read_all_the_same() -> None:
    # Java writes arrays in blocks of a negative count; Avro 1.11, "Complex Types"
    good = slowly_written(reward(components={"a": 0.5}))
    entry = b"\x02a" + struct.pack("<d", 0.5)
    blocks = b"\x01" + bytes([2 * len(entry)]) + entry + b"\x00"
    other = good.removesuffix(b"\x02" + entry + b"\x00") + blocks
    assert len(other) == len(good) + 1
    kind = type(reward())
    assert quickly_read(other, kind) is None
    assert decode(encode(reward(components={"a": 0.5}))[:5] + other, kind) == reward(components={"a": 0.5})


@pytest.mark.parametrize("zeros", [b"\x80\x00", b"\x81\x00"], ids=["0", "-1"])
def test_a_zero_in_two_bytes_is_left_to_fastavro(zeros: bytes) -> None:
    body = slowly_written(task(messages=task().messages))
    assert body.endswith(b"\x00")
    assert quickly_read(body[:-1] + zeros, Task) is None
