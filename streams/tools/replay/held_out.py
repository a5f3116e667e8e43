"""Evaluate an experiment's versions on held-out questions.

    suite ──► eval tasks, pinned to each version ──► policy and scoring agent, here ──► join ──► groups, `evaluated`

The same agents as in the loop run in this process on the experiment's own log until every question is answered and
scored. The caller has to play episodes (streams/demo/players.py). The batch driver joins the answers, and the reducer
of rollouts adds up the scores. A second call adds nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from schemas.events import AdapterEvent, AdvantagedGroup, Response, Reward, RewardSource, SourceRange, Task, derive_id
from schemas.serde import Poison, encode
from streams.adapters import versions as adapters
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.evaluation import results as suite_results, suite_tasks as evaluate
from streams.evaluation.suite import Suite
from streams.kafka import admin, times
from streams.kafka.history import LogHistory
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.policy import policy_agent as policy
from streams.stages.scoring import scoring_agent as scoring
from streams.stages.tasks import submit
from streams.tools.replay import driver, experiments
from streams.tools.replay.regroup import partition_records
from streams.tools.replay.replay_context import Report, Stopped

DEADLINE_MS = 24 * 3600 * 1000
"""For an answer: the command waits for all of them."""
SKEW_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSuite:
    """A suite of questions and the versions that answer it."""

    suite: Suite
    versions: tuple[str, ...] = ("0", "last")
    scorers: tuple[RewardSource, ...] = ()
    """Scorers of the answers; default: the suite's own."""

    @property
    def in_environment(self) -> bool:
        """Whether its questions are episodes, which the agents of this module do not play."""
        return any(question.environment is not None for question in self.suite.questions)

    def with_scorers(self, task: Task) -> Task:
        """Return a question with this suite's scorers: with other scorers it is another question."""
        if not self.scorers:
            return task
        judges = ",".join(f"{source.name}={source.settings}" for source in self.scorers)
        suite = f"{task.metadata['suite']}/{judges}"
        task_id = derive_id("evaluation", task.task_id, judges)
        return replace(task, task_id=task_id, reward_sources=self.scorers, metadata={**task.metadata, "suite": suite})


@dataclass
class _OpenEvaluation:
    """The questions, and the answers and scores that have come."""

    questions: Mapping[str, Task]
    slots: dict[str, dict[int, bool]] = field(default_factory=dict)
    """By task: slot, and whether it failed for good."""
    scored: dict[str, set[str]] = field(default_factory=dict)

    def take(self, event: Response | Reward | Poison) -> None:
        if isinstance(event, Response):
            self.slots.setdefault(event.task_id, {}).setdefault(event.slot, event.error is not None)
        elif isinstance(event, Reward):
            self.scored.setdefault(event.task_id, set()).add(event.reward_id)

    def count_done(self) -> int:
        """Return the number of questions that are answered and scored."""
        return sum(self._is_done(task_id, task) for task_id, task in self.questions.items())

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
    settings = experiments.of(source, experiment)
    with experiments.hold(experiment.folder, name):
        return ask(settings, suite, since_ms=experiment.created_at - SKEW_MS, stop=stop, report=report)


def ask(
    settings: Settings, suite: HeldOutSuite, *, since_ms: int, stop: threading.Event, report: Report | None
) -> dict[int, AdapterEvent]:
    """Ask every question in the log of an experiment that began at `since_ms`, and return the result of each version.

    Raises as `run`.
    """
    questions = _questions(settings, suite)
    submit.submit(settings, questions.values())
    with _agents(settings) as failed:
        _wait(settings, questions, since_ms, failed, stop, report or (lambda *_: None))
    return _join(settings, questions, since_ms)


def _questions(settings: Settings, suite: HeldOutSuite) -> dict[str, Task]:
    """Return the questions by id."""
    now_ms = times.now_ms()
    questions = (
        suite.with_scorers(task)
        for version in _versions(settings, suite.versions)
        for task in evaluate.evaluation(suite.suite, policy=settings.policy.name, version=version, now_ms=now_ms)
    )
    return {task.task_id: replace(task, deadline_at=now_ms + DEADLINE_MS) for task in questions}


def _versions(settings: Settings, names: tuple[str, ...]) -> list[int]:
    state = adapters.read_state(settings, settings.policy.name)
    numbers: dict[int, None] = {}
    for text in names:
        if text != "last" and not text.isdecimal():
            raise SettingsError(f"--versions {','.join(names)}: expected numbers and last, e.g. 0,5,last")
        number = state.newest if text == "last" else int(text)
        if number not in state.versions:
            raise NotFoundError(
                f"experiment {settings.policy.name} has no version {number}; the newest is {state.newest} "
                f"(`streamward replay show {settings.policy.name}`)"
            )
        numbers[number] = None
    return list(numbers)


