"""A group that is too large for its record is trained on as if it had fitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Coordinates, Response, TokensElsewhere
from schemas.serde import encode
from streams.errors import ContradictoryEvent, RefusedError
from streams.kafka.record import Record, TopicPartition
from streams.settings.model import Settings, Topics
from streams.tools.replay import driver
from tests.support.factories import T0, changed, reward, task
from tests.unit.test_chains import agents, some_branch
from trainer.step import group_tokens as elsewhere

TOPIC = "responses"


class InMemory:
    """What is left of the log of responses, of which retention has deleted those before `first`."""

    def __init__(self, records: Mapping[Coordinates, Record], first: int = 0) -> None:
        self.records, self.first = records, first
        self.fetched: list[Coordinates] = []

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        return {(label, 0): (self.first, len(self.records)) for label in labels}

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        raise NotImplementedError

    def fetch(self, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        self.fetched += wanted
        return {at: self.records[at] for at in self.fetched}


def of_runs() -> list[Response]:
    """Three runs with prompts of their own, of which the last two are long and have a branch."""
    many: dict[str, Any] = {
        "completion_token_ids": tuple(range(60)),
        "logprobs": (-0.5,) * 60,
        "loss_mask": (True,) * 60,
    }
    short, *long = (agents(slot, (7, 8 + slot), branches=(some_branch(),) * slot) for slot in range(3))
    return [short, *(changed(one, **many) for one in long)]


def recorded(made: list[Response], max_record_bytes: int) -> tuple[AdvantagedGroup, dict[Coordinates, Record]]:
    """Return the group of these responses under a limit, and the records of the responses."""
    events = [task(group_size=len(made)), *made, *(reward(one, value=float(one.slot)) for one in made)]
    names = {"Task": "tasks", "Response": "responses", "Reward": "rewards"}
    ends: dict[str, int] = {}
    records = []
    for event in events:
        name = names[type(event).__name__]
        offset = ends[name] = ends.get(name, -1) + 1
        records.append(Record(Coordinates(name, 0, offset), T0 + len(records), b"t1", encode(event)))
    topics = Topics(prefix="", max_record_bytes=max_record_bytes)
    ((_, found),) = driver.join_states(Settings(topics=topics), records)
    group = found.event()
    assert isinstance(group, AdvantagedGroup)
    return group, {record.at: record for record in records if record.at.topic == TOPIC}


@pytest.fixture
def split() -> tuple[AdvantagedGroup, dict[Coordinates, Record]]:
    group, records = recorded(of_runs(), 1100)
    assert [one.elsewhere for one in group.responses] == [
        None,
        TokensElsewhere(completion_tokens=63, loss_tokens=62),
        TokensElsewhere(completion_tokens=66, loss_tokens=64),
    ]
    return group, records


def test_a_group_with_tokens_elsewhere_is_made_whole_and_is_the_one_that_would_have_fitted(
    split: tuple[AdvantagedGroup, dict[Coordinates, Record]],
) -> None:
    group, records = split
    history = InMemory(records)
    found = elsewhere.whole(group, TOPIC, elsewhere.fetch([group], TOPIC, history))
    assert history.fetched == [Coordinates(TOPIC, 0, 1), Coordinates(TOPIC, 0, 2)]
    assert found == recorded(of_runs(), 1_000_000)[0]
    assert sum(one.loss_tokens for one in group.responses) == sum(one.loss_tokens for one in found.responses)


def test_a_group_that_is_whole_asks_nobody() -> None:
    group, _ = recorded(of_runs(), 1_000_000)
    history = InMemory({})
    assert elsewhere.whole(group, TOPIC, elsewhere.fetch([group], TOPIC, history)) is group


def test_a_response_that_retention_deleted_is_named_and_stops_the_step(
    split: tuple[AdvantagedGroup, dict[Coordinates, Record]],
) -> None:
    group, records = split
    with pytest.raises(RefusedError, match=r"responses\[0\]@1: retention has deleted .* offset 2\. .*retention_days"):
        elsewhere.fetch([group], TOPIC, InMemory(records, first=2))


def test_a_group_that_names_another_response_than_its_own_is_contradictory(
    split: tuple[AdvantagedGroup, dict[Coordinates, Record]],
) -> None:
    group, records = split
    _, second, third = (Coordinates(TOPIC, 0, offset) for offset in range(3))
    mine = group.responses[1]

    def with_second(record: Record) -> dict[Coordinates, Record]:
        return {**records, second: record}

    def rewritten(**changes: Any) -> dict[Coordinates, Record]:
        said = changed(of_runs()[1], **changes)
        return with_second(records[second]._replace(payload=encode(said)))

    for found, problem in (
        (with_second(records[third]), f"which is not response {mine.response_id}: response "),
        (with_second(records[second]._replace(payload=b"?")), f"which is not response {mine.response_id}: "),
        (rewritten(prompt_token_ids=(9, 9)), "does not begin with the group's prompt"),
        (rewritten(branches=()), "expected TokensElsewhere"),
        ({third: records[third]}, "after the end of the topic"),
    ):
        with pytest.raises(ContradictoryEvent, match=problem):
            elsewhere.whole(group, TOPIC, found)
