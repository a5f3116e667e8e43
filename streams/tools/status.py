"""The state of the whole loop on one screen.

    consumer groups ──► who lives, and what is unread ─┐
    adapters, batches, newest groups ──► who serves, ──┼──► LoopStatus
      what was learnt, what each stage waits for       │
    dead letters, groups, batches of an hour ──► drops ┤
    dead letters of scoring ──► failing, paused scorers┘

It reads the current log, joins no group and changes nothing. A process counts as alive while it is a member of its
consumer group, or of the group of the fleet in this machine's settings; one that was killed counts for
kafka.session_timeout_s more. Tasks held back are computed with this machine's `batches` settings, and without the
agents' in-flight work, which is not in the log.

Not covered: groups further back than the newest GROUPS_READ of a partition.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from schemas.conventions import OUTSIDE
from schemas.events import AdapterEvent, AdvantagedGroup, Batch, DeadLetter, Event, Response, Reward, Task
from schemas.serde import Poison
from streams.adapters.admission.admission import Admission
from streams.adapters.admission.held_back import waits_for
from streams.adapters.learning import DIAGNOSED_STEPS, LearningHistory
from streams.adapters.router import VersionRouter
from streams.adapters.versions import AdapterFold, AdapterState
from streams.evaluation.diagnosis import Diagnosis, diagnose, symptoms_of
from streams.kafka import admin, offsets, times
from streams.kafka.group_names import SCORING, GroupScope, agent_in, policy_in
from streams.kafka.reader import read
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import LABELS, topics
from streams.settings.model import Settings
from streams.stages.scoring.breaker import PAUSED_REASON, paused_scorer
from streams.stages.tasks.episodes import ENVIRONMENT_AGENT
from streams.tools.sample_answers import sample_answers
from streams.tools.score_failures import FailingScorer, ScoreFailures
from streams.tools.waiting import StalledGroup, StalledGroups, batch_text

if TYPE_CHECKING:
    from streams.kafka.transactions import OpenTransaction

WINDOW_S = 3600
"""How far back drops are counted."""
GROUPS_READ = 2000
LETTERS_READ = 250
"""Newest dead letters of each partition in which failing and paused scorers are looked for."""
ANSWERS_READ = 10
"""Newest records of each partition of answers and rewards, of which the time is noted."""
TASKS_READ = 250
"""Newest tasks of each partition that are read: a task may be all there is of a policy. What waits before them counts
for every policy."""
BATCH_REASONS = ("duplicate", "stale", "zero_variance", "unknown_version", OUTSIDE)
"""Why the batch stage itself leaves a group out; other reasons in a batch are the group's own."""
READS = {
    "streams": ("tasks", "responses", "rewards", "group-control", "groups", "adapters"),
    "scoring": ("responses",),
    "policy": ("tasks",),
    "agents": ("tasks",),
    "trainer": ("batches",),
}
"""Topics of each process of the loop."""
COMMANDS = {"streams": "streams", "scoring": "scoring", "policy": "policy", "trainer": "train"}

Bounds = Mapping[TopicPartition, tuple[int, int]]


class NewTask(NamedTuple):
    """One of the newest tasks: the process that answers it, and since when it waits."""

    policy: str
    agent: str | None
    timestamp_ms: int


NewestTasks = Mapping[TopicPartition, Mapping[int, NewTask]]
"""The newest tasks of every partition of their topic, by offset."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One kind of process, of one policy if it works for one, and of one agent."""

    process: str
    policy: str | None
    alive: int
    members: tuple[str, ...]
    lag: int
    """Records of its topics that it has not committed, of a policy without the newest tasks that others answer; of an
    agent, those of the newest tasks that name it; of a trainer, batches without a version."""
    waits_for: str
    agent: str | None = None
    oldest_s: float = 0.0
    """Of an agent: the age of the oldest of its tasks that are not done."""
    is_held_up: bool = False
    """Of scoring: whether a scorer is paused or fails. Of a trainer: whether it waits, and groups lack a score."""


