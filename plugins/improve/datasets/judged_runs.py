"""The judged runs of a policy, with everything that the log has about them.

    curation ──► VerdictFold: the verdict that counts ──► the rule ──► promoted, rejected, left out by reason
    groups, trajectories, … ──► FinishedReader: the runs that end where a verdict says ──┘

The order is that of `FinishedReader`: by the ends of runs in the log. A conversation has the runs that its verdict is
about, without later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from plugins.improve.curation.verdicts import PlacedVerdict, VerdictFold
from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.datasets.source_ranges import RangedHistory
from schemas.events import AnsweringAgent, Coordinates, CurationEvent
from schemas.key_source import NO_TRAINING
from schemas.serde import Poison
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.finished import Finished, FinishedReader, FinishedSelection, FirstPrompt


class JudgedRun(NamedTuple):
    """A run, and the verdict on it that counts."""

    placed: PlacedVerdict
    finished: Finished
    rejected: frozenset[str] = frozenset()
    """Of a conversation: the runs whose answers a person rejected."""

    @property
    def verdict(self) -> CurationEvent:
        """The verdict that counts."""
        return self.placed.event

    @property
    def agent(self) -> AnsweringAgent | None:
        """The agent of the run, and the program that ran as it; None: not an agent's run."""
        if self.verdict.agent_id is None:
            return None
        response = self.finished.response
        return AnsweringAgent(agent_id=self.verdict.agent_id, program=None if response is None else response.program)

    @property
    def base_digests(self) -> frozenset[str]:
        """The base models that answered, by the digests of their weights."""
        run, response = self.finished.run, self.finished.response
        if run is not None:
            return frozenset(step.turn.base_digest for step in run.steps if step.chain is not None)
        return frozenset() if response is None else frozenset((response.base_digest,))

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that answered."""
        if self.finished.run is not None:
            return self.finished.run.versions
        return () if self.finished.response is None else (self.finished.response.adapter_version,)

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing tells which of several answers is that of its task."""
        runs = self.finished.runs or (self.finished,)
        return any(run.response is not None and run.run is not None and run.run.doubt is not None for run in runs)

    @property
    def ended_ms(self) -> int:
        """When its last answer was complete."""
        if self.finished.response is not None:
            return self.finished.response.created_at
        return self.finished.run.steps[-1].turn.created_at if self.finished.run is not None else 0

    @property
    def prompt(self) -> FirstPrompt:
        """What it was asked at first."""
        return self.finished.prompt


@dataclass(slots=True)
class JudgedRuns:
    """The runs that a rule is about."""

    promoted: list[JudgedRun] = field(default_factory=list)
    rejected: list[JudgedRun] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Judged runs that are not promoted, or not whole, by reason."""
    newest_ms: int = 0
    """Time of the newest verdict on a run of the policy."""
    restricted: set[str] = field(default_factory=set)
    """Persons who do not allow training, and whose runs are left out."""


def read_runs(
    settings: Settings, history: RangedHistory, rule: DatasetRule, allows: Callable[[str | None], bool]
) -> JudgedRuns:
    """Return the judged runs in the ranges of `history` of persons who allow training. Raises LogError."""
    runs, verdicts = JudgedRuns(), VerdictFold()
    partitions = topics(settings.topics)["curation"].partitions
    for record in history.records("curation"):
        event = record.decode_placed(CurationEvent, partitions)
        if not isinstance(event, Poison) and event.policy == rule.policy:
            verdicts.take(record.at, event)
            runs.newest_ms = max(runs.newest_ms, record.timestamp_ms)
    by_run: dict[str, PlacedVerdict] = {}
    for placed in verdicts:
        reason = rule.why_not(placed.event) or _is_in_conversation(placed.event, verdicts, rule)
        if reason in (None, "rejected"):
            by_run[placed.event.answer_id] = placed
        else:
            runs.left_out[str(reason)] += 1
    ends: dict[Coordinates, dict[str, tuple[str, ...]]] = {}
    for placed in by_run.values():
        ends.setdefault(_end(placed.event), {})[placed.event.answer_id] = placed.event.runs
    reader = FinishedReader(settings, history, FinishedSelection(policy=rule.policy, unfit=True, ends=ends))
    for finished in reader.round() if ends else ():
        placed_verdict = by_run.pop(finished.answer_id, None)
        if placed_verdict is None:
            continue  # a sibling in a group, without a verdict
        rejected = (run_id for run_id in placed_verdict.event.runs if _is_rejected(run_id, verdicts))
        run = JudgedRun(placed_verdict, finished, frozenset(rejected))
        if (subject := finished.subject) is not None and not allows(subject):
            runs.restricted.add(subject)
            runs.left_out[NO_TRAINING] += 1
        elif run.verdict.verdict == "promote":
            runs.promoted.append(run)
        else:
            runs.rejected.append(run)
            runs.left_out["rejected"] += 1
    for placed in by_run.values():
        runs.left_out["rejected" if placed.event.verdict == "reject" else "no longer in the log"] += 1
    return runs


def _is_in_conversation(verdict: CurationEvent, verdicts: VerdictFold, rule: DatasetRule) -> str | None:
    """Return why a promoted answer of a conversation is no row of its own; None if it is."""
    whole = verdicts.effective(verdict.task_id)
    if whole is None or whole.event is verdict or rule.why_not(whole.event) is not None:
        return None
    return "in its conversation" if verdict.answer_id in whole.event.runs else None


def _is_rejected(run_id: str, verdicts: VerdictFold) -> bool:
    placed = verdicts.effective(run_id)
    return placed is not None and placed.event.verdict == "reject" and placed.event.task_id != placed.event.answer_id


def _end(verdict: CurationEvent) -> Coordinates:
    return Coordinates(verdict.source_topic, verdict.source_partition, verdict.source_offset)
