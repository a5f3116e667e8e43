"""The count that the faults of agents are judged by, itself tested by sabotage: whatever is wrong is named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from schemas.events import Coordinates, Event, Message, Task, Turn, derive_id
from streams.kafka.record import Record, encoded
from streams.kafka.topics import topic_of
from streams.settings.model import Topics
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import response_of
from tests.chaos.agent_client import GivenAnswer
from tests.chaos.agent_recount import Log, open_runs, recount
from tests.support.factories import task, trajectory, turn

SAID = turn()
BEGAN, ENDED = trajectory("started", group_size=1), trajectory(group_size=1)
ANSWER = response_of(fold([SAID], ENDED), ENDED)
WHOLE: list[Event] = [task(group_size=1), BEGAN, SAID, ENDED, ANSWER]
GIVEN = GivenAnswer(f"chatcmpl-{SAID.turn_id}", "11", [-0.5, -0.25])


def log_of(events: Iterable[Event]) -> Log:
    """Return a log with these events, each topic in this order."""
    records: dict[type[Event], list[Record]] = {}
    for offset, event in enumerate(events):
        topic = topic_of(type(event), Topics())
        key, payload = encoded(event, topic)
        records.setdefault(type(event), []).append(Record(Coordinates(topic.name, 0, offset), 0, key, payload))
    return lambda kind: records.get(kind, [])


def test_a_log_that_has_what_clients_were_given_is_as_it_should_be() -> None:
    assert recount(log_of(WHOLE), [GIVEN]) == []
    assert recount(log_of([*WHOLE, *WHOLE]), [GIVEN, GIVEN]) == []  # a copy changes nothing
    assert (open_runs(log_of(WHOLE)), open_runs(log_of(WHOLE[:3]))) == (0, 1)


@pytest.mark.parametrize(
    "given",
    [GIVEN._replace(text="12"), GIVEN._replace(logprobs=[-0.5]), GIVEN._replace(logprobs=[-0.5, -0.5])],
    ids=["text", "tokens", "logprobs"],
)
def test_an_answer_that_the_log_has_otherwise_is_named(given: GivenAnswer) -> None:
    [problem] = recount(log_of(WHOLE), [given])
    assert problem.startswith(f"chatcmpl-{SAID.turn_id} was")


def without(kind: type[Event]) -> list[Event]:
    return [event for event in WHOLE if type(event) is not kind]


def other(event: Any, **changes: Any) -> list[Event]:
    """Return the log with `changes` in one event."""
    return [replace(one, **changes) if one is event else one for one in WHOLE]


def again(event: Any, name: str, **changes: Any) -> Event:
    """Return the event for another slot or attempt, under the id that it then has."""
    changed = replace(event, **changes)
    return replace(changed, **{name: derive_id(changed.sampling_id, changed.slot)})


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (without(Turn), "LOST"),
        (other(SAID, delivered=False), "and the log has"),
        ([event for event in WHOLE if event is not ENDED], "has ['started']"),
        ([event for event in WHOLE if event is not BEGAN], "has ['ended']"),
        ([*WHOLE, replace(ENDED, reason="otherwise")], "has the id of another TrajectoryEvent"),
        (other(ENDED, turns=2), "ended with 2 turns, and the log has [0]"),
        ([*WHOLE, turn(1)], "ended with 1 turns, and the log has [0, 1]"),
        ([*WHOLE, replace(SAID, reply=Message(role="assistant", content="12"))], "has the id of another Turn"),
        (WHOLE[:-1], "has 1 attempts, and responses of slots []"),
        ([*WHOLE, again(ANSWER, "response_id", slot=1, group_size=2)], "has 1 attempts, and responses of slots [0, 1]"),
        ([*WHOLE, again(ANSWER, "response_id", sampling_id="s2")], "has 2 attempts, and responses of slots [0, 0]"),
        (without(Task), "1 tasks that nobody sent"),
        (other(ANSWER, text="12"), "is not what its turns come to"),
        ([*WHOLE, again(ANSWER, "response_id", slot=1, group_size=2)], "is of a run without an end"),
    ],
)
def test_whatever_is_wrong_is_named(events: list[Event], problem: str) -> None:
    assert any(problem in found for found in recount(log_of(events), [GIVEN]))