@dataclass(slots=True)
class PolicyStatus:
    """One policy, in the log as read."""

    router: VersionRouter
    admission: Admission
    learning: LearningHistory
    settled: int = -1
    """Offset on `groups` of the last group that its batches settle."""
    batch_starts: tuple[int, ...] = ()
    """Offset of the first group of each of the newest batches."""
    newest_ms: int | None = None
    """When its newest group or batch was recorded."""
    moved_ms: int | None = None
    """When its newest answer, group, batch or adapter event was recorded."""
    stalled: list[StalledGroup] = field(default_factory=list)
    """Its groups of the window that lack a score."""

    @property
    def state(self) -> AdapterState:
        """Its adapter versions."""
        return self.router.adapters

    @property
    def waiting_batches(self) -> int:
        """Batches that the trainer has not made a version of."""
        return max(0, self.admission.sequence - self.state.trained_batches)

    @property
    def first_offset(self) -> int:
        """Offset on `groups` from which its newest batches and the next one are known."""
        return self.batch_starts[0] if self.batch_starts else self.settled + 1

    def note(self, recorded_ms: int) -> None:
        """Note when a group or batch was recorded."""
        self.newest_ms = max(self.newest_ms or 0, recorded_ms)
        self.note_moved(recorded_ms)

    def note_moved(self, recorded_ms: int) -> None:
        """Note when any record of its loop was written."""
        self.moved_ms = max(self.moved_ms or 0, recorded_ms)

    def take_batch(self, batch: Batch) -> None:
        """Fold a batch."""
        self.admission.batch(batch)
        offsets = (*batch.groups_offsets, *(dropped.offset for dropped in batch.dropped))
        self.settled = max(self.settled, *offsets, -1)
        self.batch_starts = (*self.batch_starts, min(offsets, default=0))[-DIAGNOSED_STEPS:]


@dataclass(frozen=True, slots=True)
class DroppedCount:
    """What was dropped for one reason within the window."""

    what: str
    stage: str
    reason: str
    count: int


@dataclass(slots=True)
class LoopStatus:
    """What `streamward status` shows."""

    processes: list[ProcessStatus] = field(default_factory=list)
    policies: dict[str, PolicyStatus] = field(default_factory=dict)
    dropped: list[DroppedCount] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    """Why scorers are paused."""
    failing: list[FailingScorer] = field(default_factory=list)
    """Scorers that left answers of the window without a score."""
    transactions: list[OpenTransaction] = field(default_factory=list)
    """Those of other programs that are open, and keep readers waiting."""
    scored_ms: int | None = None
    """When the newest reward of any policy was recorded."""
    unread_answers: int = 0
    """Answers and rewards that the stream worker has not read."""


def look(settings: Settings, *, now_ms: int | None = None) -> LoopStatus:
    """Return the state of the loop now.

    Raises NotFoundError if a topic does not exist, LogError if the broker does not answer.
    """
    now_ms = times.now_ms() if now_ms is None else now_ms
    bounds = admin.offsets(settings, topics(settings.topics))
    positions = offsets.positions(settings)
    tasks = _newest_tasks(settings, bounds)
    named = {name for at in positions if (name := policy_in(at.group)) is not None}
    names = _named(settings, bounds, tasks) | named
    policies = {
        name: PolicyStatus(VersionRouter(name), Admission(settings.batches), LearningHistory(settings.batches.groups))
        for name in sorted(names or {settings.policy.name})
    }
    dropped: Counter[tuple[str, str, str]] = Counter()
    since_ms = now_ms - WINDOW_S * 1000
    versions = {name: AdapterFold(policy.state) for name, policy in policies.items()}
    for record, event in _events(settings, bounds, ["adapters", "batches"]):
        if isinstance(event, AdapterEvent) and event.policy in versions:
            versions[event.policy].take(event)
            policies[event.policy].note_moved(record.timestamp_ms)
        else:
            _take(policies, record, event, dropped, since_ms)
    for name, of_policy in versions.items():
        policies[name].router.adapters = of_policy.state()
    scored, paused, failures = _committed(SCORING, positions), dict[str, str](), ScoreFailures()
    lacking_scores = StalledGroups(settings.advantages)
    for record, event in _recent(settings, bounds, policies, since_ms):
        _take(policies, record, event, dropped, since_ms)
        if isinstance(event, DeadLetter) and record.timestamp_ms >= since_ms:
            failures.take_letter(event)
            lacking_scores.take_letter(event)
        elif isinstance(event, AdvantagedGroup):
            lacking_scores.take_group(event.task_id)
        if isinstance(event, DeadLetter) and event.reason == PAUSED_REASON:
            held = event.source_offset >= scored.get((event.source_topic, event.source_partition), 0)
            paused |= [paused_scorer(event)] if held else []
    scored_ms = None
    for record, event in _newest_events(settings, bounds, ["responses", "rewards"]):
        if isinstance(event, Response) and event.policy in policies:
            policies[event.policy].note_moved(record.timestamp_ms)
        elif isinstance(event, Reward):
            scored_ms = max(scored_ms or 0, record.timestamp_ms)
    for name, policy in policies.items():
        policy.stalled = lacking_scores.of(name)
    processes = [
        replace(process, is_held_up=_is_held_up(process, policies, scores=not paused and not failures.scorers()))
        for process in _processes(settings, policies, tasks, bounds, positions)
    ]
    return LoopStatus(
        [*processes, *_agents(settings, tasks, positions, now_ms)],
        policies,
        [DroppedCount(*what, count) for what, count in dropped.most_common()],
        list(paused.values()),
        failures.scorers(),
        admin.open_transactions(settings, LABELS),
        scored_ms,
        _lag(settings, ("responses", "rewards"), "streams", bounds, positions),
    )


