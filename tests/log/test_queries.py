"""The questions of docs/queries.md, asked of a real log: the page shows their answers, and a recount gives the same."""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Batch, Response, Reward, Task
from streams.adapters import versions as adapters
from streams.kafka.record import Record
from streams.settings.model import Kafka, Settings
from streams.tools.archive import sync
from streams.tools.query import formats
from streams.tools.query.session import Session
from tests.support.log import finished_run
from tests.support.log.shared_node import own_prefix
from tests.support.log.whole_run import Written, event_of

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
QUESTION = re.compile(r"^## (\d+)\. (.*?)$.*?^```sql\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASKED = {int(number): (title, sql, shown) for number, title, sql, shown in QUESTION.findall(PAGE.read_text())}


@pytest.fixture(scope="module")
def told(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Written]:
    """The small log of tests/support/log/finished_run.py, one half of it archived."""
    folder = tmp_path_factory.mktemp("questions")
    topics = finished_run.topics(own_prefix())
    archive = Settings().archive.model_copy(update={"store": str(folder)})
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics, archive=archive)
    written = finished_run.log()
    half = len(written.records) // 2
    finished_run.put(settings, written.records[:half])
    sync.sync(settings)
    finished_run.put(settings, written.records[half:])
    return settings, written


@pytest.fixture(scope="module")
def session(told: tuple[Settings, Written]) -> Any:
    with Session(told[0]) as opened:
        yield opened


@pytest.mark.parametrize("number", range(1, 12))
def test_the_page_shows_what_the_question_gives(number: int, session: Session) -> None:
    _, sql, shown = ASKED[number]
    out = io.StringIO()
    formats.write(session.run(sql), "table", out)
    assert out.getvalue() == shown


@pytest.fixture(scope="module")
def doubled(told: tuple[Settings, Written]) -> Any:
    """The same log, in which every task, response, reward and group was written again, as `admin dlq retry` does."""
    settings, written = told[0], told[1]
    topics = settings.topics.model_copy(update={"prefix": own_prefix()})
    twice = settings.model_copy(update={"topics": topics})
    again = [record for label in ("tasks", "responses", "rewards", "groups") for record in written.of(label)]
    finished_run.put(twice, written.records)
    finished_run.put(twice, [record._replace(timestamp_ms=record.timestamp_ms + 3_600_000) for record in again])
    with Session(twice) as opened:
        yield opened


@pytest.mark.parametrize("number", range(1, 12))
def test_a_record_that_was_written_again_counts_once(number: int, doubled: Session) -> None:
    _, sql, shown = ASKED[number]
    out = io.StringIO()
    formats.write(doubled.run(sql), "table", out)
    assert out.getvalue() == shown


# --- the same, counted another way ------------------------------------------------------------------------------------


class Facts:
    """The log as events."""

    def __init__(self, written: Written) -> None:
        self.tasks: dict[str, tuple[Record, Task]] = {}
        self.responses: dict[str, tuple[Record, Response]] = {}
        self.rewards: dict[tuple[str, str], Reward] = {}
        self.groups: list[tuple[Record, AdvantagedGroup]] = []
        self.batches: list[tuple[Record, Batch]] = []
        self.letters = written.of("dead-letters")
        self.adapters = written.of("adapters")
        for record in written.records:
            match event_of(record):
                case Task() as task:
                    self.tasks[task.task_id] = (record, task)
                case Response() as response:
                    self.responses[response.response_id] = (record, response)
                case Reward() as reward:
                    self.rewards[reward.response_id, reward.source] = reward
                case AdvantagedGroup() as group:
                    self.groups.append((record, group))
                case Batch() as batch:
                    self.batches.append((record, batch))

    def text(self, response_id: str) -> str:
        return self.responses[response_id][1].text

    def worth(self, response_id: str) -> float:
        exact, brief = (self.rewards[response_id, source].value or 0.0 for source in ("exact", "brief"))
        return exact + 0.25 * brief


def mean(values: list[float], digits: int) -> float:
    return round(sum(values) / len(values), digits)


def moment(ms: int, unit: str) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC).replace(second=0, microsecond=0)
    return (at if unit == "minute" else at.replace(minute=0)).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def rewards_by_version(facts: Facts) -> list[list[Any]]:
    found = defaultdict(list)
    for _, response in facts.responses.values():
        task = facts.tasks[response.task_id][1]
        if task.purpose == "train":
            found[response.adapter_version, task.scenario].append(facts.worth(response.response_id))
    return [[*key, len(values), mean(values, 3)] for key, values in sorted(found.items())]


def flipped(facts: Facts) -> list[list[Any]]:
    said: dict[str, dict[int, Response]] = defaultdict(dict)
    for _, response in facts.responses.values():
        task = facts.tasks[response.task_id][1]
        if task.purpose == "eval":
            said[task.messages[-1].content][response.adapter_version] = response

    def right(response: Response) -> bool:
        return facts.rewards[response.response_id, "exact"].value == 1

    return [
        [question, 2, by[1].text, by[2].text] for question, by in sorted(said.items()) if right(by[2]) > right(by[1])
    ]


