"""What a group remembers of one topic is bounded, and no order of reading shows in what is over the bound."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings, strategies as st

from schemas.events import Event
from schemas.serde import encode
from streams.stages.advantages.rows import dump
from streams.stages.advantages.state import OpenGroup
from tests.support.factories import T0, control, response, reward, task
from tests.support.log.join_partition import Log, answers, scores
from tests.support.thoroughness import examples

ROW_BYTES = 12 * 1024
"""Of which tasks have 1.2 KB, responses 3.8 and rewards 5.1, beside what is reserved."""
ODD = "\x00\x1f\U0001f600"
"""What takes six and twelve bytes a letter in a row."""
SIZE = 2
SAMPLED = [one for sampling in ("s1", "s2") for one in answers(SIZE, sampling_id=sampling)]

Entry = tuple[Event, int]
"""An event, and the time of its record."""


@st.composite
def floods(draw: st.DrawFn) -> dict[str, list[Entry]]:
    """Draw the topics of one task: what is good, and any number of strange records among it."""
    asked = task(group_size=SIZE, deadline_at=T0 + 100, metadata={"note": draw(st.sampled_from(["", ODD * 20]))})
    strange: dict[str, st.SearchStrategy[Event]] = {
        "tasks": st.builds(task, scenario=st.sampled_from(["default", *"abc"]), tenant=st.sampled_from(["", ODD * 50])),
        "responses": st.builds(
            response,
            sampling_id=st.sampled_from(["s1", *"abcdefg", ODD * 10]),
            slot=st.integers(0, 1),
            group_size=st.just(SIZE),
            policy=st.sampled_from(["default", "other"]),
            text=st.sampled_from("ab"),
        ),
        "rewards": st.builds(
            lambda of, source, value, parts, steps: reward(
                of, source=source, value=value, components=parts, steps=steps
            ),
            st.builds(response, sampling_id=st.sampled_from(["s1", "s2", *"abc"]), group_size=st.just(SIZE)),
            st.sampled_from(["exact", "unasked", ODD, "feedback/ada"]),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from([{}, {ODD * 10: -1.7976931348623157e308}, {str(n): 0.1 for n in range(9)}]),
            st.sampled_from([(), (-1e-300,) * 20]),
        ),
    }
    good: dict[str, list[Event]] = {"tasks": [asked], "responses": [*SAMPLED], "rewards": [*scores(SAMPLED)]}

    def partition(name: str) -> list[Entry]:
        flood = draw(st.lists(strange[name], max_size=60))
        return [(one, draw(st.integers(T0, T0 + 120))) for one in draw(st.permutations([*good[name], *flood]))]

    return {name: partition(name) for name in good}


def interleaved(topics: dict[str, list[Entry]], seed: int) -> Iterator[tuple[Event, int, int]]:
    """Yield (event, offset, time) of all topics in some order that keeps each topic's own; at times it reads back."""
    draw, heads = random.Random(seed), dict.fromkeys(topics, 0)
    turns = [name for name, entries in topics.items() for _ in entries]
    draw.shuffle(turns)
    for name in turns:
        first = max(0, heads[name] - draw.choice((0, 0, 0, 3)))
        heads[name] += 1
        for offset in range(first, heads[name]):
            event, at_ms = topics[name][offset]
            yield event, offset, at_ms


def read(entries: Iterable[tuple[Event, int, int]]) -> Log:
    """Return the log after all of these were read and the deadline passed; no row on the way was too large."""
    log = Log(row_bytes=ROW_BYTES)
    for event, offset, at_ms in entries:
        log.read_at(event, offset, at_ms)
        assert log.state is None or len(dump(log.state)) + len("t1") <= ROW_BYTES
    log.read(control())
    return log


@settings(max_examples=examples(100))
@given(floods(), st.integers(0, 2**32), st.integers(0, 2**32))
def test_no_order_of_reading_shows_in_the_group_or_in_what_is_refused(
    topics: dict[str, list[Entry]], one: int, other: int
) -> None:
    first, second = read(interleaved(topics, one)), read(interleaved(topics, other))
    assert set(first.rejects) == set(second.rejects)
    assert [log.closes and encode(log.group()) for log in (first, second)] == [
        first.closes and encode(first.group())
    ] * 2


# --- one topic --------------------------------------------------------------------------------------------------------


def flood(count: int, **changes: Any) -> list[Event]:
    """Return rewards by sources that no task names, each with components that take about 2 KB of a row."""
    parts = {f"{n:02d}": 0.5 for n in range(64)}
    return [reward(source=f"stranger-{n}", components=parts, **changes) for n in range(count)]


def test_a_flood_of_rewards_is_refused_from_the_first_that_does_not_fit_and_the_group_goes_on() -> None:
    log, slots = Log(row_bytes=ROW_BYTES), answers()
    log.read_all([*scores(slots), *flood(20), task(), *slots])
    assert [reason for _, reason in log.reasons()] == ["over_quota"] * 18 + ["unasked"] * 2
    assert log.reasons()[0] == ("rewards@6", "over_quota") and "from offset 6 on" in log.rejects[0].error
    assert log.group().complete and len(log.group().responses) == 4


def test_once_a_topic_is_full_even_what_would_fit_is_refused_and_the_other_topics_are_read_on() -> None:
    log, slots = Log(row_bytes=ROW_BYTES), answers()
    log.read_all([task(), *flood(20), *slots, *scores(slots), control()])
    assert log.reasons()[-4:] == [(f"rewards@{offset}", "over_quota") for offset in range(20, 24)]
    assert {left.reason for left in log.group().left_out} == {"unscored"}


def test_long_names_of_samplings_take_their_room() -> None:
    log = Log(row_bytes=ROW_BYTES)
    log.read_all([response(sampling_id=f"{number:03d}" * 100) for number in range(60)])
    assert {reason for _, reason in log.reasons()} == {"over_quota"}
    assert isinstance(log.state, OpenGroup) and len(dump(log.state)) < ROW_BYTES


def test_what_is_read_again_after_a_restart_is_not_counted_twice() -> None:
    log = Log(row_bytes=ROW_BYTES)
    for event, offset in [(one, offset) for offset, one in enumerate(flood(2))] * 9:
        log.read_at(event, offset, T0)
    assert log.rejects == []


def test_a_task_that_is_larger_than_its_share_is_refused_and_a_changed_copy_counts_little_however_large() -> None:
    log = Log(row_bytes=ROW_BYTES)
    log.read_all([task(), task(tenant="x" * 1200)])
    assert log.reasons() == [("tasks@1", "contradictory")]
    alone = Log(row_bytes=ROW_BYTES)
    alone.read_all([task(tenant="x" * 1200), task(), *answers(), control()])
    assert [reason for _, reason in alone.reasons()] == ["over_quota"] * 2 + ["unknown_task"] * 4


def test_with_a_key_that_leaves_no_room_for_a_row_everything_is_refused_without_one() -> None:
    log, name = Log(row_bytes=ROW_BYTES), "i" * ROW_BYTES
    log.read_all([task(task_id=name), response(task_id=name), reward(response(), task_id=name)])
    assert ([reason for _, reason in log.reasons()], log.state) == (["over_quota"] * 3, None)