@contextmanager
def _agents(settings: Settings) -> Iterator[list[BaseException]]:
    """Run a policy agent and a scoring agent in threads while the block runs; yield what they fail with.

    No scorer is paused: an evaluation ends, with the scores that failed.
    """
    halt, failed = threading.Event(), list[BaseException]()
    ending = settings.model_copy(update={"scoring": settings.scoring.model_copy(update={"max_failures": 0})})

    def run_agent(run: Callable[..., None]) -> None:
        try:
            run(ending, stop=halt)
        except BaseException as exc:  # of a thread; `_wait` raises it again
            failed.append(exc)

    threads = [threading.Thread(target=run_agent, args=(agent.run,), name=agent.STAGE) for agent in (policy, scoring)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        halt.set()
        for thread in threads:
            thread.join()


def _wait(
    settings: Settings,
    questions: Mapping[str, Task],
    since_ms: int,
    failed: list[BaseException],
    stop: threading.Event,
    report: Report,
) -> None:
    """Return once every question is answered and scored. Raises Stopped, or what an agent failed with."""
    waiting = _OpenEvaluation(questions)
    kinds = {topics(settings.topics)["responses"].name: Response, topics(settings.topics)["rewards"].name: Reward}
    with PartitionReader(settings, _starts(settings, ["responses", "rewards"], since_ms)) as reader:
        while (done := waiting.count_done()) < len(questions):
            report("asking", done, len(questions))
            if failed:
                raise failed[0]
            if stop.is_set():
                raise Stopped
            for record in reader.poll():
                if record.key is not None and record.key.decode(errors="replace") in questions:
                    waiting.take(record.decode(kinds[record.at.topic]))
    report("asking", len(questions), len(questions))


def _starts(settings: Settings, labels: list[str], since_ms: int) -> dict[TopicPartition, int]:
    """Return the first offsets that the questions can have: copies are older than the experiment."""
    ends = {tp: end for tp, (_, end) in admin.offsets(settings, labels).items()}
    offsets = admin.offsets_at(settings, labels, max(0, since_ms))
    return {tp: end if offsets[tp] < 0 else offsets[tp] for tp, end in ends.items()}


def _join(settings: Settings, questions: Mapping[str, Task], since_ms: int) -> dict[int, AdapterEvent]:
    """Write the groups of the questions and the result of each version unless they exist; return the results."""
    starts = _starts(settings, list(KEYED_BY_TASK), since_ms)
    ends = {tp: end for tp, (_, end) in admin.offsets(settings, KEYED_BY_TASK).items()}
    ranges = [SourceRange(topic=tp[0], partition=tp[1], first=first, next=ends[tp]) for tp, first in starts.items()]
    keys = {task_id.encode() for task_id in questions}
    groups: list[tuple[Record, AdvantagedGroup]] = []
    for partition in range(settings.topics.partitions):
        records = partition_records(
            settings, LogHistory(settings), ranges, partition, lambda record: record.key in keys
        )
        for record, result in driver.join_states(settings, records):
            if isinstance(result, GroupRecord):
                groups.append((record, result.event()))
    groups.sort(key=lambda pair: (pair[0].timestamp_ms, pair[0].at))
    written = _written_ids(settings, since_ms)
    name = topics(settings.topics)["groups"].name
    state = adapters.read_state(settings, settings.policy.name)
    suites: dict[bytes, suite_results.SuiteResults] = {}
    results: dict[int, AdapterEvent] = {}
    with Producer(settings) as producer:
        for record, group in groups:
            if group.group_id not in written:
                key = group.policy.encode()
                producer.send_bytes(name, key, encode(group), timestamp_ms=record.timestamp_ms)
            key_of_suite = suite_results.suite_key(group)
            if key_of_suite is None:
                continue
            suites[key_of_suite], done = suite_results.count(suites.get(key_of_suite), group)
            for event in done:
                results[event.version] = event
                if event.suite not in state.versions[event.version].evaluated:
                    producer.send(event)
    return dict(sorted(results.items()))


def _written_ids(settings: Settings, since_ms: int) -> set[str]:
    """Return the ids of the groups that were written since the experiment began."""
    partition = partition_of(settings.policy.name, settings.topics.policy_partitions)
    starts = {tp: first for tp, first in _starts(settings, ["groups"], since_ms).items() if tp[1] == partition}
    ends = {tp: admin.offsets(settings, ["groups"])[tp][1] for tp in starts}
    events = (record.decode(AdvantagedGroup) for record in LogHistory(settings).read(starts, ends))
    return {group.group_id for group in events if isinstance(group, AdvantagedGroup)}
