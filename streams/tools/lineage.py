"""The lineage of an adapter version: each step to it, and every record that went into it.

    version ─► parent ─► ... ─► base            adapters
      └─ batches ─► groups, by offset ─► responses, by offset; tasks and rewards, by task id ──► Step

A step is a version, its parent, and the batch between them, or what it was tuned on: groups, by
offset, and the responses chosen of them, or a file. Its sources are the groups of these batches, the responses with an
advantage there, their tasks and their rewards; the first record of an id counts, as everywhere. Groups have the
coordinates of their responses; tasks and rewards are found by key in the partitions of the same number.

Not covered: records left out of a group or a batch (`streamward query` has them), and groups that a trainer refused,
which are in its dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from schemas.conventions import IMPORTED
from schemas.events import AdvantagedGroup, Batch, Coordinates, Reward, Tuning
from streams.adapters.decisions import AdapterHistory, find_version
from streams.adapters.versions import weights_of
from streams.errors import LogError
from streams.kafka.history import History
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition that went into a step."""

    topic: str
    partition: int
    first: int
    last: int
    count: int
    """How many of the offsets from first to last."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.first}-{self.last} ({self.count})"


@dataclass(frozen=True, slots=True)
class LineageStep:
    """A version, and what made it from its parent."""

    version: int
    parent: int | None
    """None: it was tuned from a version of another policy."""
    status: str
    trained_at: Coordinates
    first_batch: int | None
    last_batch: int | None
    made_of: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    """By topic label: batches, groups, responses, rewards, tasks."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Numbers of tasks, and of responses with rewards, that retention has deleted."""
    tuning: Tuning | None = None
    """What it was tuned on; None: batches."""
    imported: Mapping[str, str] = field(default_factory=dict)
    """Who trained it, from its recipe, if that was elsewhere; its batches are those it replaces."""

    def plain(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            "version": self.version,
            "parent_version": self.parent,
            "status": self.status,
            "trained": str(self.trained_at),
            "first_batch": self.first_batch,
            "last_batch": self.last_batch,
            "made_of": {label: [asdict(one) for one in found] for label, found in self.made_of.items()},
            "missing": dict(self.missing),
            "tuned": None if self.tuning is None else _tuned(self.tuning),
            "imported": {name.removeprefix(IMPORTED): text for name, text in self.imported.items()} or None,
        }


def parents(life: AdapterHistory, version: int) -> list[int]:
    """Return a version and its ancestors, down to the base model, that the log names. Raises NotFoundError."""
    find_version(life.state, version)
    chain = [version]
    while chain[-1] != 0:
        parent = life.state.versions[chain[-1]].parent_version
        if parent is None or parent not in life.state.versions or parent in chain:
            break
        chain.append(weights_of(life.state.versions, parent).version)
    return chain


def steps(
    settings: Settings, life: AdapterHistory, version: int, history: History, *, last: int | None = None
) -> list[LineageStep]:
    """Return the steps to `version`, the newest first; of these the `last` ones, or all.

    Raises NotFoundError without such a version, LogError if a record that went into it is gone.
    """
    chain = parents(life, version)
    pairs: list[tuple[int, int | None]] = list(pairwise(chain))
    if (first_made := life.trained_event(chain[-1])) is not None and first_made.tuning is not None:
        pairs.append((chain[-1], None))
    pairs = pairs[:last]
    if not pairs:
        return []
    ranges = {number: range(0) if parent is None else _batches_of(life, number, parent) for number, parent in pairs}
    wanted = {sequence for found in ranges.values() for sequence in found}
    batches = _batches(settings, history, life.state.policy, wanted)
    sources = _Sources(settings, history, batches)
    made = []
    for number, parent in pairs:
        at, _ = life.trained[number]
        found = ranges[number]
        missing = [sequence for sequence in found if sequence not in batches]
        if missing:
            raise LogError(
                f"version {number} of {life.state.policy} was trained on batch {missing[0]}, which is not in "
                f"{topics(settings.topics)['batches'].name}: retention has deleted it. Restore the archive, or ask for "
                "fewer --steps"
            )
        first, end = (found[0], found[-1]) if found else (None, None)
        status = life.state.versions[number].status
        tuning, recipe = life.trained[number][1].tuning, life.trained[number][1].recipe
        imported = {name: text for name, text in recipe.items() if name.startswith(IMPORTED)}
        of = sources.of(found) if tuning is None else {"groups": _groups_of(settings, tuning)}
        made.append(LineageStep(number, parent, status, at, first, end, of, sources.missing(found), tuning, imported))
    return made


