"""The versions that learnt from persons, those that descend from them, and whether each can be trained again exactly.

    groups of the persons ──► tunings and batches with them ──► learnt ──┐
    versions ──► groups that they sampled, versions made from them ──────┴──► descends ──► cost, and a way to do without

It needs no key: an erased person's groups say in clear that they were theirs. A version can be trained again exactly if
no example that is left was sampled by weights that had learnt from the persons: then a log without them has the same.

Not covered: policies that a listed version was imported into, data sets and files with a person's words, copies outside
the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from schemas.conventions import trained_elsewhere
from schemas.events import AdapterEvent, AdvantagedGroup, Batch
from schemas.serde import Poison
from streams.kafka.admin import read_topic
from streams.settings.model import Settings

INSTEAD_OF = "instead_of"
"""Metadata of a version: that of its policy which it replaces, trained again without the examples of erased persons."""
ROLLOUTS = ("canary_started", "promoted", "rolled_back")
BATCHES: Literal["batches"] = "batches"
TUNING: Literal["tuning"] = "tuning"


class PolicyVersion(NamedTuple):
    """A version of a policy; 0 is the base model."""

    policy: str
    version: int


class GroupOffset(NamedTuple):
    """Where a group is, in its topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntVersion:
    """A version with something of the persons in it."""

    event: AdapterEvent
    how: Literal["learnt", "descends"]
    """learnt: groups of the persons were trained on; descends: only by the weights that it was made from, or that
    sampled its groups."""
    groups: int
    """Of the persons, that it was trained on itself."""
    is_replaced: bool
    """Whether a version was trained again in its place."""
    way: Literal["batches", "tuning"] | None
    """How it can be trained again so that its bytes are those of a log without the persons; None: it cannot."""
    why: str
    """If it cannot be trained again so, or need not be: the reason."""
    rollouts: int
    """How often it was deployed."""

    @property
    def name(self) -> PolicyVersion:
        """Its policy and number."""
        return PolicyVersion(self.event.policy, self.event.version)

    @property
    def tokens(self) -> int:
        """How many tokens its training read."""
        return int(self.event.metrics.get("tokens", 0) + self.event.metrics.get("context_tokens", 0))

    @property
    def trainer_s(self) -> float:
        """Seconds of the trainer."""
        return round(self.event.metrics.get("step_s", 0.0) + self.event.metrics.get("tune_s", 0.0), 3)


