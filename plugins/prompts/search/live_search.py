"""Compare versions of a prompt live: each gets a share of an alias's users, and their rewards decide.

    alias ──► shared among the version in use and the others ──► tasks that name it, each with its thread's version
    tasks, groups ──► one reward a thread, by version ──► halving.next_step ──► shared among fewer, or the verdict

It decides like a search on given questions, with the n-th thread of each version in place of the n-th question. A hash
of the thread chooses its version, so the n-th rewards of two equally good versions have the same mean, and the evidence
may be looked at after each. A thread counts once, by its first group: all of its tasks have the same version.

Not covered: rated calls of /v1. They are shared in the same way, and are in view `prompt_rewards`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from plugins.jobs.fold.state import JobState
from plugins.prompts.search.halving import Ask, SearchPlan, SearchVerdict, next_step
from plugins.prompts.search.search_tasks import score_of
from plugins.prompts.versions.prompt_log import PromptLog, event_of
from schemas.events import AdvantagedGroup, PromptArm, PromptSearch, Task
from schemas.serde import Poison
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.history import LogHistory
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings


class LiveTask(NamedTuple):
    """A task of the comparison."""

    version: int
    unit: str
    """Its thread, or itself."""


class LiveAnswers:
    """What the threads of a comparison earned, followed in the log."""

    def __init__(self, settings: Settings, job: JobState, search: PromptSearch, since_ms: int) -> None:
        self._settings, self._policy, self._search, self._since_ms = settings, job.policy, search, since_ms
        self._history = LogHistory(settings)
        self._positions: dict[TopicPartition, int] = {}
        self._tasks: dict[str, LiveTask] = {}
        self._units: set[str] = set()
        self._counts: Counter[int] = Counter()
        self.rewards: dict[Ask, float | None] = {}
        """By version and the number of its thread, in the order of the groups."""

    def read(self) -> None:
        """Take in what was written since the last time. Raises LogError."""
        groups = topics(self._settings.topics)["groups"].name
        partition = (groups, partition_of(self._policy, self._settings.topics.policy_partitions))
        of_groups = {partition: self._history.bounds(["groups"])[partition]}
        of_tasks = self._history.bounds(["tasks"])  # later: the task of every group up to there is before it
        for record in self._new_records(of_tasks):
            self._take_task(record)
        for record in self._new_records(of_groups):
            self._take_group(record)

    def _new_records(self, bounds: dict[TopicPartition, tuple[int, int]]) -> Sequence[Record]:
        starts = {place: max(first, self._positions.get(place, 0)) for place, (first, _) in bounds.items()}
        ends = {place: max(end, starts[place]) for place, (_, end) in bounds.items()}
        records = list(self._history.read(starts, ends))
        self._positions |= ends
        return records

    def _take_task(self, record: Record) -> None:
        if record.payload is None or self._search.prompt.encode() not in record.payload:  # most need no decoding
            return
        task = record.decode(Task)
        if isinstance(task, Poison) or task.policy != self._policy or task.created_at < self._since_ms:
            return
        use = task.prompt_version
        if use is not None and (use.name, use.alias) == (self._search.prompt, self._search.alias):
            self._tasks.setdefault(task.task_id, LiveTask(use.version, task.thread or task.task_id))

    def _take_group(self, record: Record) -> None:
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison) or (task := self._tasks.get(group.task_id)) is None or task.unit in self._units:
            return
        self._units.add(task.unit)
        self.rewards[Ask(task.version, self._counts[task.version])] = score_of(group).reward
        self._counts[task.version] += 1


class LiveSearch:
    """One comparison, looked at again and again."""

    def __init__(self, settings: Settings, prompts: PromptLog, job: JobState, search: PromptSearch, actor: str) -> None:
        """Share the alias among all versions, unless the comparison has begun before. Raises EventError, LogError."""
        self._prompts, self._job, self._search, self._actor = prompts, job, search, actor
        self._plan = SearchPlan(search.versions, tuple(range(search.max_answers)), search.max_answers, search.alpha)
        while job.job_id not in prompts.get(search.prompt).shared_at:
            self._share(search.versions)
        self._answers = LiveAnswers(settings, job, search, prompts.get(search.prompt).shared_at[job.job_id])

    @property
    def answers(self) -> int:
        """How many threads have earned something, or failed, by now."""
        return len(self._answers.rewards)

    def look(self) -> SearchVerdict | None:
        """Read the rewards since the last look, and return the verdict once there is one. Raises LogError."""
        self._answers.read()
        step = next_step(self._plan, self._answers.rewards)
        if isinstance(step, SearchVerdict):
            return step
        self._share(step.arms)
        return None

    def _share(self, versions: Sequence[int]) -> None:
        """Share the alias among these versions, if it is not."""
        search, state = self._search, self._prompts.get(self._search.prompt)
        target = state.aliases.get(search.alias or "")
        if target is None:
            raise EventError(
                f"prompt {search.prompt} has no alias {search.alias}; let it mean the version in use first"
            )
        if target.event.job_id == self._job.job_id and [arm.version for arm in target.arms] == list(versions):
            return
        left = "" if len(versions) == len(search.versions) else f" of {len(search.versions)}"
        event = event_of(
            state,
            "shared",
            actor=self._actor,
            reason=f"{len(versions)}{left} versions are compared live",
            now_ms=times.now_ms(),
        )
        arms = arms_of(search, versions)
        self._prompts.append(replace(event, alias=search.alias, job_id=self._job.job_id, arms=arms))


def arms_of(search: PromptSearch, versions: Sequence[int]) -> tuple[PromptArm, ...]:
    """Return the shares of the versions that are left: in the proportions that all of them began with.

    >>> search = PromptSearch(prompt="p", method="live", max_answers=9, alpha=0.05, share=0.2, versions=(1, 2, 3))
    >>> [round(arm.share, 3) for arm in arms_of(search, (1, 2, 3))]
    [0.8, 0.1, 0.1]
    >>> [round(arm.share, 3) for arm in arms_of(search, (1, 3))]
    [0.889, 0.111]
    """
    others = len(search.versions) - 1
    share = others / (others + 1) if search.share is None else search.share
    weights = {version: share / others for version in versions} | {search.versions[0]: 1 - share}
    whole = sum(weights.values())
    return tuple(PromptArm(version=version, share=weights[version] / whole) for version in versions)
