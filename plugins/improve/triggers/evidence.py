"""The evidence of a rule: a fold of the records after the offsets that its last crossing names.

    curation                ──► promoted runs that are new
    groups of the primary   ──► mean reward ──────────────┐
    groups, trajectories    ──► ended well or failed ─────┼──► a detector each, with a reference of its own
    rewards (feedback)      ──► people's opinions ────────┘
    adapters                ──► another primary: every detector begins again

So a reference begins with its version, or at the last crossing, and never moves: a slow fall does not become a part of
it. Questions are not examined: changed inputs with the same rewards are not a reason to retrain.

Not covered: the tenant of a trajectory is read from its agent's name, that of feedback from its task's. Feedback and
runs without a task count for the version that was primary when they were recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plugins.improve.triggers.detector import Detector, fold
from plugins.improve.triggers.promoted_runs import PromotedRuns
from plugins.improve.triggers.rule import RetrainRule, Signal
from schemas.conventions import FEEDBACK, has_scores
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    CurationEvent,
    Event,
    Reward,
    SourceRange,
    TrajectoryEvent,
)
from schemas.serde import Poison
from streams.access.tenants.tenant_names import is_of
from streams.adapters.versions import empty, fold as fold_version
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import Topic, topics
from streams.settings.model import Settings

NOT_ANSWERED = ("response_failed", "unanswered")
"""Reasons of slots that failed; a missing score is not the run's failure."""


class RuleEvidence:
    """Everything that was read for one rule since `crossed`: the ranges of its last crossing, none at first."""

    def __init__(self, rule: RetrainRule, settings: Settings, crossed: Iterable[SourceRange]) -> None:
        self._rule = rule
        self._topics = {topic.name: topic for topic in topics(settings.topics).values()}
        self.crossed: dict[TopicPartition, int] = {(part.topic, part.partition): part.next for part in crossed}
        self.promoted = PromotedRuns(self.crossed)
        self.detectors: dict[Signal, Detector] = {}
        self.runs = 0
        """Answers and runs that were looked at."""
        self.adapters = empty(rule.policy)
        self._primary_since_ms = 0
        self._ids: set[str] = set()
        """Of events that were counted."""
        self._next: dict[TopicPartition, int] = {}
        self._first: dict[TopicPartition, int] = {}
        self._begin_detectors()

    @property
    def version(self) -> int:
        """The primary."""
        return self.adapters.primary

    def sources(self) -> list[str]:
        """Return the labels of the topics that the rule looks at."""
        labels = ["adapters", "groups", "curation"]
        labels += ["rewards"] if self._rule.when.feedback is not None else []
        return labels + (["trajectories"] if self._rule.when.failure is not None else [])

    def starts(self, bounds: dict[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return the offsets to read from: verdicts and versions from their beginning, all else from the crossing."""
        starts: dict[TopicPartition, int] = {}
        for tp, (low, _) in bounds.items():
            topic = self._topics[tp[0]]
            if topic.key == "policy" and tp[1] != partition_of(self._rule.policy, topic.partitions):
                continue
            is_whole = topic.label in ("adapters", "curation")
            starts[tp] = low if is_whole else max(low, self.crossed.get(tp, low))
        self._first = {tp: max(low, self.crossed.get(tp, low)) for tp, (low, _) in bounds.items() if tp in starts}
        self._next = dict(starts)
        return starts

    def ranges(self) -> tuple[SourceRange, ...]:
        """Return what was read of each partition since the crossing."""
        return tuple(
            SourceRange(topic=topic, partition=partition, first=self._first[topic, partition], next=end)
            for (topic, partition), end in sorted(self._next.items())
            if self._topics[topic].label != "adapters" and end >= self._first[topic, partition]
        )

    def take(self, record: Record) -> None:
        """Add a record; those of each partition come in order."""
        self._next[record.at.topic, record.at.partition] = record.at.offset + 1
        topic = self._topics[record.at.topic]
        event = record.decode_placed(topic.event, topic.partitions)  # the stage that must read it names it
        if isinstance(event, Poison) or event.policy != self._rule.policy:  # type: ignore[union-attr]
            return
        if isinstance(event, AdapterEvent):
            self._on_version(event, record.timestamp_ms)
        elif isinstance(event, CurationEvent):
            if self._rule.tenant in (None, event.tenant):
                self.promoted.take(record.at, event)
        elif self._is_new(event, topic):
            for signal, value in self._values(event, record.timestamp_ms):
                if signal in self.detectors:
                    self.detectors[signal] = fold(self.detectors[signal], value)

    # --- values -------------------------------------------------------------------------------------------------------

    def _is_new(self, event: Event, topic: Topic) -> bool:
        """Return whether the rule counts an event, and has not yet. An event that comes twice counts once."""
        tenant = self._rule.tenant
        if tenant is not None:
            owner = event.agent_id if isinstance(event, TrajectoryEvent) else getattr(event, topic.key)
            if not (event.tenant == tenant if isinstance(event, AdvantagedGroup) else is_of(tenant, owner)):
                return False
        event_id: str = next(
            getattr(event, name) for name in ("group_id", "reward_id", "event_id") if hasattr(event, name)
        )
        is_new = event_id not in self._ids
        self._ids.add(event_id)
        return is_new

    def _values(self, event: Event, recorded_ms: int) -> Iterator[tuple[Signal, float]]:
        when = self._rule.when
        match event:
            case AdvantagedGroup() if event.purpose == self._rule.purpose:
                yield from self._group_values(event)
            case TrajectoryEvent(kind="ended", sampling_id=None) if event.purpose == self._rule.purpose:
                self.runs += 1
                if event.ending != "cancelled" and recorded_ms >= self._primary_since_ms:
                    yield "failure", float(event.ending == "completed")
            case Reward() if event.source.startswith(FEEDBACK) and when.feedback is not None:
                if event.value is not None and recorded_ms >= self._primary_since_ms:
                    yield "feedback", when.feedback.scale(event.value)
            case _:
                return

    def _group_values(self, group: AdvantagedGroup) -> Iterator[tuple[Signal, float]]:
        """Yield a value of each answer that failed or did not, and one of the reward: a canary's are its guard's."""
        self.runs += len(group.responses) + len(group.left_out)
        failed = sum(left.reason in NOT_ANSWERED for left in group.left_out)
        if group.adapter_version in (self.version, -1):  # -1: nothing was sampled
            yield from (("failure", 0.0) for _ in range(failed))
            yield from (("failure", 1.0) for _ in group.responses)
        score = self._rule.when.reward
        is_scored = has_scores(group) and group.dropped_reason is None
        if score is not None and is_scored and group.adapter_version == self.version:
            yield "reward", score.scale(group.reward_mean)

    # --- versions -----------------------------------------------------------------------------------------------------

    def _on_version(self, event: AdapterEvent, recorded_ms: int) -> None:
        before = self.version
        self.adapters = fold_version(self.adapters, event)
        if self.version != before:
            self._primary_since_ms = recorded_ms
            self._begin_detectors()

    def _begin_detectors(self) -> None:
        self.detectors = {signal: Detector(window=mean.window) for signal, mean in self._rule.when.falls.items()}
