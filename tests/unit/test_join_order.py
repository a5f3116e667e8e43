"""The join does not depend on how its topics are read side by side, nor on what is read twice."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import Event, Message, Response, Reward, RewardSource, Task
from schemas.serde import encode
from tests.support.factories import T0, control, response, reward, task
from tests.support.log.join_partition import Log, answers, scores
from tests.support.thoroughness import examples

Entry = tuple[Event, int]
"""An event and the timestamp of its record."""
DEADLINE_S = 0.06


@st.composite
def partitions(draw: st.DrawFn) -> dict[str, list[Entry]]:
    """Draw the topics of one task: two samplings, failures, strays, contradictions, latecomers, and repetitions."""
    at = st.integers(T0, T0 + 120)  # the deadline is T0 + 100, or DEADLINE_S after the first response
    size = draw(st.integers(1, 3))
    sources = draw(st.sampled_from([("exact",), ("exact", "judge")]))
    asked = task(
        group_size=size,
        deadline_at=draw(st.sampled_from([T0 + 100, None])),
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
    log = Log(deadline_s=DEADLINE_S, **rule)
    for event, offset, at_ms in order:
        log.read_at(event, offset, at_ms)
    log.read(control())
    return encode(log.group())


@settings(max_examples=examples(100))
@given(partitions(), st.integers(0, 2**32), st.integers(0, 2**32), st.sampled_from(["emit", "drop"]))
def test_the_order_in_which_topics_are_read_does_not_show_in_the_group(
    topics: dict[str, list[Entry]], one: int, other: int, partial: str
) -> None:
    assert outcome(interleaved(topics, one), partial=partial) == outcome(interleaved(topics, other), partial=partial)


@settings(max_examples=examples(60))
@given(partitions(), st.integers(0, 2**32), st.integers(0, 20))
def test_records_delivered_again_at_the_end_change_nothing(
    topics: dict[str, list[Entry]], seed: int, again: int
) -> None:
    order = interleaved(topics, seed)
    repeated = [(event, offset + 1000, at_ms) for event, offset, at_ms in order[:again]]
    assert outcome([*order, *repeated]) == outcome(order)


@settings(max_examples=examples(60))
@given(partitions(), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_a_restart_that_reads_some_records_again_gives_the_same_group(
    topics: dict[str, list[Entry]], seed: int, stop: int, back: int
) -> None:
    # killed after `stop` records with the rows written, resumed `back` records before
    order = interleaved(topics, seed)
    stop = min(stop, len(order))
    assert outcome([*order[:stop], *order[max(0, stop - back) :]]) == outcome(order)


# --- what is refused, before the group left and after it --------------------------------------------------------------

WHOLE = [*answers(), *scores(answers())]
FAILED = [*answers()[:3], response(slot=3, error="oom"), *scores(answers()[:3])]
OTHER = answers(sampling_id="s2")


@pytest.mark.parametrize(
    ("whole", "stray", "reasons"),
    [
        (WHOLE, [task(group_size=8)], ["contradictory"]),
        (WHOLE, [task(traceparent="00-c-d-01", deadline_at=T0 + 900_000, created_at=T0 + 5)], []),
        (WHOLE, [task(messages=(Message(role="user", content="5 + 7 ="),))], ["contradictory"]),
        (WHOLE, [task(verifier='{"answer": "12"}'), task(verifier='{"answer": "12"}')], ["contradictory"]),
        (WHOLE, [response(text="12")], ["contradictory"]),
        (WHOLE, [response(logprobs=(-0.5, -0.125))], ["contradictory"]),
        (WHOLE, [response(latency_ms=99.0, created_at=T0 + 11, traceparent="00-c-d-01")], []),
        (WHOLE, [reward(value=9.0)], ["contradictory"]),
        (WHOLE, [reward(source="style"), reward(OTHER[0], source="style")], ["unasked", "unasked"]),
        (WHOLE, [reward(OTHER[0]), reward(OTHER[0])], ["unknown_response"]),
        (WHOLE, [reward(OTHER[0]), reward(OTHER[0], value=9.0)], ["unknown_response", "contradictory"]),
        (WHOLE, [OTHER[0], OTHER[0], OTHER[1]], ["superseded", "superseded"]),
        (WHOLE, [OTHER[0], dataclasses.replace(OTHER[1], adapter_version=7)], ["superseded", "contradictory"]),
        (WHOLE, [response(sampling_id="s2", group_size=8)], ["contradictory"]),
        (WHOLE, [response(sampling_id="s2", created_at=T0 + 700_000)], ["late"]),
        (FAILED, [reward(FAILED[3]), reward(FAILED[3])], []),
    ],
)
def test_what_is_read_after_the_group_left_is_judged_as_before(
    whole: list[Event], stray: list[Event], reasons: list[str]
) -> None:
    # one log, read twice: once with the strays' topic ahead of the others, once with it behind them
    log: list[tuple[Event, int]] = []
    for kind in (Task, Response, Reward):
        log += [(event, n) for n, event in enumerate(e for e in (task(), *whole, *stray) if isinstance(e, kind))]
    ahead = [entry for entry in log if isinstance(entry[0], type(stray[0]))]
    before = read([*ahead, *(entry for entry in log if entry not in ahead)])
    after = read([*(entry for entry in log if entry[0] not in stray), *(entry for entry in log if entry[0] in stray)])
    assert len(before.closes) == len(after.closes) == 1
    assert set(before.rejects) == set(after.rejects)
    assert sorted(reject.reason for reject in after.rejects) == sorted(reject.reason for reject in before.rejects)
    assert sorted(reject.reason for reject in after.rejects) == sorted(reasons)


def read(entries: Iterable[tuple[Event, int]]) -> Log:
    log = Log()
    for event, offset in entries:
        log.read_at(event, offset, event.created_at)
    return log


@pytest.mark.parametrize("task_first", [True, False])
def test_what_is_refused_is_refused_once_however_often_it_is_said(task_first: bool) -> None:
    asked, late = task(deadline_at=T0 + 100), response(created_at=T0 + 700_000)
    log = Log()
    log.read_all([asked, late, late, late] if task_first else [late, late, late, asked])
    assert log.reasons() == [("responses@0", "late")]