def truncated(facts: Facts) -> list[list[Any]]:
    found = defaultdict(list)
    for _, response in facts.responses.values():
        found[response.adapter_version].append(response.finish_reason == "length")
    return [[v, len(cut), sum(cut), round(100 * sum(cut) / len(cut), 1)] for v, cut in sorted(found.items())]


def slowest(facts: Facts) -> list[list[Any]]:
    found = []
    for record, group in facts.groups:
        begun, task = facts.tasks[group.task_id]
        if task.purpose == "train":
            took = (record.timestamp_ms - begun.timestamp_ms) / 1000
            found.append([group.task_id, task.scenario, group.adapter_version, took])
    return sorted(found, key=lambda row: (-row[3], row[0]))[:3]


def made_version_two(facts: Facts) -> list[list[Any]]:
    places: dict[tuple[str, int], set[int]] = defaultdict(set)
    for record, batch in facts.batches:
        places["batches", record.at.partition].add(record.at.offset)
        for offset in batch.groups_offsets:
            places["groups", batch.groups_partition].add(offset)
            _, group = next(each for each in facts.groups if each[0].at[1:] == (batch.groups_partition, offset))
            for member in group.responses:
                at = facts.responses[member.response_id][0].at
                places["responses", at.partition].add(at.offset)
    for record in facts.adapters:
        if event_of(record).kind == "trained":
            places["adapters", record.at.partition].add(record.at.offset)
    return [[*key, len(offsets), sorted(offsets)] for key, offsets in sorted(places.items())]


def letters_by_hour(facts: Facts) -> list[list[Any]]:
    found = Counter(
        (moment(record.timestamp_ms, "hour"), letter.stage, letter.reason, letter.source_topic.split(".")[-1])
        for record in facts.letters
        for letter in [event_of(record)]
    )
    return [[*key, count] for key, count in sorted(found.items())]


def ages(facts: Facts) -> list[list[Any]]:
    found = defaultdict(list)
    for record, batch in facts.batches:
        for offset in batch.groups_offsets:
            _, group = next(each for each in facts.groups if each[0].at[1:] == (batch.groups_partition, offset))
            for member in group.responses:
                age = record.timestamp_ms - facts.responses[member.response_id][0].timestamp_ms
                found[batch.sequence, batch.sequence - group.adapter_version].append(age / 1000)
    return [[*key, len(values), max(values)] for key, values in sorted(found.items())]


def disagreements(facts: Facts) -> list[list[Any]]:
    found = []
    for record, response in facts.responses.values():
        exact, brief = (facts.rewards[response.response_id, source].value or 0.0 for source in ("exact", "brief"))
        if exact < brief:
            found.append((record.timestamp_ms, response.slot, [response.text, exact, brief, response.task_id]))
    return [[*row, slot] for _, slot, row in sorted(found)[:4]]


def repeated(facts: Facts) -> list[list[Any]]:
    found: dict[str, list[Response]] = defaultdict(list)
    for _, response in facts.responses.values():
        found[response.text].append(response)
    rows = [
        [
            text,
            len(said),
            len({each.task_id for each in said}),
            mean([facts.worth(each.response_id) for each in said], 2),
        ]
        for text, said in found.items()
        if len(said) > 1
    ]
    return sorted(rows, key=lambda row: (-row[1], row[0]))[:5]


def throughput(facts: Facts) -> list[list[Any]]:
    found = defaultdict(list)
    for record, response in facts.responses.values():
        found[moment(record.timestamp_ms, "minute")].append(response)
    return [
        [minute, len(said), len({each.task_id for each in said}), sum(each.completion_tokens for each in said)]
        for minute, said in sorted(found.items())
    ]


def reigns(facts: Facts) -> list[list[Any]]:
    state = adapters.empty("demo")
    found: list[list[Any]] = []
    for record in facts.adapters:
        event, before = event_of(record), state.serving
        state = adapters.fold(state, event)
        now = state.serving
        if (now.primary, now.candidate, now.share) != (before.primary, before.candidate, before.share):
            since = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            found.append([since, None, now.primary, now.candidate, now.share, f"{event.kind} {event.version}"])
    for one, following in pairwise(found):
        one[1] = following[0]
    return found


RECOUNTS: dict[int, Callable[[Facts], list[list[Any]]]] = {
    1: rewards_by_version, 2: flipped, 3: truncated, 4: slowest, 5: made_version_two, 6: letters_by_hour, 7: ages,
    8: disagreements, 9: repeated, 10: throughput, 11: reigns,
}  # fmt: skip


@pytest.mark.parametrize("number", RECOUNTS)
def test_a_recount_of_the_events_gives_the_same(number: int, session: Session, told: tuple[Settings, Written]) -> None:
    found = list(formats.rows(session.run(ASKED[number][1])))
    expected = RECOUNTS[number](Facts(told[1]))
    assert expected, "the log has nothing that answers this"
    assert found == expected
