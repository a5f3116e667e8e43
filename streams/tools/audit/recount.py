"""Recount the log from the topics alone: lost, doubled, misplaced and late records by name.

    every record ──┬──► Ledger.take ──► facts by task and by policy ──┐
                   └──► the recount of its subject (subject.py) ──────┴──► Ledger.report(Reach) ──► Report
                     in the order of each partition, topics side by side

    tasks × slots            = answers + failed answers + unanswered, as recorded
    answers × reward sources = scores + abstentions + failed scores
    tasks                    = groups kept + groups dropped
    groups                   = trained + in batches + dropped by reason + in the window of the next batch
    every other subject      : as its own recount says; here each record where its key belongs

It uses none of the stages' code: the rules are implemented here a second time (`recount_*.py`), and a test makes sure
that no recount, a plugin's included, imports theirs. Every record that could not count must have its dead letter, and
every dead letter its record; an offset without a record is a lost record, since topics are neither compacted nor
written in transactions.

Not covered: two records of one partition that swapped places, where their order does not matter; and a replaced record
that nothing else in the log refers to.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.conventions import FEEDBACK
from schemas.events import Coordinates, Task
from streams.errors import SettingsError
from streams.kafka.group_names import STREAMS
from streams.kafka.headers import LEFT_OUT
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import KEYED_BY_TASK, SHAPES, topics
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings
from streams.tools.audit.facts import (
    AdapterFact,
    AuditFinding,
    BatchFact,
    Category,
    ControlFact,
    GroupFact,
    LetterFact,
    Reach,
    RecountOutcome,
    ResponseFact,
    RewardFact,
    TaskFact,
    Unusable,
)
from streams.tools.audit.record_digests import mark_of
from streams.tools.audit.records import event_and_key, fact_of
from streams.tools.audit.recount_conversation import ConversationRecount
from streams.tools.audit.recount_policy import recount_policy
from streams.tools.audit.recount_task import JOIN, SCORER, recount_task
from streams.tools.audit.recount_trajectory import TrajectoryRecount
from streams.tools.audit.recount_versions import VersionLedger
from streams.tools.audit.report import CATEGORIES, Report
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditedTask, AuditView, LoopFacts, PolicyLedger

RECOUNTS: tuple[type[SubjectRecount], ...] = (TrajectoryRecount, ConversationRecount)
"""Those of the core."""
DECISIONS = "dlq"
"""The stage of records in dead-letters that decide about others; they have no payload."""
RANGE = 20
"""More missing offsets in a row are one finding."""


def subject_recounts() -> Iterator[type[SubjectRecount]]:
    """Yield the recounts of the core and of plugins. Raises SettingsError for one that reads what is no topic."""
    yield from RECOUNTS
    for plugin, _, _ in load_plugins():
        for kind in plugin.load_all(plugin.recounts):
            if unknown := set(kind.labels).difference(SHAPES):
                raise SettingsError(
                    f"plugin {plugin.name}: {kind.__name__} reads no topic {', '.join(sorted(unknown))}"
                )
            yield kind


def recount(records: Iterable[Record], settings: Settings, reach: Reach, *, policy: str | None = None) -> Report:
    """Return the recount of these records, those of each partition in order; of one policy, if it is named."""
    ledger = Ledger(settings)
    for record in records:
        ledger.take(record)
    return ledger.report(reach, policy=policy)


@dataclass(slots=True)
class _Marks:
    """A digest of every record of one partition, by offset; 0 where there is none."""

    base: int
    marks: array[int] = field(default_factory=lambda: array("Q"))

    def at(self, offset: int) -> int:
        return self.marks[offset - self.base] if 0 <= offset - self.base < len(self.marks) else 0

    def missing(self, begin: int, end: int) -> Iterator[range]:
        """Yield the ranges of offsets, from `begin` to below `end`, without a record."""
        last = self.base + len(self.marks)
        if begin < self.base:
            yield range(begin, min(self.base, end))
        first: int | None = None
        if 0 in self.marks:
            for offset, mark in enumerate(self.marks, start=self.base):
                if mark == 0 and first is None:
                    first = offset
                elif mark != 0 and first is not None:
                    yield range(first, offset)
                    first = None
        if end > last:
            yield range(max(last, begin), end)


class Ledger:
    """The log, folded record by record."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics = {topic.name: topic for topic in topics(settings.topics).values()}
        self._adapters = next(topic.name for topic in self._topics.values() if topic.label == "adapters")
        self._marks: dict[TopicPartition, _Marks] = {}
        self._first_ms: dict[TopicPartition, int] = {}
        self._loop = LoopFacts()
        self._subjects = [kind() for kind in subject_recounts()]
        self._readers: dict[str, list[SubjectRecount]] = {}
        for subject in self._subjects:
            for label in (*subject.labels, *subject.optional):
                self._readers.setdefault(label, []).append(subject)
        self._unusable: list[Unusable] = []
        self._headers_left_out = 0
        self._new_letters: set[int] = set()
        """Partitions about whose records letters came since the last report."""

    def take(self, record: Record) -> None:
        """Add one record; those of a partition in order. The same one again changes nothing."""
        at, topic = record.at, self._topics[record.at.topic]
        tp = (at.topic, at.partition)
        marks = self._marks.setdefault(tp, _Marks(at.offset))
        if at.offset < marks.base + len(marks.marks):
            return
        self._first_ms.setdefault(tp, record.timestamp_ms)
        marks.marks.extend([0] * (at.offset - marks.base - len(marks.marks)))
        marks.marks.append(mark_of(record.key, record.payload))
        self._headers_left_out += record.headers == LEFT_OUT
        event = event_and_key(record, topic)
        if isinstance(event, Unusable):
            self._unusable.append(event)
        elif topic.key and at.partition != (own := partition_of(getattr(event, topic.key), topic.partitions)):
            self._unusable.append(Unusable(at, "wrong_partition"))
            if isinstance(event, Task):
                self._facts_of_task(own, event.task_id).misplaced.append(at)
        else:
            self._keep(fact_of(record, event), event)
            for subject in self._readers.get(topic.label, ()):
                subject.take(record, event)

    def _keep(self, fact: Any, event: Any) -> None:
        """Keep a fact of the loop; None: the event is of no task and no policy."""
        match fact:
            case LetterFact():
                self._loop.letters.setdefault(fact.source, []).append(fact)
                self._new_letters.add(fact.source.partition)
            case BatchFact():
                self._policy(event.policy).batches.append(fact)
            case AdapterFact():
                self._policy(event.policy).adapters.append(fact)
            case GroupFact():
                self._policy(event.policy).groups.append(fact)
                partition = partition_of(event.task_id, self._settings.topics.partitions)
                self._facts_of_task(partition, event.task_id).groups.append(fact)
            case TaskFact():
                self._facts_of_task(fact.at.partition, event.task_id).tasks.append(fact)
            case ResponseFact():
                self._facts_of_task(fact.at.partition, event.task_id).responses.append(fact)
            case ControlFact():
                self._facts_of_task(fact.at.partition, event.task_id).controls.append(fact)
            case RewardFact() if not fact.source.startswith(FEEDBACK):  # no group counts feedback
                self._facts_of_task(fact.at.partition, event.task_id).rewards.append(fact)

    def _facts_of_task(self, partition: int, task_id: str) -> AuditedTask:
        audited = self._loop.tasks.get((partition, task_id))
        if audited is None:
            audited = self._loop.tasks[partition, task_id] = AuditedTask(partition, task_id)
        audited.settled = None
        return audited

    def _policy(self, policy: str) -> PolicyLedger:
        return self._loop.policies.setdefault(policy, PolicyLedger(policy))

    def policies(self) -> set[str]:
        """Return the policies that anything taken in is about."""
        named = {audited.policy for audited in self._loop.tasks.values()} | self._loop.policies.keys()
        return {policy for policy in named.union(*(one.policies() for one in self._subjects)) if policy}

    # --- the report ---------------------------------------------------------------------------------------------------

    def report(self, reach: Reach, *, policy: str | None = None) -> Report:
        """Return the findings about the records taken, and the in-flight work, up to `reach`."""
        view = AuditView(self._settings, reach, self._loop, self._exists)
        whole = RecountOutcome(findings=[*self._holes(reach)])
        versions = VersionLedger({name: line.adapters for name, line in self._loop.policies.items()}, view)
        horizons = [self._horizon_ms(reach, partition) for partition in range(self._settings.topics.partitions)]
        for (partition, _), audited in self._loop.tasks.items():
            if policy is None or audited.policy in (None, policy):
                whole.add(self._task(audited, view, horizons[partition], versions))
        for name, line in self._loop.policies.items():
            if policy in (None, name):
                whole.add(recount_policy(line, view))
        for subject in self._subjects:
            whole.add(subject.report(view, policy))
        if policy is None:
            whole.findings += self._useless(view)
        reasons: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for source, letters in self._loop.letters.items():
            by_stage = {letter.stage: letter.reason for letter in letters if letter.stage != DECISIONS}
            reasons.update(by_stage.values())
            if "policy" in by_stage and source.topic == self._adapters:
                refused[by_stage["policy"]] += 1
        whole.findings += self._stray_letters(view, whole)
        self._new_letters.clear()
        order = {category: number for number, category in enumerate(CATEGORIES)}
        findings = sorted(set(whole.findings), key=lambda found: (found.accounted, order[found.category], found.at))
        accounts = (whole.counts, whole.in_flight, reasons, refused, self._headers_left_out)
        return Report(tuple(findings), *accounts, tuple(map(type, self._subjects)))

    def _exists(self, at: Coordinates) -> bool:
        marks = self._marks.get((at.topic, at.partition))
        return marks is not None and marks.at(at.offset) != 0

    def _horizon_ms(self, reach: Reach, partition: int) -> int:
        """Return the time before which the tasks of a partition were not read completely."""
        names = {topic.name: topic for topic in self._topics.values() if SHAPES[topic.label].audit == "groups"}
        times = [
            self._first_ms.get((name, number), 0)
            for name, number in reach.retained
            if name in names and (number == partition or names[name].label not in KEYED_BY_TASK)
        ]
        return max([reach.since_ms or 0, *times])

    def _task(self, audited: AuditedTask, view: AuditView, horizon_ms: int, versions: VersionLedger) -> RecountOutcome:
        """Return a task's recount; once every stage is done with it, it is kept until a new record comes."""
        if audited.settled is not None and audited.partition not in self._new_letters:
            return audited.settled
        outcome = recount_task(audited, view, horizon_ms)
        wrong, judged = versions.check(audited.tasks, audited.responses)
        outcome.findings += wrong
        passed, is_ripe = view.reach.passed, judged and not view.reach.settled and not outcome.in_flight
        facts: list[Any] = [*audited.tasks, *audited.responses, *audited.rewards, *audited.controls]
        done = (
            is_ripe
            and bool(audited.tasks and audited.groups)
            and all(found.accounted for found in outcome.findings)
            and all(passed(STREAMS, fact.at) for fact in facts)
            and all(passed(SCORER, fact.at) for fact in audited.responses)
        )
        audited.settled = outcome if done else None
        return outcome

    def _holes(self, reach: Reach) -> Iterator[AuditFinding]:
        for tp in sorted(self._marks.keys() | reach.ends.keys()):
            begin, end = reach.begins.get(tp, 0), reach.ends.get(tp, 0)
            unread = reach.unread.get(tp, ())
            for gap in self._marks.get(tp, _Marks(begin)).missing(begin, end):
                lost = [offset for offset in gap if offset not in unread]
                if len(lost) > RANGE:
                    what = f"no record here, nor at any offset up to {lost[-1]}"
                    yield AuditFinding("lost", Coordinates(*tp, lost[0]), what)
                    continue
                for offset in lost:
                    yield AuditFinding("lost", Coordinates(*tp, offset), "no record here")

    def gaps(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[range]]:
        """Return the ranges of offsets without a record, by partition."""
        gaps: dict[TopicPartition, list[range]] = {}
        for tp, end in ends.items():
            begin = begins.get(tp, 0)
            if missing := [*self._marks.get(tp, _Marks(begin)).missing(begin, end)]:
                gaps[tp] = missing
        return gaps

    def _useless(self, view: AuditView) -> Iterator[AuditFinding]:
        """Account for unreadable records: one of the readers of their topic writes the dead letter."""
        groups = {name for name, _, _ in view.reach.committed}
        for at, reason in self._unusable:
            label = self._topics[at.topic].label
            is_misplaced = reason in ("wrong_key", "wrong_partition")
            if is_misplaced and label not in KEYED_BY_TASK:
                if not view.lettered(at):
                    yield AuditFinding("misplaced", at, f"{reason}: no stage writes such a record")
                continue
            if is_misplaced and view.lettered(at, JOIN):
                yield AuditFinding("misplaced", at, reason, accounted=True)
            shape = SHAPES[label]
            if shape.reader is None:
                yield AuditFinding("phantom", at, f"{reason}: it is not {shape.is_about}")
                continue
            begins, stage = shape.reader
            readers = {
                name
                for name in groups
                if name.startswith(begins) and (name, at.topic, at.partition) in view.reach.committed
            } | ({STREAMS} & {begins})
            unread = label == "batches" and not readers and view.reach.settled  # nothing will ever write it
            if (unread or any(view.reach.passed(name, at) for name in readers)) and not view.lettered(at, stage):
                category: Category = "misplaced" if is_misplaced else "phantom"
                yield AuditFinding(category, at, f"{reason}: {stage} has passed it without a dead letter")

    def _stray_letters(self, view: AuditView, whole: RecountOutcome) -> Iterator[AuditFinding]:
        """Find dead letters about records that do not exist, and those that differ from the record they are about."""
        for source, letters in self._loop.letters.items():
            seen: set[tuple[str, str]] = set()
            for letter in letters:
                if letter.stage == DECISIONS:
                    letter = letter._replace(has_own_id=True, source_mark=0)
                elif (letter.stage, letter.reason) in seen:
                    yield AuditFinding("repeated", letter.at, f"{letter.stage} has written about {source} before", True)
                seen.add((letter.stage, letter.reason))
                if source.topic not in self._topics:
                    yield AuditFinding("phantom", letter.at, f"it is about {source}, but there is no such topic")
                elif source.offset < view.reach.begins.get((source.topic, source.partition), 0):
                    whole.counts["outside"] += 1
                elif not self._exists(source):
                    end = view.reach.ends.get((source.topic, source.partition), 0)
                    if source.offset >= end and not view.reach.settled and end:
                        whole.in_flight["letters"] += 1
                    else:
                        yield AuditFinding("phantom", letter.at, f"it is about {source}, where there is no record")
                elif letter.source_mark not in (0, self._marks[source.topic, source.partition].at(source.offset)):
                    yield AuditFinding("phantom", letter.at, f"key and payload are not those of {source}")
                elif not letter.has_own_id:
                    yield AuditFinding("phantom", letter.at, "its id is not that of its stage and its record")
