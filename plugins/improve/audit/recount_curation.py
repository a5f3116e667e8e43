"""Recount the verdicts on runs: each is about an ended run, follows from its gates, and obeys its rule.

    curation of one task ──► the id of each from what it is about · the verdict that it supersedes before it
    groups, trajectories ──► the end of the run that it names, and every run of its conversation up to then
    gates ────────────────► passed or not, by value and bound
    curation of all ──────► a promotion of a judge: the pairs of people and judge before the offsets that it names,
                            kappa, and its interval

Two curators may judge a run at the same time, and a person may decide twice at once: of two verdicts with one id the
first counts; this is not a finding.

Not covered: whether the transcript has the digest in the verdict, and whether a judge really gave the recorded opinion.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from schemas.conventions import CONVERSATION
from schemas.events import Coordinates, CurationEvent, JudgeAgreement, TrajectoryEvent, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView

Table = tuple[int, int, int, int]
"""Promoted by person and judge, by the person alone, by the judge alone, by none."""
TOLERANCE = 1e-9
TABLE_CELLS = {("promote", "promote"): 0, ("promote", "reject"): 1, ("reject", "promote"): 2, ("reject", "reject"): 3}


class AuditedVerdict(NamedTuple):
    """A verdict, without what people and models said about it, and where it is."""

    at: Coordinates
    event: CurationEvent
    is_sealed: bool = False
    """Whether the audit cannot read the digest of its transcript: it opens nothing."""

    @property
    def source(self) -> Coordinates:
        """The record that its run ended with."""
        return Coordinates(self.event.source_topic, self.event.source_partition, self.event.source_offset)

    @property
    def measure(self) -> tuple[str, str]:
        """Digests of rubric and transcript."""
        return self.event.rubric_digest, self.event.transcript_digest

    @property
    def judge(self) -> tuple[str, str, str] | None:
        """Endpoint, model and prompt digest of its judge."""
        judge = self.event.judge
        return None if judge is None else (judge.endpoint, judge.model, judge.prompt_digest)


class AuditedRun(NamedTuple):
    """A run: its conversation, its task, when it began, and where its trajectory ended."""

    conversation: str
    task_id: str
    created_at: int
    end: Coordinates | None


class RunsOfLog(NamedTuple):
    """The ends of runs."""

    groups: Mapping[Coordinates, str]
    """The task of each group."""
    runs: Mapping[str, AuditedRun]
    """By trajectory."""
    of_conversation: Mapping[str, Collection[str]]

    def problem(self, fact: AuditedVerdict) -> str | None:
        """Return what the log has otherwise than a verdict says of its run; None: nothing."""
        event, source = fact.event, fact.source
        last = self.runs.get(event.runs[-1] if event.runs else event.answer_id)
        tasks = (event.task_id, last and last.task_id)
        ends_there = self.groups[source] in tasks if source in self.groups else last and last.end == source
        if not ends_there:
            return f"{source} is not the end of run {event.answer_id}"
        if not event.runs or last is None:
            return None
        named = [(self.runs[name].created_at, name) for name in event.runs if name in self.runs]
        if named != sorted(named) or any(self.runs[name].conversation != event.task_id for _, name in named):
            return f"its runs are not those of conversation {event.task_id} in order"
        if event.runs == (event.answer_id,):
            return None  # one answer of it
        earlier = (
            name for name in self.of_conversation[event.task_id] if (self.runs[name].created_at, name) < named[-1]
        )
        missing = {*earlier} - {*event.runs}
        return f"it leaves out run {min(missing)} of its conversation" if missing else None


def recount_curation(facts: Iterable[AuditedVerdict], view: AuditView, runs: RunsOfLog) -> RecountOutcome:
    """Return what is wrong with verdicts, those of each partition in order."""
    outcome, counted = RecountOutcome(), list[AuditedVerdict]()
    first: dict[str, AuditedVerdict] = {}
    for fact in facts:
        known = first.setdefault(fact.event.event_id, fact)
        if known is not fact:
            outcome.find("repeated", fact.at, f"it has the id of {known.at}", accounted=True)
        else:
            counted.append(fact)
    outcome.counts["verdicts"] = len(counted)
    by_run: dict[tuple[int, str], list[AuditedVerdict]] = {}
    for fact in counted:
        before = by_run.setdefault((fact.at.partition, fact.event.answer_id), [])
        outcome.findings += _about_itself(fact)
        outcome.findings += _about_its_run(fact, before, view, runs)
        before.append(fact)
    outcome.findings += _about_judges(counted, list(by_run.values()))
    return outcome


def _about_itself(fact: AuditedVerdict) -> Iterator[AuditFinding]:
    event = fact.event
    own_id = derive_id(event.answer_id, event.labeller, event.actor, *fact.measure, event.supersedes or "")
    if event.event_id != own_id and not fact.is_sealed:
        yield AuditFinding("phantom", fact.at, "its id is not that of its run, labeller, actor, rubric and transcript")
    for gate in event.gates:
        value, bound = gate.value, gate.bound
        if gate.passed != (value is not None and (value >= bound if gate.gate.startswith("min_") else value <= bound)):
            passed = "passed" if gate.passed else "not passed"
            yield AuditFinding(
                "contradictory", fact.at, f"gate {gate.gate} is {passed} with {value} and the bound {bound:g}"
            )


def _about_its_run(
    fact: AuditedVerdict, before: list[AuditedVerdict], view: AuditView, runs: RunsOfLog
) -> Iterator[AuditFinding]:
    topic, partition, offset = fact.source
    if offset >= view.reach.begins.get((topic, partition), 0):
        if not view.exists(fact.source):
            yield AuditFinding("phantom", fact.at, f"it is about {fact.source}, where there is no record")
        elif (problem := runs.problem(fact)) is not None:
            yield AuditFinding("contradictory", fact.at, problem)
    is_cut = view.reach.cut(fact.at.topic, fact.at.partition)
    superseded = fact.event.supersedes
    if superseded is not None and not is_cut and superseded not in {one.event.event_id for one in before}:
        yield AuditFinding("lost", fact.at, f"it supersedes {superseded}, which is not before it")


# --- promotions of a judge --------------------------------------------------------------------------------------------


def _about_judges(facts: list[AuditedVerdict], runs: list[list[AuditedVerdict]]) -> Iterator[AuditFinding]:
    for fact in facts:
        claim, judge = fact.event.agreement, fact.event.judge
        if claim is None:
            continue
        if _end_of(claim, fact.at) > fact.at.offset:
            yield AuditFinding("contradictory", fact.at, "it counts verdicts that come after it")
        if judge is not None and judge.policy == fact.event.policy:
            problem = f"a version of {judge.policy} promotes a run of {judge.policy}"
            yield AuditFinding("contradictory", fact.at, problem)
        table = _table(fact, claim, runs)
        if table is None:
            continue
        low = _low(table)
        differs = max(abs(claim.kappa - _kappa(table)), abs(claim.low - low)) > TOLERANCE
        if claim.runs != sum(table) or differs:
            what = (
                f"its judge agrees with people in {claim.runs} runs with kappa {claim.kappa:.3f} ({claim.low:.3f} or "
                f"more), as it says, and in {sum(table)} with {_kappa(table):.3f} ({low:.3f}) as the log says"
            )
            yield AuditFinding("contradictory", fact.at, what)


def _end_of(claim: JudgeAgreement, at: Coordinates) -> int:
    """Return the offset up to which the partition of a record was counted."""
    return claim.counted[at.partition] if at.partition < len(claim.counted) else 0


def _table(fact: AuditedVerdict, claim: JudgeAgreement, runs: list[list[AuditedVerdict]]) -> Table | None:
    """Return how often people and the judge of a verdict decided what, before the offsets that it counts.

    None: it is sealed whether they were shown the same transcript.
    """
    pairs = []
    for verdicts in runs:
        earlier = [one for one in reversed(verdicts) if one.at.offset < _end_of(claim, one.at)]
        person = next((one for one in earlier if one.event.labeller == "person"), None)
        machine = next((one for one in earlier if one.event.labeller != "person"), None)
        if person is None or machine is None or machine.judge != fact.judge:
            continue
        if person.is_sealed or machine.is_sealed:
            return None
        if person.measure != machine.measure:
            continue
        judge = machine.event.judge
        if (judge and judge.policy) == machine.event.policy:
            continue
        cell = TABLE_CELLS.get((person.event.verdict, (judge and judge.verdict) or ""))
        if cell is not None:
            pairs.append((person.event.created_at, person.event.event_id, cell))
    cells = Counter(cell for _, _, cell in sorted(pairs)[-claim.window :])
    return cells[0], cells[1], cells[2], cells[3]


def _kappa(table: Table) -> float:
    """Return Cohen's kappa, as 2 (ad - bc) / ((a + b)(b + d) + (a + c)(c + d)) of a table of two classes."""
    a, b, c, d = table
    denominator = (a + b) * (b + d) + (a + c) * (c + d)
    return 2 * (a * d - b * c) / denominator if denominator else 0.0


