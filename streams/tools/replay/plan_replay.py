"""Estimate the result of a replay, and write nothing.

    select ──► join ──► cut, from the source, in memory ──► tasks, responses, rewards, groups, batches, steps, seconds

With other scorers the rewards are not known yet, so groups and batches are upper limits: a group whose rewards turn out
equal teaches nothing, and may be dropped. A few responses are scored to estimate how long scoring takes. Joining is not
counted: it takes seconds for records that took hours to sample.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from schemas.events import AdapterEvent, AdvantagedGroup, Coordinates, Response, Task
from schemas.serde import Poison
from streams.errors import RefusedError, SettingsError
from streams.kafka import admin
from streams.kafka.history import History, LogHistory
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.scorers import Scorers
from streams.settings.model import Settings
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.batches import BatchWindow, Cutter
from streams.tools.replay import driver, experiments, recorded_lag
from streams.tools.replay.regroup import partition_records
from streams.tools.replay.run_replay import ReplayRequest, new_experiment, select_tasks, settings_of
from streams.tools.replay.selection import SelectedTasks

SAMPLE = 16
"""Responses that are scored to measure how long it takes."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """The estimate of a replay."""

    experiment: str
    policy: str
    tasks: int
    scenarios: Mapping[str, int]
    responses: int
    rewards: int
    """Recorded rewards that are copied, or scores that will be given."""
    to_score: bool
    unreadable: int
    groups: int
    batches: int
    exact: bool
    """Whether groups and batches are exact; else they are upper limits."""
    dropped: Mapping[str, int]
    steps: int
    step_s: float | None
    """Seconds of a step, the mean over the batches to train, at the speed that the source's trainer recorded; None if
    it recorded none."""
    score_s: float | None
    """Seconds per score, one after the other; None if nothing is scored."""
    changed: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Seconds that scoring and training take together; None if that is unknown."""
        if self.steps and self.step_s is None:
            return None
        return self.steps * (self.step_s or 0.0) + self.rewards * (self.score_s or 0.0)

    def plain(self) -> dict[str, Any]:
        """Return it for printing."""
        return {
            "experiment": self.experiment,
            "policy": self.policy,
            "tasks": self.tasks,
            "scenarios": dict(self.scenarios),
            "responses": self.responses,
            "rewards_to_score" if self.to_score else "rewards": self.rewards,
            "unreadable": self.unreadable,
            "groups" if self.exact else "groups_at_most": self.groups,
            "batches" if self.exact else "batches_at_most": self.batches,
            "dropped": dict(self.dropped),
            "steps": self.steps,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "changed": list(self.changed),
            "notes": list(self.notes),
        }


@dataclass
class _RangeCounts:
    """The records of a range, and what the join and the cutter make of them in memory."""

    counts: Counter[str] = field(default_factory=Counter)
    sampled: set[str] = field(default_factory=set)
    """Tasks with a response that can be scored."""
    tasks: dict[str, Task] = field(default_factory=dict)
    responses: list[Response] = field(default_factory=list)
    groups: int = 0
    batches: int = 0
    tokens: list[int] = field(default_factory=list)
    """Of each batch: the tokens of its prompts, once, and of its responses."""
    dropped: Counter[str] = field(default_factory=Counter)


def plan(source: Settings, request: ReplayRequest, history: History | None = None) -> ReplayPlan:
    """Return what `replay.run` would make of this request. Raises as it does before anything is written."""
    if request.prompt is not None:
        raise SettingsError("--prompt asks tasks again, and a plan counts recorded answers alone; leave it out")
    history = history or LogHistory(source)
    settings = settings_of(source, request)
    experiment = new_experiment(source, history, request, settings)
    _refuse_taken(source, request, settings)
    chosen = select_tasks(source, history, request, experiment)
    trained, versions = recorded_lag.read(source, history, experiment.policy, experiment.ranges)
    seen = _RangeCounts()
    partitions = (
        partition_records(source, history, experiment.ranges, partition, lambda record: record.key in chosen.keys)
        for partition in range(source.topics.partitions)
    )
    if request.scorers:
        for records in partitions:
            for _ in _count_records(source, records, seen, len(request.scorers)):
                pass
        seen.groups, seen.batches = len(seen.sampled), len(seen.sampled) // settings.batches.groups
    else:
        join_settings = settings.model_copy(update={"topics": source.topics, "policy": source.policy})
        results = (
            group
            for records in partitions
            for _, group in driver.join_states(
                join_settings, _count_records(source, records, seen, 0), look_up=history.fetch, note=trained.note
            )
        )
        _count_batches(settings, (group.event() for group in results if isinstance(group, GroupRecord)), seen)
    return _plan(settings, request, experiment.changed, chosen, seen, versions)