class LearntVersions:
    """The versions that learnt from some persons."""

    def __init__(self, settings: Settings, persons: Set[str]) -> None:
        """Raises LogError."""
        self.persons = persons
        self.own: set[GroupOffset] = set()
        """Groups of the persons."""
        self._sampled_by: dict[GroupOffset, PolicyVersion] = {}
        for record in read_topic(settings, "groups"):
            group = record.decode_closed(AdvantagedGroup)
            if not isinstance(group, Poison):
                place = GroupOffset(record.at.partition, record.at.offset)
                self._sampled_by[place] = PolicyVersion(group.policy, group.adapter_version)
                if group.subject in persons:
                    self.own.add(place)
        self.batches = _batches(settings)
        """The first batch of each sequence, by policy and sequence."""
        events = [
            event
            for record in read_topic(settings, "adapters")
            if not isinstance(event := record.decode(AdapterEvent), Poison)
        ]
        self._rollouts = Counter(
            PolicyVersion(event.policy, event.version) for event in events if event.kind in ROLLOUTS
        )
        trained: dict[PolicyVersion, AdapterEvent] = {}
        for event in events:
            if event.kind == "trained":
                trained.setdefault(PolicyVersion(event.policy, event.version), event)
        self.trained = trained
        self.replaced: dict[PolicyVersion, PolicyVersion] = {}
        """The version that was trained again in the place of another."""
        for name, event in trained.items():
            if (old := event.metadata.get(INSTEAD_OF, "")).isdecimal():
                self.replaced.setdefault(PolicyVersion(name.policy, int(old)), name)
        self.versions: dict[PolicyVersion, LearntVersion] = {}
        for event in sorted(trained.values(), key=lambda event: (event.created_at, event.version)):
            if (version := self._version(event)) is not None:
                self.versions[version.name] = version

    def depends_on_them(self, event: AdapterEvent, places: Iterable[GroupOffset]) -> bool:
        """Return whether any of these groups, for the step of this event, may have learnt from the persons.

        Where another run sampled them, only what its base model said is known to be without.
        """
        if event.recipe.get("trainer.off_policy") == "True":
            return any(self._sampled_by[place].version for place in places if place not in self.own)
        return bool(self._count_of_theirs(places))

    def _count_of_theirs(self, places: Iterable[GroupOffset]) -> int:
        return sum(self._sampled_by.get(place) in self.versions for place in places if place not in self.own)

    def replacement(self, name: PolicyVersion) -> PolicyVersion:
        """Return the version to start from in place of another."""
        while name in self.replaced:
            name = self.replaced[name]
        return name

    def _version(self, event: AdapterEvent) -> LearntVersion | None:
        """Return what an event's version has of the persons; None: nothing."""
        name, places = PolicyVersion(event.policy, event.version), list(self._places(event))
        groups, sampled = sum(place in self.own for place in places), self._count_of_theirs(places)
        if not groups and not sampled and parent_of(event) not in self.versions:
            return None
        why = self._why_not(event, len(places), sampled)
        return LearntVersion(
            event=event,
            how="learnt" if groups else "descends",
            groups=groups,
            is_replaced=name in self.replaced,
            way=None if why else TUNING if event.tuning is not None else BATCHES,
            why=why,
            rollouts=self._rollouts[name],
        )

    def _places(self, event: AdapterEvent) -> Iterator[GroupOffset]:
        """Yield the groups that a version was trained on."""
        if (tuning := event.tuning) is not None:
            yield from (GroupOffset(tuning.groups_partition or 0, group.offset) for group in tuning.groups)
        elif event.last_batch is not None and (batch := self.batches.get((event.policy, event.last_batch))) is not None:
            yield from places_of(batch)

    def _why_not(self, event: AdapterEvent, groups: int, sampled: int) -> str:
        """Return why a version is not trained again exactly; empty if it can be."""
        if (by := self.replaced.get(PolicyVersion(event.policy, event.version))) is not None:
            return f"version {by.version} is in its place"
        if sampled:
            return f"{sampled} of {groups} groups were sampled by such versions"
        parent = self.versions.get(parent_of(event))
        if event.tuning is not None:
            if parent is not None and not parent.is_replaced and parent.way != TUNING:
                return f"it was made from version {parent.name.version} of {parent.name.policy}"
            return "" if event.tuning.groups else "its file or data set has to be made without them"
        if event.last_batch is None or trained_elsewhere(event.recipe) is not None:
            return "it was made elsewhere, or of calls"
        if parent is not None and parent.way != BATCHES:
            return f"it was made from version {parent.name.version}"
        return "versions of another run sampled its groups" if self.depends_on_them(event, self._places(event)) else ""


def parent_of(event: AdapterEvent) -> PolicyVersion:
    """Return the version that another was made from."""
    if (tuning := event.tuning) is not None:
        return PolicyVersion(tuning.start_policy or event.policy, tuning.start_version)
    return PolicyVersion(event.policy, event.version - 1 if event.parent_version is None else event.parent_version)


def places_of(batch: Batch) -> Iterator[GroupOffset]:
    """Yield the groups of a batch."""
    return (GroupOffset(batch.groups_partition, offset) for offset in batch.groups_offsets)


def _batches(settings: Settings) -> dict[tuple[str, int], Batch]:
    batches: dict[tuple[str, int], Batch] = {}
    for record in read_topic(settings, "batches"):
        if not isinstance(batch := record.decode(Batch), Poison):
            batches.setdefault((batch.policy, batch.sequence), batch)
    return batches