@lru_cache(maxsize=256)
def _low(table: Table) -> float:
    """Return the 2.5 % quantile of kappa over a thousand tables drawn from this one."""
    if not any(table):
        return -1.0
    source = random.Random(0)  # noqa: S311 - the seed of the rule
    kappas = []
    for _ in range(1000):
        cells = Counter(source.choices((0, 1, 2, 3), weights=table, k=sum(table)))
        kappas.append(_kappa((cells[0], cells[1], cells[2], cells[3])))
    return sorted(kappas)[25]


# --- all of them ------------------------------------------------------------------------------------------------------


class CurationRecount(SubjectRecount):
    """The recount of verdicts, and of the ends of runs that they are about."""

    labels, counts = ("curation", "trajectories"), ("verdicts",)

    def __init__(self) -> None:
        self._verdicts: list[AuditedVerdict] = []
        self._runs: dict[str, AuditedRun] = {}

    def take(self, record: Record, event: CurationEvent | TrajectoryEvent) -> None:
        """Take in a verdict, or that a trajectory began or ended."""
        if isinstance(event, CurationEvent):
            judge = event.judge and replace(event.judge, answer="")
            plain = replace(event, rationale="", metadata={}, judge=judge, sealed=None)
            self._verdicts.append(AuditedVerdict(record.at, plain, event.sealed is not None))
        else:
            conversation, name = event.metadata.get(CONVERSATION, event.trajectory_id), event.trajectory_id
            run = self._runs.get(name, AuditedRun(conversation, event.task_id, event.created_at, None))
            end = record.at if event.kind == "ended" and run.end is None else run.end
            self._runs[name] = AuditedRun(conversation, run.task_id, min(run.created_at, event.created_at), end)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with verdicts; all of them count for the agreement of judges with people."""
        if not self._verdicts:
            return RecountOutcome()
        groups = {group.at: group.task_id for line in view.loop.policies.values() for group in line.groups}
        of_conversation: dict[str, list[str]] = {}
        for name, run in self._runs.items():
            of_conversation.setdefault(run.conversation, []).append(name)
        outcome = recount_curation(self._verdicts, view, RunsOfLog(groups, self._runs, of_conversation))
        if policy is not None:
            of_policy = {fact.at for fact in self._verdicts if fact.event.policy == policy}
            outcome.findings = [finding for finding in outcome.findings if finding.at in of_policy]
        return outcome
