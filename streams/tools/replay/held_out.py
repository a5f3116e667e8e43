"""Evaluate an experiment's versions on held-out questions.

    suite ──► eval tasks, pinned to each version ──► policy and scoring agent, here ──► join ──► groups, `evaluated`

The same agents as in the loop run in this process on the experiment's own log until every question is answered and
scored. Episodes are for the caller to have played (streams/demo/players.py). The batch driver joins the answers, and
the reducer of rollouts adds up the scores. A second call adds nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.events import AdapterEvent, AdvantagedGroup, Response, Reward, RewardSource, SourceRange, Task, derive_id
from schemas.serde import Poison, encode
from streams.adapters import versions as adapters
from streams.environments.listed import LISTED
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.evaluation import results as suite_results, run as evaluate
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.policy import agent as policy
from streams.stages.scoring import agent as scoring
from streams.stages.tasks import submit, suites
from streams.tools.replay import driver, experiments
from streams.tools.replay.regroup import partition_records
from streams.tools.replay.replay import Report, Stopped

DEADLINE_MS = 24 * 3600 * 1000
"""For an answer: the command waits for all of them."""
SKEW_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSuite:
    """A suite of questions and the versions that shall answer it."""

    generator: str
    count: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the generator."""
    versions: tuple[str, ...] = ("0", "last")
    scorers: tuple[RewardSource, ...] = ()
    """Who judges the answers; default: the generator's own scorer."""

    @property
    def in_environment(self) -> bool:
        """Whether its questions are episodes, which the agents of this module do not play."""
        return self.generator in LISTED

    def judged(self, task: Task) -> Task:
        """Return a question of the generator as this suite asks it: with another judge it is another question."""
        if not self.scorers:
            return task
        judges = ",".join(f"{source.name}={source.settings}" for source in self.scorers)
        suite = f"{task.metadata['suite']}/{judges}"
        task_id = derive_id("evaluation", task.task_id, judges)
        return replace(task, task_id=task_id, reward_sources=self.scorers, metadata={**task.metadata, "suite": suite})


@dataclass
class _OpenEvaluation:
    """Which questions still lack answers or scores."""

    asked: Mapping[str, Task]
    slots: dict[str, dict[int, bool]] = field(default_factory=dict)
    """By task: slot, and whether it failed for good."""
    scored: dict[str, set[str]] = field(default_factory=dict)

    def take(self, event: Response | Reward | Poison) -> None:
        if isinstance(event, Response):
            self.slots.setdefault(event.task_id, {}).setdefault(event.slot, event.error is not None)
        elif isinstance(event, Reward):
            self.scored.setdefault(event.task_id, set()).add(event.reward_id)

    def done(self) -> int:
        """Return how many questions are answered and scored."""
        return sum(self._is_done(task_id, task) for task_id, task in self.asked.items())

    def _is_done(self, task_id: str, task: Task) -> bool:
        slots = self.slots.get(task_id, {})
        to_score = len(task.reward_sources) * sum(not failed for failed in slots.values())
        return len(slots) >= task.group_size and len(self.scored.get(task_id, ())) >= to_score


def run(
    source: Settings, name: str, suite: HeldOutSuite, *, stop: threading.Event, report: Report | None = None
) -> dict[int, AdapterEvent]:
    """Ask every question, and return the result of each version.

    Raises NotFoundError for an unknown experiment, version or generator, RefusedError for an experiment that is not
    finished, SettingsError for versions that are not numbers, Stopped, what the agents raise.
    """
    experiment = experiments.find(source, name)
    if experiment.kind != "finished":
        raise RefusedError(
            f"experiment {name} is {experiment.kind}; finish it first with the same `streamward replay run`"
        )
    own = experiments.of(source, experiment)
    with experiments.hold(experiment.folder, name):
        asked = _asked(own, suite)
        submit.submit(own, asked.values())
        since_ms = experiment.created_at - SKEW_MS
        with _agents(own) as failed:
            _wait(own, asked, since_ms, failed, stop, report or (lambda *_: None))
        return _join(own, asked, since_ms)


def _asked(own: Settings, suite: HeldOutSuite) -> dict[str, Task]:
    """Return the questions by id."""
    now_ms = times.now_ms()
    questions = suites.generated(suite.generator, count=suite.count, seed=suite.seed, options=suite.options)
    asked = (
        suite.judged(task)
        for version in _versions(own, suite.versions)
        for task in evaluate.evaluation(questions, policy=own.policy.name, version=version, now_ms=now_ms)
    )
    return {task.task_id: replace(task, deadline_at=now_ms + DEADLINE_MS) for task in asked}