def _count_batches(settings: Settings, groups: Iterator[AdvantagedGroup], seen: _RangeCounts) -> None:
    """Count the groups, the batches that they fill, and those that are dropped."""
    cutter, window = Cutter(settings.batches, off_policy=True), BatchWindow()
    tokens: dict[int, int] = {}
    for group in groups:
        seen.groups += 1
        lengths = (len(response.prompt_token_ids) + response.completion_tokens for response in group.responses)
        tokens[seen.groups] = len(group.prompt_token_ids) + sum(lengths)
        window, cut = cutter.reduce(window, group, Coordinates("groups", 0, seen.groups), doubled=False)
        seen.batches += len(cut)
        seen.tokens += [sum(tokens.pop(offset) for offset in batch.groups_offsets) for batch in cut]
        seen.dropped.update(dropped.reason for batch in cut for dropped in batch.dropped)
    seen.dropped.update(dropped.reason for dropped in window.dropped)


def _refuse_taken(source: Settings, request: ReplayRequest, settings: Settings) -> None:
    """Raise RefusedError if this name is taken: a plan is for a new experiment."""
    existing = experiments.read(source).get(request.name)
    if existing is not None or topics(settings.topics)["tasks"].name in admin.describe(source):
        state = f"is {existing.kind}" if existing else "has topics already"
        raise RefusedError(
            f"experiment {request.name} {state}; see `streamward replay show {request.name}`. "
            "Give the one you plan another name"
        )


def _count_records(source: Settings, records: Iterator[Record], seen: _RangeCounts, scorers: int) -> Iterator[Record]:
    """Yield the records, counted by topic; a few tasks and responses are kept to be scored."""
    labels = {topic.name: (topic.label, topic.event) for topic in topics(source.topics).values()}
    for record in records:
        label, kind = labels[record.at.topic]
        seen.counts[label] += 1
        if scorers and label in ("tasks", "responses"):
            event = record.decode(kind)
            if isinstance(event, Poison):
                seen.counts["unreadable"] += 1
            elif isinstance(event, Task) and len(seen.tasks) < SAMPLE:
                seen.tasks.setdefault(event.task_id, event)
            elif isinstance(event, Response) and event.error is None:
                seen.sampled.add(event.task_id)
                seen.counts["to score"] += scorers
                if event.task_id in seen.tasks and len(seen.responses) < SAMPLE:
                    seen.responses.append(event)
        yield record


def _plan(
    settings: Settings,
    request: ReplayRequest,
    changed: tuple[str, ...],
    chosen: SelectedTasks,
    seen: _RangeCounts,
    versions: list[AdapterEvent],
) -> ReplayPlan:
    batches = seen.batches
    steps = min(batches, request.steps or batches) if request.train else 0
    score_s, notes = _score_sample(settings, request, seen)
    if steps and not versions:
        notes = (*notes, f"{request.selection.policy} was never trained, so the time of a step is unknown")
    if not batches:
        notes = (
            *notes,
            f"not enough for one batch of {settings.batches.groups} groups: choose more tasks, or fewer --groups",
        )
    return ReplayPlan(
        experiment=request.name,
        policy=request.selection.policy,
        tasks=len(chosen.keys),
        scenarios=chosen.by_scenario,
        responses=seen.counts["responses"],
        rewards=seen.counts["to score"] if request.scorers else seen.counts["rewards"],
        to_score=bool(request.scorers),
        unreadable=chosen.unreadable + seen.counts["unreadable"],
        groups=seen.groups,
        batches=batches,
        exact=not request.scorers,
        dropped=seen.dropped,
        steps=steps,
        step_s=_step_s(settings, versions, seen.tokens[:steps]),
        score_s=score_s,
        changed=changed,
        notes=notes,
    )


def _step_s(settings: Settings, versions: list[AdapterEvent], tokens: list[int]) -> float | None:
    """Return the mean seconds of a step, from the recorded steps and the `tokens` of each batch to train.

    Where tokens are unknown, on either side, a step takes as long as one of as many groups took.
    """
    timed = [event.metrics for event in versions if "step_s" in event.metrics]
    for size, steps in (("tokens_run", tokens), ("groups", [settings.batches.groups])):
        counted = [metrics for metrics in timed if metrics.get(size)]
        if counted and steps:
            return (
                mean(steps) * sum(metrics["step_s"] for metrics in counted) / sum(metrics[size] for metrics in counted)
            )
    return None


def _score_sample(
    settings: Settings, request: ReplayRequest, seen: _RangeCounts
) -> tuple[float | None, tuple[str, ...]]:
    """Score a few responses; return the seconds per score, and notes about scores that failed."""
    if not request.scorers or not seen.responses:
        return None, ()
    began, failed = time.perf_counter(), Counter[str]()
    with Scorers(settings.scoring) as scorers:
        for response in seen.responses:
            for source in request.scorers:
                outcome = scorers.score(seen.tasks[response.task_id], response, source)
                if outcome.error is not None:
                    failed[outcome.error] += 1
    tried = len(seen.responses) * len(request.scorers)
    took_s = (time.perf_counter() - began) / tried
    notes = tuple(f"{count} of {tried} trial scores failed: {error}" for error, count in failed.items())
    return took_s, notes[:3]
