"""Recount data sets: each is made of verdicts in the log, and each submission has its build.

    built ──► its id, its digest over its files, its ranges in the log ──┐
    verdicts in its range of `curation` ──► the one that counts of each ──┴─► judged = rows + left out, by labeller
    submitted, … ──► the build with that digest, and the submission before its end

Not covered: the rows themselves. `streamward audit` rebuilds them (plugins/improve/datasets/dataset_audit.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from schemas.events import Coordinates, CurationEvent, DatasetEvent, SourceRange, derive_id
from streams.kafka.record import Record, TopicPartition
from streams.tools.audit.facts import Category, RecountOutcome
from streams.tools.audit.subject import KeyedRecount, KeyFacts
from streams.tools.audit.view import AuditView


class DatasetFact(NamedTuple):
    """That a data set was built, or sent elsewhere."""

    at: Coordinates
    event_id: str
    kind: str
    policy: str
    digest: str
    rows: int
    """In both splits."""
    judged: int
    """Rows, and runs that were left out."""
    by_scenario: int
    by_labeller: dict[str, int]
    ranges: tuple[SourceRange, ...]
    job: str | None
    """Elsewhere."""
    has_own_id: bool
    has_own_digest: bool


class VerdictFact(NamedTuple):
    """A verdict, as data sets are made of them."""

    at: Coordinates
    event_id: str
    policy: str
    answer_id: str
    verdict: str
    labeller: str


class DatasetRecount(KeyedRecount[DatasetFact]):
    """The recount of data sets, over the verdicts that they are made of."""

    labels = ("datasets", "curation")

    def __init__(self) -> None:
        super().__init__()
        self._verdicts: list[VerdictFact] = []
        """Those of a partition in order."""

    def take(self, record: Record, event: DatasetEvent | CurationEvent) -> None:
        """Take in an event of a data set, or a verdict."""
        if isinstance(event, DatasetEvent):
            self.keep(event.dataset, _fact(record, event), event.policy)
            return
        about = event.event_id, event.policy, event.answer_id, event.verdict, event.labeller
        self._verdicts.append(VerdictFact(record.at, *about))

    def recount(self, facts: KeyFacts[DatasetFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one data set."""
        outcome = RecountOutcome()
        seen: set[str] = set()
        built: set[str] = set()
        jobs: set[str | None] = set()
        for fact in facts.events:
            if not fact.has_own_id:
                outcome.find("contradictory", fact.at, "its id is not that of its data set, kind, digest and job")
                continue
            if fact.event_id in seen:
                outcome.counts["dataset events repeated"] += 1
                continue
            seen.add(fact.event_id)
            if fact.kind == "built":
                built.add(fact.digest)
                outcome.counts["datasets"] += 1
                outcome.counts["dataset rows"] += fact.rows
                for category, problem in _problems(fact, self._verdicts, view):
                    outcome.find(category, fact.at, problem)
            elif fact.digest not in built:
                problem = f"it is about a build with digest {fact.digest[:12]}, which is not before it"
                outcome.find("phantom", fact.at, problem)
            elif fact.kind == "submitted":
                jobs.add(fact.job)
            elif fact.job not in jobs:
                outcome.find("lost", fact.at, f"it is the end of job {fact.job}, which was not submitted before it")
        return outcome


def _fact(record: Record, event: DatasetEvent) -> DatasetFact:
    job = None if event.outside is None else event.outside.job
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(event.files, key=lambda file: file.path))
    rows = event.counts.get("train", 0) + event.counts.get("eval", 0)
    left_out = sum(count for name, count in event.counts.items() if name.startswith("left out: "))
    own_id = derive_id(event.dataset, event.kind, event.digest, *([] if job is None else [job]))
    return DatasetFact(
        at=record.at,
        event_id=event.event_id,
        kind=event.kind,
        policy=event.policy,
        digest=event.digest,
        rows=rows,
        judged=rows + left_out,
        by_scenario=sum(event.scenarios.values()),
        by_labeller=dict(event.labellers),
        ranges=event.ranges,
        job=job,
        has_own_id=event.event_id == own_id,
        has_own_digest=event.digest == sha256(lines.encode()).hexdigest(),
    )


def _problems(fact: DatasetFact, verdicts: Iterable[VerdictFact], view: AuditView) -> Iterator[tuple[Category, str]]:
    if not fact.has_own_digest:
        yield "contradictory", "its digest is not that of its files"
    if not fact.rows == fact.by_scenario == sum(fact.by_labeller.values()):
        by_labeller = sum(fact.by_labeller.values())
        yield "contradictory", f"it has {fact.rows} rows, {fact.by_scenario} by scenario, {by_labeller} by labeller"
    for part in fact.ranges:
        end = view.reach.ends.get((part.topic, part.partition))
        if end is not None and part.next > end:
            place = f"{part.topic}[{part.partition}]"
            yield "phantom", f"it was made of {place} up to offset {part.next}, and the log ends at {end}"
    counting = _counting(fact, verdicts, view)
    if counting is None:
        return
    if fact.judged != len(counting):
        yield (
            "contradictory",
            f"it counts {fact.judged} judged runs, rows and left out, and {len(counting)} have a verdict in its ranges",
        )
    promoted = Counter(verdict.labeller for verdict in counting if verdict.verdict == "promote")
    for labeller, rows in fact.by_labeller.items():
        if rows > promoted[labeller]:
            yield "phantom", f"it has {rows} rows by {labeller}, and {promoted[labeller]} runs were promoted so"


def _counting(fact: DatasetFact, verdicts: Iterable[VerdictFact], view: AuditView) -> Sequence[VerdictFact] | None:
    """Return the verdict that counts of each run, in the ranges of a build; None if some were not read."""
    topic = view.names["curation"]
    ends: dict[TopicPartition, int] = {}
    for part in fact.ranges:
        if part.topic == topic:
            ends[topic, part.partition] = part.next
            if view.reach.begins.get((topic, part.partition), 0) > part.first:
                return None
    persons: dict[str, VerdictFact] = {}
    machines: dict[str, VerdictFact] = {}
    event_ids: set[str] = set()
    for verdict in verdicts:
        is_in_range = verdict.at.offset < ends.get((topic, verdict.at.partition), 0)
        if verdict.policy == fact.policy and is_in_range and verdict.event_id not in event_ids:
            event_ids.add(verdict.event_id)
            (persons if verdict.labeller == "person" else machines)[verdict.answer_id] = verdict
    return [*({**machines, **persons}).values()]