def diagnoses(settings: Settings, status: LoopStatus) -> dict[str, Diagnosis]:
    """Return why policies learn nothing, by policy; those that learn, or have too few groups, are left out.

    Raises LogError if the broker does not answer.
    """
    errors = [scorer.last_error for scorer in status.failing]
    symptoms = {
        name: symptoms_of(
            policy.learning,
            answers=sample_answers(settings, policy.learning.flat_groups()),
            errors=errors,
            primary=policy.state.primary,
        )
        for name, policy in status.policies.items()
    }
    return {name: diagnose(of_policy) for name, of_policy in symptoms.items() if of_policy is not None}


def known_policies(settings: Settings) -> list[str]:
    """Return the policies that the log knows: of adapters, of batches, and of the newest tasks."""
    bounds = admin.offsets(settings, ["adapters", "batches", "tasks"])
    return sorted(_named(settings, bounds, _newest_tasks(settings, bounds)))


def _named(settings: Settings, bounds: Bounds, tasks: NewestTasks) -> set[str]:
    keys = _records(settings, bounds, ["adapters", "batches"])
    found = {(record.key or b"").decode(errors="replace") for record in keys}
    return (found | {task.policy for of_partition in tasks.values() for task in of_partition.values()}) - {""}


# --- reading ----------------------------------------------------------------------------------------------------------


def _records(settings: Settings, bounds: Bounds, labels: list[str]) -> Iterator[Record]:
    wanted = {topics(settings.topics)[label].name for label in labels}
    some = {tp: bound for tp, bound in bounds.items() if tp[0] in wanted}
    return read(settings, {tp: low for tp, (low, _) in some.items()}, {tp: high for tp, (_, high) in some.items()})


def _events(settings: Settings, bounds: Bounds, labels: list[str]) -> Iterator[tuple[Record, Event]]:
    kinds = {topic.name: topic.event for topic in topics(settings.topics).values()}
    for record in _records(settings, bounds, labels):
        event = record.decode(kinds[record.at.topic])
        if not isinstance(event, Poison):
            yield record, event


def _newest_events(settings: Settings, bounds: Bounds, labels: list[str]) -> Iterator[tuple[Record, Event]]:
    newest = {tp: (max(first, end - ANSWERS_READ), end) for tp, (first, end) in bounds.items()}
    return _events(settings, newest, labels)


def _newest_tasks(settings: Settings, bounds: Bounds) -> NewestTasks:
    name = topics(settings.topics)["tasks"].name
    starts = {tp: max(first, end - TASKS_READ) for tp, (first, end) in bounds.items() if tp[0] == name}
    found: dict[TopicPartition, dict[int, NewTask]] = {tp: {} for tp in starts}
    for record in read(settings, starts, {tp: bounds[tp][1] for tp in starts}):
        task = record.decode(Task)
        if isinstance(task, Task):
            found[record.at.topic, record.at.partition][record.at.offset] = NewTask(
                task.policy, task.agent, record.timestamp_ms
            )
    return found


