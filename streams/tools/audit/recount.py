"""Recount the log from the topics alone: lost, doubled, misplaced and late records by name.

    every record ──► Ledger.take ──► facts by task and by policy ──► Ledger.report(Reach) ──► Report: findings, sums
                     in the order of each partition, topics side by side

    tasks × slots            = answers + failed answers + unanswered, as recorded
    answers × reward sources = scores + abstentions + failed scores
    tasks                    = groups kept + groups dropped
    groups                   = trained + in batches + dropped by reason + in the window of the next batch
    trajectories             = ended + open, each with all of its turns, and the turns of its response are among them
    keys, agents, …          each record where its key belongs
    jobs                     = ended + open, each event decided when those before it had taken effect
    verdicts on runs         = of runs that ended, each as its gates and its judge's agreement with people allow
    a closed month           = what its tenant's jobs had cost in it, up to where it was counted
    judged runs of a set     = its rows + those left out, of the verdicts in its ranges
    samples put, returned    = in their queues + cleared + gone back, at each state that a queue says it had
    entries of tools         = each event decided when those before it had taken effect, none accepted unseen
    runs of threads          = ended, each with the turn that it names + interrupted + open
    items of the store       = each deleted once it was put, no event counted twice
    crossings of rules       = with their one job + without a job (self-play) + open, no tick before its time

None of the stages' code is used: what follows from the events is implemented here a second time (`recount_*.py`), and
a test makes sure that nothing of theirs is imported. Every record that could not count must have its dead letter, and
every dead letter its record; an offset without a record is a lost record, since no topic is compacted or written in
transactions.

Not covered: two records of one partition that changed places, where their order does not matter; and a record that was
written in place of another to which nothing else in the log refers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.conventions import FEEDBACK, SELFPLAY_RUN
from schemas.events import AccessEvent, Coordinates, GroupControl, Response, Reward, Task
from streams.kafka.group_names import STREAMS
from streams.kafka.headers import LEFT_OUT
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import KEYED_BY_TASK, SHAPES, topics
from streams.settings.model import Settings
from streams.tools.audit.facts import (
    AdapterFact,
    AuditFinding,
    AuditView,
    BatchFact,
    CallFact,
    CallResultFact,
    Category,
    CurationFact,
    DatasetFact,
    Fact,
    GroupFact,
    JobFact,
    LetterFact,
    MonthFact,
    PromptFact,
    QueueFact,
    Reach,
    ResponseFact,
    RewardFact,
    RunFact,
    SampleFact,
    TaskFact,
    ToolFact,
    TriggerFact,
    TurnFact,
    Unusable,
)
from streams.tools.audit.record_digests import mark_of
from streams.tools.audit.records import event_and_key, fact_of
from streams.tools.audit.recount_calls import CallStory, recount_calls
from streams.tools.audit.recount_curation import ends_of_runs, recount_curation
from streams.tools.audit.recount_dataset import DatasetStory, recount_dataset
from streams.tools.audit.recount_decisions import recount_decisions
from streams.tools.audit.recount_job import JobStory, recount_job, recount_months
from streams.tools.audit.recount_memory import MemoryStory, recount_memory
from streams.tools.audit.recount_policy import PolicyLedger, first_trained, recount_policy
from streams.tools.audit.recount_prompts import PromptRules
from streams.tools.audit.recount_queue import QueueStory, recount_queue
from streams.tools.audit.recount_task import JOIN, SCORER, recount_task
from streams.tools.audit.recount_threads import ThreadStory, recount_threads
from streams.tools.audit.recount_tools import ToolRules
from streams.tools.audit.recount_trajectory import RunStory, recount_run
from streams.tools.audit.recount_trigger import RuleStory, recount_rule, stray_jobs
from streams.tools.audit.recount_versions import VersionLedger
from streams.tools.audit.report import CATEGORIES, Report
from streams.tools.audit.story import Story, TaskOutcome
from streams.tools.audit.thread_facts import KeyRights, MemoryFact, ThreadFact

RESUBMITTED = "resubmitted_from"
"""Metadata of a task that was sent again: it has those of the first one, too."""
DECISIONS = "dlq"
"""The stage of records in dead-letters that decide about others; they have no payload."""
RANGE = 20
"""More missing offsets in a row are one finding."""


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
        self._stories: dict[tuple[int, str], Story] = {}
        self._runs: dict[tuple[int, str], RunStory] = {}
        self._of_turns: dict[tuple[int, str], list[ResponseFact]] = {}
        """Responses that say of which turns they are made, by the id that their run has, too."""
        self._policies: dict[str, PolicyLedger] = {}
        self._jobs: dict[str, JobStory] = {}
        self._months: list[MonthFact] = []
        self._rules: dict[str, RuleStory] = {}
        self._calls: dict[str, CallStory] = {}
        self._queues: dict[str, QueueStory] = {}
        self._asked: dict[str, set[str]] = {}
        """The tasks that name a crossing as their run of self-play."""
        self._tools: dict[str, list[ToolFact]] = {}
        self._prompts: dict[str, list[PromptFact]] = {}
        self._threads: dict[str, ThreadStory] = {}
        self._items: dict[str, MemoryStory] = {}
        self._keys: dict[str, KeyRights] = {}
        """What each key may name, by the actor that it is."""
        self._verdicts: list[CurationFact] = []
        self._datasets: dict[str, DatasetStory] = {}
        self._letters: dict[Coordinates, list[LetterFact]] = {}
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
                self._story(own, event.task_id).misplaced.append(at)
        elif isinstance(event, AccessEvent):
            if event.kind == "key_created":
                self._keys.setdefault(f"key {event.subject_id}", KeyRights(event.tenant, event.agent_id))
        elif SHAPES[topic.label].audit != "place":
            self._keep(fact_of(record, event), event)
            if isinstance(event, Task) and SELFPLAY_RUN in event.metadata and RESUBMITTED not in event.metadata:
                self._asked.setdefault(event.metadata[SELFPLAY_RUN], set()).add(event.task_id)

    def _keep(self, fact: Fact, event: Any) -> None:
        match fact:
            case LetterFact():
                self._letters.setdefault(fact.source, []).append(fact)
                self._new_letters.add(fact.source.partition)
            case BatchFact():
                self._policy(event.policy).batches.append(fact)
            case AdapterFact():
                self._policy(event.policy).adapters.append(fact)
            case GroupFact():
                self._policy(event.policy).groups.append(fact)
                partition = partition_of(event.task_id, self._settings.topics.partitions)
                self._story(partition, event.task_id).groups.append(fact)
            case JobFact():
                self._jobs.setdefault(event.job_id, JobStory(event.policy)).events.append(fact)
            case TriggerFact():
                self._rules.setdefault(event.rule, RuleStory(event.rule, event.policy)).events.append(fact)
            case CallFact():
                self._calls.setdefault(event.model, CallStory(event.model)).calls.append(fact)
            case CallResultFact():
                self._calls.setdefault(event.model, CallStory(event.model)).results.append(fact)
            case QueueFact():
                self._queues.setdefault(event.queue, QueueStory(event.queue)).events.append(fact)
            case SampleFact():
                self._queues.setdefault(event.queue, QueueStory(event.queue)).samples.append(fact)
            case MonthFact():
                self._months.append(fact)
            case ToolFact():
                self._tools.setdefault(event.tool_id, []).append(fact)
            case PromptFact():
                self._prompts.setdefault(event.prompt, []).append(fact)
            case ThreadFact():
                self._threads.setdefault(event.thread_id, ThreadStory(event.thread_id)).events.append(fact)
            case MemoryFact():
                self._items.setdefault(event.namespace, MemoryStory(event.namespace)).events.append(fact)
            case CurationFact():
                self._verdicts.append(fact)
            case DatasetFact():
                self._datasets.setdefault(event.dataset, DatasetStory(fact.policy)).events.append(fact)
            case TurnFact() | RunFact():
                key = (fact.at.partition, event.trajectory_id)
                run = self._runs.setdefault(key, RunStory(fact.at.partition))
                (run.turns if isinstance(fact, TurnFact) else run.events).append(fact)  # type: ignore[arg-type]
            case _:
                self._about_task(fact, event)

    def _about_task(self, fact: Any, event: Task | Response | Reward | GroupControl) -> None:
        if isinstance(fact, RewardFact) and fact.source.startswith(FEEDBACK):
            return  # an opinion of somebody's: no group counts it
        story = self._story(fact.at.partition, event.task_id)
        if isinstance(fact, TaskFact):
            story.tasks.append(fact)
        elif isinstance(fact, ResponseFact):
            story.responses.append(fact)
            if fact.turns:
                self._of_turns.setdefault((fact.at.partition, fact.response_id), []).append(fact)
        elif isinstance(event, GroupControl):
            story.controls.append(fact)
        else:
            story.rewards.append(fact)

    def _story(self, partition: int, task_id: str) -> Story:
        story = self._stories.get((partition, task_id))
        if story is None:
            story = self._stories[partition, task_id] = Story(partition, task_id)
        story.settled = None
        return story

    def _policy(self, policy: str) -> PolicyLedger:
        return self._policies.setdefault(policy, PolicyLedger(policy))

    def policies(self) -> set[str]:
        """Return the policies that anything taken in is about."""
        by_policy = (self._stories, self._runs, self._jobs, self._rules, self._calls, self._datasets)
        named = {one.policy for stories in by_policy for one in stories.values()}
        return {policy for policy in named | set(self._policies) if policy}

    # --- the report ---------------------------------------------------------------------------------------------------

    def report(self, reach: Reach, *, policy: str | None = None) -> Report:
        """Return what is wrong with what was taken in, and what is in flight, as far as `reach` goes."""
        answered = {response.policy for story in self._stories.values() for response in story.responses}
        view = AuditView(self._settings, reach, self._letters, self._exists, answered)
        whole = TaskOutcome(findings=[*self._holes(reach)])
        versions = VersionLedger({name: line.adapters for name, line in self._policies.items()}, view)
        horizons = [self._horizon_ms(reach, partition) for partition in range(self._settings.topics.partitions)]
        for (partition, _), story in self._stories.items():
            if policy is not None and story.policy not in (None, policy):
                continue
            _add(whole, self._task(story, view, horizons[partition], versions))
        for key, run in self._runs.items():
            if policy in (None, run.policy):
                _add(whole, recount_run(run, view, self._of_turns.get(key, ())))
        for name, line in self._policies.items():
            if policy in (None, name):
                _add(whole, recount_policy(line, view))
        for job in self._jobs.values():
            if policy in (None, job.policy):
                trained = {fact.version for fact in self._policy(job.policy).adapters if fact.kind == "trained"}
                _add(whole, recount_job(job, trained))
        ordered, asked = self._jobs_by_crossing(), self._tasks_by_crossing(view)
        for rule in self._rules.values():
            if policy in (None, rule.policy):
                _add(whole, recount_rule(rule, ordered, asked, settled=reach.settled))
        for loop in self._calls.values():
            if policy in (None, loop.policy):
                _add(whole, recount_calls(loop, first_trained(self._policies.get(loop.policy)), view))
        if self._verdicts:
            _add(whole, self._curation(view, policy))
        for dataset in self._datasets.values():
            if policy in (None, dataset.policy):
                _add(whole, recount_dataset(dataset, self._verdicts, view))
        if policy is None:
            for queue in self._queues.values():
                _add(whole, recount_queue(queue, view))
            for tool in self._tools.values():
                _add(whole, recount_decisions(tool, ToolRules(), view))
            for prompt in self._prompts.values():
                _add(whole, recount_decisions(prompt, PromptRules(), view))
            _add(whole, recount_threads(self._threads.values(), self._runs, self._stories, self._keys, view))
            for items in self._items.values():
                _add(whole, recount_memory(items, self._keys, view))
            _add(whole, stray_jobs(self._rules, ordered))
            _add(whole, recount_months(self._months, self._jobs.values()))
            whole.findings += self._useless(view)
        reasons: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        for source, letters in self._letters.items():
            by_stage = {letter.stage: letter.reason for letter in letters if letter.stage != DECISIONS}
            reasons.update(by_stage.values())
            if "policy" in by_stage and source.topic == self._adapters:
                refused[by_stage["policy"]] += 1
        whole.findings += self._stray_letters(view, whole)
        self._new_letters.clear()
        order = {category: number for number, category in enumerate(CATEGORIES)}
        findings = sorted(set(whole.findings), key=lambda found: (found.accounted, order[found.category], found.at))
        return Report(tuple(findings), whole.counts, whole.in_flight, reasons, refused, self._headers_left_out)

    def _tasks_by_crossing(self, view: AuditView) -> dict[str, int] | None:
        """Return how many tasks name each crossing as their run of self-play; None if some were not read."""
        topic = next(topic for topic in self._topics.values() if topic.label == "tasks")
        if any(view.reach.cut(topic.name, partition) for partition in range(topic.partitions)):
            return None
        return {crossing: len(task_ids) for crossing, task_ids in self._asked.items()}

    def _jobs_by_crossing(self) -> dict[str, list[JobFact]]:
        """Return the first record of each job that names a crossing, by the id that it names."""
        ordered: dict[str, list[JobFact]] = {}
        for job in self._jobs.values():
            created = next((event for event in job.events if event.trigger is not None), None)
            if created is not None and created.trigger is not None:
                ordered.setdefault(created.trigger, []).append(created)
        return ordered

    def _curation(self, view: AuditView, policy: str | None) -> TaskOutcome:
        """Return the recount of verdicts; all of them count for the agreement of judges with people."""
        groups = {group.at: group.task_id for line in self._policies.values() for group in line.groups}
        runs = {
            event.at: trajectory_id
            for (_, trajectory_id), run in self._runs.items()
            for event in run.events
            if event.kind == "ended"
        }
        outcome = recount_curation(self._verdicts, view, ends_of_runs(groups, runs))
        if policy is not None:
            of_policy = {fact.at for fact in self._verdicts if fact.policy == policy}
            outcome.findings = [finding for finding in outcome.findings if finding.at in of_policy]
        return outcome

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

    def _task(self, story: Story, view: AuditView, horizon_ms: int, versions: VersionLedger) -> TaskOutcome:
        """Return a task's recount; once every stage is done with it, it is kept until a new record comes."""
        if story.settled is not None and story.partition not in self._new_letters:
            return story.settled
        outcome = recount_task(story, view, horizon_ms)
        wrong, judged = versions.check(story.tasks, story.responses)
        outcome.findings += wrong
        passed, is_ripe = view.reach.passed, judged and not view.reach.settled and not outcome.in_flight
        facts: list[Any] = [*story.tasks, *story.responses, *story.rewards, *story.controls]
        done = (
            is_ripe
            and bool(story.tasks and story.groups)
            and all(found.accounted for found in outcome.findings)
            and all(passed(STREAMS, fact.at) for fact in facts)
            and all(passed(SCORER, fact.at) for fact in story.responses)
        )
        story.settled = outcome if done else None
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

    def _stray_letters(self, view: AuditView, whole: TaskOutcome) -> Iterator[AuditFinding]:
        """Find dead letters about records that do not exist, and those that differ from the record they are about."""
        for source, letters in self._letters.items():
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


def _add(whole: TaskOutcome, part: TaskOutcome) -> None:
    whole.findings += part.findings
    whole.counts.update(part.counts)
    whole.in_flight.update(part.in_flight)
