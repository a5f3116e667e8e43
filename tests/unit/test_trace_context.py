"""The record header `traceparent`: what is a trace, what is none, and which one follows from which."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from schemas.events import derive_id
from streams.observability.trace_context import (
    Context,
    beginning,
    child,
    headers_of,
    is_within,
    of_headers,
    parse,
    span_id_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
contexts = st.builds(
    Context,
    st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}"),
    st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.integers(0, 3),
)


@given(contexts)
def test_what_is_written_is_read_again(context: Context) -> None:
    assert of_headers(headers_of(context).items()) == context
    assert parse(context.traceparent) == context
    assert len(context.traceparent) == 55


@given(st.one_of(st.none(), st.text(max_size=80), st.binary(max_size=80), st.from_regex(r"[0-9a-f]{2}(-[0-9a-f]+){3}")))
def test_whatever_a_header_holds_is_a_trace_or_none_and_no_error(value: str | bytes | None) -> None:
    found = parse(value)
    assert found is None or parse(found.traceparent) == found


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-a-b-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_a_malformed_header_is_no_trace(header: str) -> None:
    assert parse(header) is None
    assert of_headers([("traceparent", header.encode())]) is None


@pytest.mark.parametrize("header", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-ff-what-comes-later"])
def test_a_later_version_is_read_as_far_as_00_goes_and_goes_on_as_00(header: str) -> None:
    found = parse(header)
    assert found is not None and found.sampled
    assert found.traceparent == f"00-{TRACE}-{SPAN}-0{found.flags}"


@pytest.mark.parametrize(
    ("flags", "sampled", "written"), [("00", False, "00"), ("01", True, "01"), ("fe", False, "02")]
)
def test_only_flags_that_version_00_knows_go_on(flags: str, sampled: bool, written: str) -> None:
    found = parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert found is not None and found.sampled is sampled
    assert found.traceparent.endswith(f"-{written}")


def test_a_record_with_two_traces_has_none_and_other_headers_do_not_matter() -> None:
    one, other = (headers_of(beginning("p.", name, 1))["traceparent"] for name in "ab")
    assert of_headers([("streamward-retry", b"x"), ("traceparent", one), ("baggage", None)]) == parse(one)
    assert of_headers([("traceparent", one), ("traceparent", other)]) is None
    assert of_headers([("traceparent", None)]) is of_headers([]) is None
    assert headers_of(None) == {}


@given(contexts, st.uuids().map(str))
def test_what_follows_stays_in_the_trace_and_is_sampled_as_its_cause_is(parent: Context, event_id: str) -> None:
    follower = child(parent, event_id)
    assert (follower.trace_id, follower.flags) == (parent.trace_id, parent.flags)
    assert follower == child(parent, event_id)
    assert parse(follower.traceparent) == follower


def test_ids_follow_from_the_event_and_are_those_of_every_release() -> None:
    """By hand: `printf %s t1 | sha256sum`, and of the three parts with \\x1f between."""
    assert span_id_of("t1") == "628b49d96dcde97a"
    assert beginning("streamward.", "t1", 5) == Context("5f22b64134c40c6eb5d550175b196f12", "628b49d96dcde97a", 1)


def test_the_same_task_in_another_log_or_submitted_anew_begins_another_trace() -> None:
    begun = [beginning(*parts) for parts in (("a.", "t1", 5), ("b.", "t1", 5), ("a.", "t1", 6), ("a.", "t2", 5))]
    assert len({context.trace_id for context in begun}) == 4


def test_about_so_many_traces_are_sampled_as_the_ratio_says() -> None:
    begun = [beginning("p.", derive_id(number), 0) for number in range(2000)]
    assert all(is_within(context, 1.0) for context in begun)
    assert not any(is_within(context, 0.0) for context in begun)
    quarter = {context for context in begun if is_within(context, 0.25)}
    assert 400 < len(quarter) < 600
    assert quarter <= {context for context in begun if is_within(context, 0.5)}