def _recent(
    settings: Settings, bounds: Bounds, policies: Mapping[str, PolicyStatus], since_ms: int
) -> Iterator[tuple[Record, Event]]:
    """Yield the newest dead letters and those of the window, and the groups of the window or beyond the batches."""
    found = admin.offsets_at(settings, ["dead-letters", "groups"], max(0, since_ms))
    groups = topics(settings.topics)["groups"].name
    starts: dict[TopicPartition, tuple[int, int]] = {}
    for tp, at in found.items():
        first, end = bounds[tp]
        start = end if at < 0 else at
        if tp[0] == groups:
            mine = (one for one in policies.values() if partition_of(one.state.policy, _width(bounds, groups)) == tp[1])
            start = max(min([start, *(one.first_offset for one in mine)]), end - GROUPS_READ)
        else:
            start = min(start, end - LETTERS_READ)
        starts[tp] = (min(max(start, first), end), end)
    yield from _events(settings, starts, ["dead-letters", "groups"])


def _width(bounds: Bounds, topic: str) -> int:
    return sum(name == topic for name, _ in bounds)


def _take(
    policies: dict[str, PolicyStatus],
    record: Record,
    event: Event,
    dropped: Counter[tuple[str, str, str]],
    since_ms: int,
) -> None:
    """Fold one event into the status of its policy, and count drops within the window."""
    recent = record.timestamp_ms >= since_ms
    match event:
        case Batch(policy=name) if name in policies:
            policies[name].take_batch(event)
            policies[name].note(record.timestamp_ms)
            reasons = [left.reason for left in event.dropped if recent and left.reason in BATCH_REASONS]
            dropped.update(("group", "batches", reason) for reason in reasons)
        case AdvantagedGroup(policy=name):
            if name in policies:
                policies[name].note(record.timestamp_ms)
                policies[name].admission.group(event, record.at.offset)
                policies[name].learning.take(event)
            if recent and event.dropped_reason is not None:
                dropped["group", "advantages", event.dropped_reason] += 1
        case DeadLetter(stage=stage, reason=reason) if recent and stage != "dlq" and reason != PAUSED_REASON:
            # those of dlq are decisions about dead letters, and what a paused scorer should score is held
            dropped["record", stage, event.reason] += 1


# --- live processes, and what they wait for ---------------------------------------------------------------------------


def _processes(
    settings: Settings,
    policies: Mapping[str, PolicyStatus],
    tasks: NewestTasks,
    bounds: Bounds,
    positions: list[offsets.Position],
) -> Iterator[ProcessStatus]:
    wanted = [
        ("streams", None),
        ("scoring", None),
        *((kind, name) for kind in ("policy", "trainer") for name in policies),
    ]
    alive = offsets.members(settings)
    for kind, name in wanted:
        policy = None if name is None else policies[name]
        group = (
            kind
            if name is None
            else _serving(settings, GroupScope(stage=kind, fleet=settings.fleet, policy=name), alive)
        )
        if policy is not None and kind == "trainer":
            lag = policy.waiting_batches
        else:
            lag = _lag(settings, READS[kind], group, bounds, positions)
        if kind == "policy":
            lag -= _of_others(tasks, name, _committed(group, positions))
        members = tuple(alive.get(group, ()))
        says = _waits_for(kind, policy, lag, settings)
        yield ProcessStatus(kind, name, len(members), members, lag, says if members else _absent(kind, name, says))


def _serving(settings: Settings, own: GroupScope, alive: Mapping[str, list[str]]) -> str:
    """Return the group that serves a policy: its own, or that of the fleet in these settings if its own is dead."""
    if alive.get(own.group) or own.policy is None or not settings.fleet.serves(own.policy):
        return own.group
    fleets = filter(replace(own, policy=None).includes, alive)
    return max(fleets, key=lambda group: len(alive[group]), default=own.group)


def _lag(
    settings: Settings, labels: Iterable[str], group: str, bounds: Bounds, positions: list[offsets.Position]
) -> int:
    """Return how many records a group has not committed; a partition without a commit counts whole."""
    committed = _committed(group, positions)
    names = {topics(settings.topics)[label].name for label in labels}
    return sum(
        max(0, end - max(first, committed.get(tp, first))) for tp, (first, end) in bounds.items() if tp[0] in names
    )