def _groups_of(settings: Settings, tuning: Tuning) -> tuple[Range, ...]:
    name, partition = topics(settings.topics)["groups"].name, tuning.groups_partition or 0
    return _ranges(Coordinates(name, partition, group.offset) for group in tuning.groups)


def _tuned(tuning: Tuning) -> dict[str, Any]:
    """Return what a version was tuned on, without its groups, ready for JSON."""
    plain = asdict(tuning)
    del plain["groups"]
    return plain


def _batches_of(life: AdapterHistory, number: int, parent: int) -> range:
    """Return the batches between a version and its parent; none if it was tuned."""
    version, before = life.state.versions[number], life.state.versions[parent]
    return range(0) if version.last_batch is None else range(before.trained_batches, version.last_batch + 1)


def _batches(
    settings: Settings, history: History, policy: str, wanted: set[int]
) -> dict[int, tuple[Coordinates, Batch]]:
    """Return the first record of each of these batches."""
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    found: dict[int, tuple[Coordinates, Batch]] = {}
    for record in _whole(history, ["batches"], {tp}):
        batch = record.decode(Batch)
        if isinstance(batch, Batch) and batch.policy == policy and batch.sequence in wanted:
            found.setdefault(batch.sequence, (record.at, batch))
    return found


def _whole(history: History, labels: Iterable[str], of: set[TopicPartition]) -> Iterable[Any]:
    bounds = {tp: bound for tp, bound in history.bounds(labels).items() if tp in of}
    return history.read({tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()})


class _Sources:
    """The records that went into batches, by batch."""

    def __init__(self, settings: Settings, history: History, batches: Mapping[int, tuple[Coordinates, Batch]]) -> None:
        named = topics(settings.topics)
        self._batches = batches
        where = {
            sequence: [
                Coordinates(named["groups"].name, batch.groups_partition, offset) for offset in batch.groups_offsets
            ]
            for sequence, (_, batch) in batches.items()
        }
        records = history.fetch({at for found in where.values() for at in found})
        self._groups: dict[int, list[tuple[Coordinates, AdvantagedGroup]]] = {}
        for sequence, found in where.items():
            decoded = [(at, records[at].decode(AdvantagedGroup)) for at in found]
            self._groups[sequence] = [(at, group) for at, group in decoded if isinstance(group, AdvantagedGroup)]
        self._responses = named["responses"].name
        every = [group for found in self._groups.values() for _, group in found]
        self._tasks, self._rewards = self._by_task(settings, history, every)

    def _by_task(
        self, settings: Settings, history: History, groups: Iterable[AdvantagedGroup]
    ) -> tuple[dict[str, Coordinates], dict[str, list[Coordinates]]]:
        """Return the coordinates of each task, and of the rewards of each response."""
        named = topics(settings.topics)
        task_ids = {group.task_id.encode() for group in groups}
        responses = {response.response_id for group in groups for response in group.responses}
        partitions = {response.partition for group in groups for response in group.responses}
        of = {(named[label].name, partition) for label in ("tasks", "rewards") for partition in partitions}
        tasks: dict[str, Coordinates] = {}
        rewards: dict[str, list[Coordinates]] = {}
        seen: set[str] = set()
        for record in _whole(history, ["tasks", "rewards"], of):
            if record.key not in task_ids:
                continue
            if record.at.topic == named["tasks"].name:
                tasks.setdefault(record.key.decode(), record.at)
                continue
            reward = record.decode(Reward)
            if isinstance(reward, Reward) and reward.response_id in responses and reward.reward_id not in seen:
                seen.add(reward.reward_id)
                rewards.setdefault(reward.response_id, []).append(record.at)
        return tasks, rewards

    def of(self, sequences: Iterable[int]) -> dict[str, tuple[Range, ...]]:
        """Return what went into these batches, by topic label."""
        sequences = list(sequences)
        groups = self._groups_of(sequences)
        responses = [response for _, group in groups for response in group.responses]
        return {
            "batches": _ranges(self._batches[sequence][0] for sequence in sequences),
            "groups": _ranges(at for at, _ in groups),
            "responses": _ranges(Coordinates(self._responses, one.partition, one.offset) for one in responses),
            "rewards": _ranges(at for one in responses for at in self._rewards.get(one.response_id, ())),
            "tasks": _ranges(self._tasks[group.task_id] for _, group in groups if group.task_id in self._tasks),
        }

    def missing(self, sequences: Iterable[int]) -> dict[str, int]:
        """Return how many tasks, and how many responses' rewards, were not found."""
        groups = [group for _, group in self._groups_of(sequences)]
        tasks = sum(group.task_id not in self._tasks for group in groups)
        rewards = sum(one.response_id not in self._rewards for group in groups for one in group.responses)
        return {label: count for label, count in (("tasks", tasks), ("rewards", rewards)) if count}

    def _groups_of(self, sequences: Iterable[int]) -> list[tuple[Coordinates, AdvantagedGroup]]:
        return [found for sequence in sequences for found in self._groups[sequence]]


