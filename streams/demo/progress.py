"""The progress of every group, folded from the log.

    tasks, responses, rewards, groups, batches, adapters, dead-letters ──► Progress of one policy

Each topic is read in its own order and in parallel with the others, so an event may be seen before its cause; a task
only ever moves forward through `PLACES`, and the view is right once the reader has caught up.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    Coordinates,
    DeadLetter,
    Event,
    Observed,
    Response,
    Reward,
    Task,
    TrajectoryEvent,
    Turn,
)
from schemas.serde import Poison
from streams.adapters.learning import LearningFigures, LearningHistory, facts_of
from streams.demo.held_out_answers import HeldOutAnswers
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.scoring.breaker import PAUSED_REASON, paused_scorer
from streams.tools.dead_letters.letters import STAGE as DECISIONS, source_of
from streams.tools.score_failures import ScoreFailures
from streams.tools.views.group_outcome import FLAT, nothing_reason
from streams.tools.views.places import PLACES
from streams.tools.waiting import StalledGroups, batch_text

ERRORS_KEPT = 8


@dataclass
class TaskProgress:
    """A task in flight. Events about it may be read before the task itself, which says whether it counts."""

    place: str = "waiting"
    is_train: bool = False
    group_size: int = 0
    """From its responses; 0 until one was read."""
    responses: int = 0
    rewards: int = 0
    is_flat: bool = False
    """Whether all advantages of its group are 0."""
    batches: int = 0
    """How many batches the version had taken that answered."""


@dataclass
class HeldOut:
    """The score of one version on the questions it never trained on."""

    version: int
    exact: float
    mean_reward: float
    n: int
    """Answers."""
    low: float = 0.0
    """The lower end of the interval of `exact`, which counts questions."""


@dataclass
class TurnCounts:
    """Turns of agents that work on tasks, counted."""

    turns: int = 0
    delivered: int = 0
    """Turns whose answer reached the agent."""
    tool_calls: int = 0
    unusable: int = 0
    """Actions that an environment could not use."""
    judged: int = 0
    """Actions of which an environment said whether it could."""

    def __str__(self) -> str:
        delivered = self.delivered / self.turns if self.turns else 1.0
        usable = f", {1 - self.unusable / self.judged:.0%} of actions usable" if self.judged else ""
        return f"{self.turns} turns ({delivered:.0%} delivered), {self.tool_calls} tool calls{usable}"

    def take(self, observed: Observed | None) -> None:
        """Count an environment's report on the action before."""
        if observed is not None and observed.ok is not None:
            self.judged += 1
            self.unusable += not observed.ok
            self.tool_calls += observed.tool is not None