def _versions(own: Settings, wanted: tuple[str, ...]) -> list[int]:
    known = adapters.read_state(own, own.policy.name)
    found: dict[int, None] = {}
    for text in wanted:
        if text != "last" and not text.isdecimal():
            raise SettingsError(f"--versions {','.join(wanted)}: expected numbers and last, e.g. 0,5,last")
        number = known.newest if text == "last" else int(text)
        if number not in known.versions:
            raise NotFoundError(
                f"experiment {own.policy.name} has no version {number}; the newest is {known.newest} "
                f"(`streamward experiments show {own.policy.name}`)"
            )
        found[number] = None
    return list(found)


@contextmanager
def _agents(own: Settings) -> Iterator[list[BaseException]]:
    """Run a policy agent and a scoring agent in threads while the block runs; yield what they fail with.

    No scorer is paused: an evaluation ends, with the scores that failed.
    """
    halt, failed = threading.Event(), list[BaseException]()
    ending = own.model_copy(update={"scoring": own.scoring.model_copy(update={"max_failures": 0})})

    def guarded(run: Callable[..., None]) -> None:
        try:
            run(ending, stop=halt)
        except BaseException as exc:  # of a thread; raised again where it is waited for
            failed.append(exc)

    threads = [threading.Thread(target=guarded, args=(agent.run,), name=agent.STAGE) for agent in (policy, scoring)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        halt.set()
        for thread in threads:
            thread.join()


def _wait(
    own: Settings,
    asked: Mapping[str, Task],
    since_ms: int,
    failed: list[BaseException],
    stop: threading.Event,
    report: Report,
) -> None:
    """Return once every question is answered and scored. Raises Stopped, or what an agent failed with."""
    waiting = _OpenEvaluation(asked)
    kinds = {topics(own.topics)["responses"].name: Response, topics(own.topics)["rewards"].name: Reward}
    with PartitionReader(own, _starts(own, ["responses", "rewards"], since_ms)) as reader:
        while (done := waiting.done()) < len(asked):
            report("asking", done, len(asked))
            if failed:
                raise failed[0]
            if stop.is_set():
                raise Stopped
            for record in reader.poll():
                if record.key is not None and record.key.decode(errors="replace") in asked:
                    waiting.take(record.decode(kinds[record.at.topic]))
    report("asking", len(asked), len(asked))


def _starts(own: Settings, labels: list[str], since_ms: int) -> dict[TopicPartition, int]:
    """Return the first offsets that the questions can have: what was copied is older than the experiment."""
    ends = {tp: end for tp, (_, end) in admin.offsets(own, labels).items()}
    found = admin.offsets_at(own, labels, max(0, since_ms))
    return {tp: end if found[tp] < 0 else found[tp] for tp, end in ends.items()}


def _join(own: Settings, asked: Mapping[str, Task], since_ms: int) -> dict[int, AdapterEvent]:
    """Write the groups of the questions and the result of each version unless they exist; return the results."""
    starts = _starts(own, list(KEYED_BY_TASK), since_ms)
    ends = {tp: end for tp, (_, end) in admin.offsets(own, KEYED_BY_TASK).items()}
    ranges = [SourceRange(topic=tp[0], partition=tp[1], first=first, next=ends[tp]) for tp, first in starts.items()]
    keys = {task_id.encode() for task_id in asked}
    made: list[tuple[Record, AdvantagedGroup]] = []
    for partition in range(own.topics.partitions):
        records = partition_records(own, LogHistory(own), ranges, partition, lambda record: record.key in keys)
        made += [
            (at, group.event()) for at, group in driver.join_states(own, records) if isinstance(group, GroupRecord)
        ]
    made.sort(key=lambda one: (one[0].timestamp_ms, one[0].at))
    there = _written(own, since_ms)
    name = topics(own.topics)["groups"].name
    known = adapters.read_state(own, own.policy.name)
    suites: dict[bytes, suite_results.SuiteResults] = {}
    results: dict[int, AdapterEvent] = {}
    with Producer(own) as producer:
        for record, group in made:
            if group.group_id not in there:
                key = group.policy.encode()
                producer.send_bytes(name, key, encode(group), timestamp_ms=record.timestamp_ms)
            key_of_suite = suite_results.suite_key(group)
            if key_of_suite is None:
                continue
            suites[key_of_suite], done = suite_results.count(suites.get(key_of_suite), group)
            for event in done:
                results[event.version] = event
                if event.suite not in known.versions[event.version].evaluated:
                    producer.send(event)
    return dict(sorted(results.items()))


def _written(own: Settings, since_ms: int) -> set[str]:
    """Return the ids of the groups that were written since the experiment began."""
    partition = partition_of(own.policy.name, own.topics.policy_partitions)
    starts = {tp: first for tp, first in _starts(own, ["groups"], since_ms).items() if tp[1] == partition}
    ends = {tp: admin.offsets(own, ["groups"])[tp][1] for tp in starts}
    found = (record.decode(AdvantagedGroup) for record in LogHistory(own).read(starts, ends))
    return {group.group_id for group in found if isinstance(group, AdvantagedGroup)}
