"""The join does not depend on how its topics are read side by side, nor on what is read twice."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from factories import T0, control, response, reward, task
from hypothesis import given, settings
from hypothesis import strategies as st
from joining import Log

from schemas.events import Event, Response, RewardSource
from schemas.serde import encode

Entry = tuple[Event, int]
"""An event and the timestamp of its record."""


@st.composite
def partitions(draw: st.DrawFn) -> dict[str, list[Entry]]:
    """Draw the topics of one task: two samplings, failures, strays, contradictions, latecomers, and repetitions."""
    at = st.integers(T0, T0 + 120)  # the deadline is T0 + 100
    size = draw(st.integers(1, 3))
    sources = draw(st.sampled_from([("exact",), ("exact", "judge")]))
    asked = task(
        group_size=size,
        deadline_at=T0 + 100,
        adapter_version=draw(st.sampled_from([None, None, 0])),
        reward_sources=tuple(RewardSource(name=name) for name in sources),
    )
    slots: list[Response] = []
    for sampling in ("s1", "s2"):
        version = draw(st.sampled_from([0, 0, 1]))
        for slot in range(size):
            error = draw(st.sampled_from([None, None, None, "oom"]))
            slots.append(
                response(sampling_id=sampling, slot=slot, group_size=size, adapter_version=version, error=error)
            )
    slots += draw(st.lists(st.builds(response, slot=st.just(0), adapter_version=st.integers(0, 1)), max_size=1))
    verdicts = [
        reward(one, source=source, value=draw(st.sampled_from([0.0, 0.5, 1.0])))
        for one in slots
        for source in (*sources, "unasked")
    ]
    verdicts += draw(st.lists(st.sampled_from([reward(one, value=7.0) for one in slots]), max_size=2))

    def partition(events: Sequence[Event]) -> list[Entry]:
        order = draw(st.permutations(events))
        again = draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
        return [(event, draw(at)) for event in (*order, *again)]

    return {"tasks": partition([asked]), "responses": partition(slots), "rewards": partition(verdicts)}


def interleaved(topics: dict[str, list[Entry]], seed: int) -> list[tuple[Event, int, int]]:
    """Return (event, offset, time) of all topics in some order that keeps each topic's own."""
    turns = [name for name, entries in topics.items() for _ in entries]
    random.Random(seed).shuffle(turns)
    heads = dict.fromkeys(topics, 0)
    order = []
    for name in turns:
        offset, heads[name] = heads[name], heads[name] + 1
        event, at_ms = topics[name][offset]
        order.append((event, offset, at_ms))
    return order


def outcome(order: Iterable[tuple[Event, int, int]], **rule: Any) -> bytes:
    """Return the bytes of the group that leaves when all of `order` was read, and its deadline has passed."""
    log = Log(**rule)
    for event, offset, at_ms in order:
        log.read_at(event, offset, at_ms)
    log.read(control())
    return encode(log.group())


@settings(max_examples=100)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 2**32), st.sampled_from(["emit", "drop"]))
def test_the_order_in_which_topics_are_read_does_not_show_in_the_group(
    topics: dict[str, list[Entry]], one: int, other: int, partial: str
) -> None:
    assert outcome(interleaved(topics, one), partial=partial) == outcome(interleaved(topics, other), partial=partial)


@settings(max_examples=60)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 20))
def test_records_delivered_again_at_the_end_change_nothing(
    topics: dict[str, list[Entry]], seed: int, again: int
) -> None:
    order = interleaved(topics, seed)
    repeated = [(event, offset + 1000, at_ms) for event, offset, at_ms in order[:again]]
    assert outcome([*order, *repeated]) == outcome(order)


@settings(max_examples=60)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_a_restart_that_reads_some_records_again_gives_the_same_group(
    topics: dict[str, list[Entry]], seed: int, stop: int, back: int
) -> None:
    # killed after `stop` records with the rows written, resumed `back` records before
    order = interleaved(topics, seed)
    stop = min(stop, len(order))
    assert outcome([*order[:stop], *order[max(0, stop - back) :]]) == outcome(order)