@dataclass
class Progress:
    """The records of one policy, counted."""

    settings: Settings
    counts: Counter[str] = field(default_factory=Counter)
    """Records read, by topic label."""
    places: Counter[str] = field(default_factory=Counter)
    """Train tasks, by place."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Train tasks that left without training, by reason."""
    letters: dict[Coordinates, str] = field(default_factory=dict)
    """Reasons of open dead letters, by the record that each is about; a paused scorer drops nothing."""
    taught_nothing: int = 0
    """Train tasks that were trained on although all their rewards are equal."""
    failures: ScoreFailures = field(default_factory=ScoreFailures)
    """Answers without a score."""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    """The newest reasons why answers failed."""
    versions: int = 0
    trained_batches: int = 0
    """Batches that a version was made of."""
    primary: int = 0
    held_out: dict[int, HeldOut] = field(default_factory=dict)
    train_tasks: Counter[str] = field(default_factory=Counter)
    """Train tasks by scenario."""
    eval_open: int = 0
    failed: int = 0
    """Responses that are errors and get no score."""
    evaluations: set[int] = field(default_factory=set)
    """Versions for which all tasks of a suite were submitted."""
    submitted: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Held-out tasks that were submitted, by version and suite."""
    batches: int = 0
    newest_ms: int | None = None
    """When the newest group or batch was recorded."""
    turns: TurnCounts = field(default_factory=TurnCounts)
    held_out_answers: HeldOutAnswers = field(default_factory=HeldOutAnswers)
    _pauses: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By scorer, when it was last paused, and the error."""
    _scored_ms: dict[str, int] = field(default_factory=dict)
    """By reward source, when it last gave a value."""
    _open: dict[str, TaskProgress] = field(default_factory=dict)
    _grouped: set[str] = field(default_factory=set)
    """Tasks whose group was read: the first one counts, and later events of the task change nothing."""
    _batched: dict[int, list[str]] = field(default_factory=dict)
    _at_offset: dict[TopicPartition, dict[int, str]] = field(default_factory=dict)
    _early: list[Batch] = field(default_factory=list)
    _eval_tasks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.learning = LearningHistory(self.settings.batches.groups)
        self.stalled = StalledGroups(self.settings.advantages)
        self._labels = {topic.name: topic for topic in topics(self.settings.topics).values()}

    def fold(self, record: Record) -> Event | None:
        """Add one record, and return its event; None if it is unreadable or of another policy."""
        topic = self._labels[record.at.topic]
        event = record.decode(topic.event)
        if isinstance(event, Poison):
            return None
        if getattr(event, "policy", self.settings.policy.name) != self.settings.policy.name:
            return None
        self.counts[topic.label] += 1
        match event:
            case Task():
                self._task(event)
            case Response():
                self._response(event)
            case Reward():
                self._reward(event)
                self.failures.take_reward(event)
                if event.value is not None:
                    self._scored_ms[event.source] = max(self._scored_ms.get(event.source, 0), record.timestamp_ms)
            case AdvantagedGroup():
                self._group(event, record)
                self.stalled.take_group(event.task_id)
                self.newest_ms = record.timestamp_ms
                self._take_batches()
            case Batch():
                self._early.append(event)
                self.newest_ms = record.timestamp_ms
                self._take_batches()
            case AdapterEvent():
                self._adapter(event)
            case Turn() if event.sampling_id is not None:  # and no chat of a user who tries the policy
                self.turns.turns += 1
                self.turns.delivered += event.delivered
                self.turns.take(event.observed)
            case TrajectoryEvent(kind="ended"):
                self.turns.take(event.observed)
            case DeadLetter(reason=reason) if reason == PAUSED_REASON:
                scorer, error = paused_scorer(event)
                self._pauses[scorer] = max(self._pauses.get(scorer, (0, "")), (record.timestamp_ms, error))
            case DeadLetter():
                self.letters[source_of(event)] = event.reason
                if event.stage == DECISIONS:
                    del self.letters[source_of(event)]
                self.failures.take_letter(event)
                self.stalled.take_letter(event)
        return event

    def window(self) -> int:
        """Return how many groups wait in the window of the next batch."""
        return self.places["grouped"]

    def leftovers(self, task_ids: Collection[str]) -> int:
        """Return how many train tasks without a group there are beside these."""
        under_way = ("waiting", "sampled", "scored")
        open_tasks = (task_id for task_id, task in self._open.items() if task.is_train and task.place in under_way)
        return sum(task_id not in task_ids for task_id in open_tasks)

    def has_answered(self, tasks: Iterable[Task]) -> bool:
        """Return whether each of these has a group, or, where nothing scores it, all of its answers."""
        return all(
            task.task_id in self._grouped or (not task.reward_sources and self._is_answered(task.task_id))
            for task in tasks
        )

    def _is_answered(self, task_id: str) -> bool:
        return task_id in self._open and self._open[task_id].place != "waiting"

    def stalled_tasks(self) -> int:
        """Return how many train tasks wait for a score that their scorer gave up on."""
        tasks = (self._open.get(group.task_id) for group in self.stalled.of(self.settings.policy.name))
        return sum(task is not None and task.is_train and task.place != "waiting" for task in tasks)

    def pause_reasons(self) -> list[str]:
        """Return the errors of paused scorers: those without a score since. A score of a mix may be any scorer's."""
        return [
            error
            for scorer, (paused_ms, error) in self._pauses.items()
            if max(self._scored_ms.get(source, 0) for source in (scorer, "mix")) <= paused_ms
        ]

    def scoring_faults(self) -> list[str]:
        """Return why answers have no score: paused scorers, or else those that fail."""
        return self.pause_reasons() or [str(scorer) for scorer in self.failures.scorers()]

    def scored_versions(self) -> dict[int, LearningFigures]:
        """Return what each version taught that has scored answers to train tasks, in order."""
        return {version: learning for version, learning in sorted(self.learning.versions.items()) if learning.answers}

    def scores(self) -> dict[int, float]:
        """Return the score of each version: held out, else the mean reward of its answers."""
        if self.held_out:
            return {version: score.exact for version, score in self.held_out.items()}
        return {version: learning.mean_reward or 0.0 for version, learning in self.scored_versions().items()}

    def _task(self, task: Task) -> None:
        if task.purpose == "eval":
            self._count_held_out(task)
            if task.task_id not in self._eval_tasks and task.task_id not in self._grouped:
                self._eval_tasks.add(task.task_id)
                self.eval_open += 1
        elif task.purpose == "train":
            self.train_tasks[task.scenario] += 1
            self._counts(self._in_flight(task.task_id))

    def _count_held_out(self, task: Task) -> None:
        """Count a held-out task; a version is evaluated once its suite is complete, also after a sender was killed."""
        if task.adapter_version is None:
            return
        submitted = self.submitted[task.adapter_version, task.metadata.get("suite", "")]
        submitted.add(task.task_id)
        size = task.metadata.get("suite_size", "")
        if len(submitted) >= (int(size) if size.isdecimal() else 1):
            self.evaluations.add(task.adapter_version)

    def _response(self, response: Response) -> None:
        self.held_out_answers.take_response(response)
        if response.error is not None:
            self.failed += 1
            self.errors.append(response.error)
        task = self._in_flight(response.task_id)
        if task is not None:
            task.responses += 1
            task.group_size = response.group_size
            self._judge(task)

    def _reward(self, reward: Reward) -> None:
        task = self._in_flight(reward.task_id)
        if task is not None:
            task.rewards += 1
            self._judge(task)

    def _judge(self, task: TaskProgress) -> None:
        """Advance a task as its responses and rewards allow."""
        if 0 < task.group_size <= task.responses:
            self._move(task, "scored" if task.rewards >= task.responses else "sampled")

    def _group(self, group: AdvantagedGroup, record: Record) -> None:
        task = self._in_flight(group.task_id)
        if task is None or group.task_id in self._grouped:
            return  # written twice
        self._grouped.add(group.task_id)
        if group.purpose == "eval":
            self.held_out_answers.take_group(group)
            self.eval_open -= group.task_id in self._eval_tasks
            self._eval_tasks.discard(group.task_id)
        if group.purpose != "train":
            del self._open[group.task_id]
            return
        self._counts(task)
        self.learning.add(facts_of(group))
        task.is_flat, task.batches = group.flat, group.batches
        reason = nothing_reason(group.purpose, group.dropped_reason, group.flat)
        if reason is not None and (reason != FLAT or self.settings.batches.zero_variance == "drop"):
            self._leave(group.task_id, reason)
            return
        self._move(task, "grouped")
        self._at_offset.setdefault((record.at.topic, record.at.partition), {})[record.at.offset] = group.task_id

    def _take_batches(self) -> None:
        """Move the groups of each batch whose groups have all been read."""
        groups = next(topic.name for topic in self._labels.values() if topic.label == "groups")
        for batch in list(self._early):
            group_at = self._at_offset.get((groups, batch.groups_partition), {})
            if batch.sequence >= self.batches and any(offset not in group_at for offset in batch.groups_offsets):
                continue
            self._early.remove(batch)
            if batch.sequence < self.batches:
                continue  # delivered twice
            self.batches = batch.sequence + 1
            self._batched[batch.sequence] = [group_at.pop(offset) for offset in batch.groups_offsets]
            for task_id in self._batched[batch.sequence]:
                self._move(self._open[task_id], "batched")
            for dropped in batch.dropped:
                if dropped.offset in group_at:
                    self._leave(group_at.pop(dropped.offset), dropped.reason)
        self._drop_stale()
        self._take_versions()

    def _drop_stale(self) -> None:
        """Move the groups on that no later batch takes: too old already, as the cutter will say with a batch."""
        rule = self.settings.batches
        if self.settings.trainer.off_policy:
            return
        for group_at in self._at_offset.values():
            old = [at for at, name in group_at.items() if self.batches - self._open[name].batches > rule.max_policy_lag]
            for offset in old:
                self._leave(group_at.pop(offset), "stale")

    def _adapter(self, event: AdapterEvent) -> None:
        if event.kind == "trained":
            if event.version == self.versions + 1:
                self.versions += 1
                self.trained_batches += event.takes_batch
        elif event.kind in ("promoted", "rolled_back"):
            self.primary = event.version
        elif event.kind == "evaluated" and event.suite is not None:
            metrics = event.metrics
            self.held_out[event.version] = HeldOut(
                event.version,
                metrics.get("exact", 0.0),
                metrics.get("mean_reward", 0.0),
                int(metrics.get("n", 0)),
                metrics.get("success_low", 0.0),
            )
        self._take_versions()

    def _take_versions(self) -> None:
        for sequence in [sequence for sequence in self._batched if sequence < self.trained_batches]:
            for task_id in self._batched.pop(sequence):
                task = self._open.pop(task_id)
                self.taught_nothing += task.is_flat
                self._move(task, "trained")

    def _leave(self, task_id: str, reason: str) -> None:
        self.reasons[reason] += 1
        self._move(self._open.pop(task_id), "left out")

    def _in_flight(self, task_id: str) -> TaskProgress | None:
        """Return the progress of a task; None if it has left already."""
        if task_id in self._grouped:
            return self._open.get(task_id)
        return self._open.setdefault(task_id, TaskProgress())

    def _counts(self, task: TaskProgress | None) -> None:
        """Count a task from now on, at the place it has reached: it is a train task."""
        if task is not None and not task.is_train:
            task.is_train = True
            self.places[task.place] += 1

    def _move(self, task: TaskProgress, place: str) -> None:
        """Move a task forward; never back."""
        if PLACES.index(place) > PLACES.index(task.place):
            self.places[task.place] -= task.is_train
            self.places[place] += task.is_train
            task.place = place