def _ranges(where: Iterable[Coordinates]) -> tuple[Range, ...]:
    """Return coordinates by partition, each partition as one range.

    >>> [str(one) for one in _ranges([Coordinates("t", 1, 9), Coordinates("t", 0, 2), Coordinates("t", 1, 4)])]
    ['t[0] 2-2 (1)', 't[1] 4-9 (2)']
    """
    by_partition: dict[TopicPartition, set[int]] = {}
    for at in where:
        by_partition.setdefault((at.topic, at.partition), set()).add(at.offset)
    return tuple(Range(*tp, min(found), max(found), len(found)) for tp, found in sorted(by_partition.items()))


# --- two versions compared --------------------------------------------------------------------------------------------


def difference(life: AdapterHistory, one: int, other: int) -> dict[str, Any]:
    """Return what differs between two versions: recipe, metrics, scores, files, and the batches between them.

    Of a recipe only differences are listed. Raises NotFoundError if one of the versions does not exist.
    """
    versions = find_version(life.state, one), find_version(life.state, other)
    events = [life.trained_event(version.version) for version in versions]
    recipes = [dict(event.recipe) if event is not None else {} for event in events]
    files = [{file.path: file for file in version.files} for version in versions]
    low, high = sorted(versions, key=lambda version: version.version)
    common = sorted(set(parents(life, one)) & set(parents(life, other)))
    between = None
    chain = parents(life, high.version)
    if low.version in chain:
        after = (life.state.versions[number] for number in chain[: chain.index(low.version)])
        found = sorted(version.last_batch for version in after if version.last_batch is not None)
        between = {"first": found[0], "last": found[-1], "count": len(found)} if found else None
    return {
        "versions": [one, other],
        "common_parent": common[-1] if common else None,
        "batches_between": between,
        "recipe": _beside(*recipes, only_differing=True),
        "metrics": _beside(*(dict(version.metrics) for version in versions)),
        "held_out": {
            suite: _beside(*(dict(version.evaluated.get(suite, {})) for version in versions))
            for suite in sorted({*versions[0].evaluated, *versions[1].evaluated})
        },
        "base_digest": [version.base_digest for version in versions],
        "files": {
            path: {
                "bytes": [found[path].bytes if path in found else None for found in files],
                "sha256": [found[path].sha256 if path in found else None for found in files],
                "same": all(path in found for found in files) and files[0][path].sha256 == files[1][path].sha256,
            }
            for path in sorted({*files[0], *files[1]})
        },
    }


def _beside(one: Mapping[str, Any], other: Mapping[str, Any], *, only_differing: bool = False) -> dict[str, list[Any]]:
    """Return name -> [value here, value there]; None where there is none."""
    names = sorted({*one, *other})
    pairs = {name: [one.get(name), other.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if not only_differing or pair[0] != pair[1]}
