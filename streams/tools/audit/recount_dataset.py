"""Recount data sets: whether each is made of verdicts that are there, and what was sent elsewhere had been built.

    built ──► its id, its digest over its files, its ranges in the log ──┐
    verdicts in its range of `curation` ──► the one that counts of each ──┴─► judged = rows + left out, by labeller
    submitted, … ──► the build with that digest, and the submission before its end

Not covered: the rows themselves. `streamward audit` has them built again (streams/improve/datasets/dataset_audit.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from streams.kafka.record import TopicPartition
from streams.tools.audit.facts import AuditFinding, AuditView, Category, CurationFact, DatasetFact
from streams.tools.audit.story import TaskOutcome


@dataclass(slots=True)
class DatasetStory:
    """The log's records about one data set, in the order of their partition."""

    policy: str
    events: list[DatasetFact] = field(default_factory=list)


def recount_dataset(story: DatasetStory, verdicts: Sequence[CurationFact], view: AuditView) -> TaskOutcome:
    """Return what is wrong with one data set; `verdicts`: those of a partition in order."""
    outcome = TaskOutcome()
    seen: set[str] = set()
    built: set[str] = set()
    jobs: set[str | None] = set()

    def find(category: Category, fact: DatasetFact, problem: str) -> None:
        outcome.findings.append(AuditFinding(category, fact.at, problem))

    for fact in story.events:
        if not fact.has_own_id:
            find("contradictory", fact, "its id is not that of its data set, kind, digest and job")
            continue
        if fact.event_id in seen:
            outcome.counts["dataset events repeated"] += 1
            continue
        seen.add(fact.event_id)
        if fact.kind == "built":
            built.add(fact.digest)
            outcome.counts["datasets"] += 1
            outcome.counts["dataset rows"] += fact.rows
            for category, problem in _problems(fact, verdicts, view):
                find(category, fact, problem)
        elif fact.digest not in built:
            find("phantom", fact, f"it is about a build with digest {fact.digest[:12]}, which is not before it")
        elif fact.kind == "submitted":
            jobs.add(fact.job)
        elif fact.job not in jobs:
            find("lost", fact, f"it is the end of job {fact.job}, which was not submitted before it")
    return outcome


def _problems(fact: DatasetFact, verdicts: Iterable[CurationFact], view: AuditView) -> Iterator[tuple[Category, str]]:
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


def _counting(fact: DatasetFact, verdicts: Iterable[CurationFact], view: AuditView) -> Sequence[CurationFact] | None:
    """Return the verdict that counts of each run, in the ranges of a build; None if some were not read."""
    topic = view.names["curation"]
    ends: dict[TopicPartition, int] = {}
    for part in fact.ranges:
        if part.topic == topic:
            ends[topic, part.partition] = part.next
            if view.reach.begins.get((topic, part.partition), 0) > part.first:
                return None
    persons: dict[str, CurationFact] = {}
    machines: dict[str, CurationFact] = {}
    event_ids: set[str] = set()
    for verdict in verdicts:
        is_in_range = verdict.at.offset < ends.get((topic, verdict.at.partition), 0)
        if verdict.policy == fact.policy and is_in_range and verdict.event_id not in event_ids:
            event_ids.add(verdict.event_id)
            (persons if verdict.labeller == "person" else machines)[verdict.answer_id] = verdict
    return [*({**machines, **persons}).values()]