def waits(progress: Progress) -> list[tuple[str, str]]:
    """Return what each process works on or waits for, by name."""
    rule, places = progress.settings.batches, progress.places
    ahead = places["sampled"] + places["scored"] + places["grouped"] + places["batched"] - progress.stalled_tasks()
    if not progress.counts["responses"] and (progress.eval_open or places["waiting"]):
        policy = "loads the model, then answers"
    elif progress.eval_open:
        policy = f"answers {progress.eval_open} held-out questions"
    elif places["waiting"] and ahead >= rule.groups * (rule.max_policy_lag + 1):
        policy = f"held back: {ahead} tasks in flight are not trained on yet"
    elif places["waiting"]:
        policy = f"answers; {places['waiting']} tasks wait"
    else:
        policy = "waits for tasks"
    unscored = max(progress.counts["responses"] - progress.failed - progress.counts["rewards"], 0)
    scoring = f"{unscored} responses to score" if unscored else "waits for responses"
    scoring = "; ".join(progress.scoring_faults()) or scoring
    if progress.batches > progress.trained_batches:
        trainer = f"trains version {progress.versions + 1}"
    else:
        stalled = progress.stalled.of(progress.settings.policy.name)
        trainer = batch_text(progress.batches, progress.window(), rule.groups, progress.newest_ms, stalled)
    acts = [("agent", str(progress.turns))] if progress.turns.turns else []
    return [("policy", policy), ("scoring", scoring), ("trainer", trainer), *acts]