def _of_others(tasks: NewestTasks, policy: str | None, committed: Mapping[TopicPartition, int]) -> int:
    """Return how many of the newest tasks that are not committed are of other policies, or of agents."""
    return sum(
        (task.policy != policy or task.agent is not None) and offset >= committed.get(tp, 0)
        for tp, of_partition in tasks.items()
        for offset, task in of_partition.items()
    )


def _agents(
    settings: Settings, tasks: NewestTasks, positions: list[offsets.Position], now_ms: int
) -> Iterator[ProcessStatus]:
    """Yield what runs each agent for each policy that the newest tasks name, or that a process runs."""
    alive = offsets.members(settings)
    named = {(task.agent, task.policy) for partition in tasks.values() for task in partition.values() if task.agent}
    run = {(pair[0], pair[1]) for group in alive if (pair := agent_in(group)) is not None and pair[1] is not None}
    for name, policy in sorted(named | run):
        group = _serving(settings, GroupScope(stage="agents", fleet=settings.fleet, policy=policy, agent=name), alive)
        committed, members = _committed(group, positions), tuple(alive.get(group, ()))
        waiting = [
            task.timestamp_ms
            for tp, of_partition in tasks.items()
            for offset, task in of_partition.items()
            if (task.agent, task.policy) == (name, policy) and offset >= committed.get(tp, 0)
        ]
        oldest_s = max(0.0, (now_ms - min(waiting, default=now_ms)) / 1000)
        says = f"{len(waiting)} tasks to run, the oldest for {duration(oldest_s)}" if waiting else "waits for tasks"
        if not members:
            says = f"nobody: start {start_command('agents', policy, name)} ({says})"
        yield ProcessStatus("agents", policy, len(members), members, len(waiting), says, name, oldest_s)


def duration(seconds: float) -> str:
    """Return a time in the largest of h, min and s that it has."""
    unit, name = next(((size, name) for size, name in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s"))
    return f"{seconds / unit:.0f} {name}"


def _committed(group: str, positions: list[offsets.Position]) -> dict[TopicPartition, int]:
    return {(at.topic, at.partition): at.committed for at in positions if at.group == group}


def _is_held_up(process: ProcessStatus, policies: Mapping[str, PolicyStatus], *, scores: bool) -> bool:
    if process.process == "trainer":
        return not process.lag and bool(policies[process.policy or ""].stalled)
    return process.process == "scoring" and not scores


def _absent(kind: str, policy: str | None, says: str) -> str:
    return f"nobody: start {start_command(kind, policy)} ({says})"


def start_command(kind: str, policy: str | None, agent: str | None = None) -> str:
    """Return the command, in backticks, that starts a process of the loop for a policy, and for an agent."""
    words = ["streamward", *(() if policy in (None, "default") else ("--set", f"policy.name={policy}"))]
    if agent is None:
        return f"`{shlex.join([*words, COMMANDS[kind]])}`"
    of_agent = "--environments`" if agent == ENVIRONMENT_AGENT else f"{shlex.quote(agent)} ...`"
    return f"`{shlex.join([*words, 'agents', 'run'])} {of_agent}"


def _waits_for(kind: str, policy: PolicyStatus | None, lag: int, settings: Settings) -> str:
    """Return what a process has to do or waits for."""
    if kind == "streams":
        return f"{lag} records to read" if lag else "waits for tasks, responses and rewards"
    if kind == "scoring":
        return f"{lag} responses to score" if lag else "waits for responses"
    assert policy is not None  # noqa: S101 - the other kinds work for one
    admission = policy.admission
    if kind == "trainer":
        if lag:
            return f"{lag} batches to train"
        groups = settings.batches.groups
        return batch_text(admission.sequence, admission.pending, groups, policy.newest_ms, policy.stalled)
    if not lag:
        return "waits for tasks"
    held = waits_for(policy.router, admission, policy.state.primary)
    return f"up to {lag} tasks to answer" if held is None else f"held back: up to {lag} tasks wait for {held}"
