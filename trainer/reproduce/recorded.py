"""What the log says of versions, and how they are made again.

adapters: trained ──► recorded_events: the one that counts ──► RecordedSetup: settings, threads and base as recorded
ReproductionPlan ──► its steps: trainer/reproduce/retrain.py for a batch, else a Remake ──► ReproducedVersion
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from schemas.events import AdapterEvent, AdapterFile, Batch, Coordinates, Tuning
from schemas.serde import Poison
from streams.adapters.versions import AdapterFold, Version, empty
from streams.engines.base_model import Base, check_device, load_base
from streams.errors import SettingsError
from streams.kafka.history import History
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.step.recipe import RecipeDifference, as_recorded, threads_of
from trainer.versions.checkpoint import State


class RemadeVersion(NamedTuple):
    """What a version was made of here. Its adapter is in the folder of the version."""

    made_from: str
    """As one reads it: 12 examples."""
    recipe: Mapping[str, str]
    """Settings and libraries here, as the recipe in its event names them."""
    data: Sequence[RecipeDifference] = ()
    """What else is not as recorded."""
    tuning: Tuning | None = None
    """What it was tuned on here; None: it was not tuned."""
    metrics: Mapping[str, float] = MappingProxyType({})


class Remake(ABC):
    """Makes versions of one kind again that no batch made. A plugin declares it (`Plugin.remakes`).

    Each reproduction has one of its own, so that it can keep a model from version to version.
    """

    def __init__(self, settings: Settings, history: History, files: Mapping[str, Path]) -> None:
        """`files`: those of --file, by sha256."""
        self._settings, self._history, self._files = settings, history, files

    @classmethod
    @abstractmethod
    def makes(cls, event: AdapterEvent) -> bool:
        """Return whether the version of this event is of its kind."""

    @abstractmethod
    def check(self, event: AdapterEvent, *, start: int) -> None:
        """Raise RefusedError if something is missing, SettingsError if it cannot be made from version `start`."""

    @abstractmethod
    def remake(self, event: AdapterEvent, setup: RecordedSetup, folder: Path, previous: Path | None) -> RemadeVersion:
        """Make the adapter of a version in `folder`, which is created.

        `previous` has the adapter that it starts from, if that was made just before.

        Raises NotFoundError, RefusedError, SettingsError.
        """


class PlannedStep(NamedTuple):
    """A version to reproduce from that of the step before."""

    event: AdapterEvent
    """The recorded event."""
    at: Coordinates | None = None
    batch: Batch | None = None
    """The batch that made it; None: `remake` makes it."""
    remake: Remake | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionPlan:
    """The versions to reproduce, and their complete sources."""

    policy: str
    start: int
    """The version to start from; 0 is the base."""
    version: int
    """The last one."""
    events: dict[int, AdapterEvent]
    """The recorded event of each version."""
    steps: tuple[PlannedStep, ...]
    """The versions from `start` to `version`, each made from the one before it."""
    checkpoint: tuple[Path, State] | None = None
    """Checkpoint of the version to start from, if a batch follows it."""
    adopted: Version | None = None
    """The version to start from, if a batch follows it and none made it: its files are in the store."""

    @property
    def batches(self) -> tuple[tuple[Coordinates, Batch], ...]:
        """The batches to train on, in sequence."""
        return tuple((step.at, step.batch) for step in self.steps if step.at is not None and step.batch is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedVersion:
    """A version that was trained again."""

    version: int
    made_from: str
    """The batch and its groups, or what a Remake says."""
    recorded: tuple[AdapterFile, ...] | None
    """None if the log has no such version."""
    reproduced: tuple[AdapterFile, ...]
    differences: tuple[RecipeDifference, ...]
    """Empty if equal; else files, data and recipe that differ, each with the version where it was first seen."""
    other_recipe: tuple[RecipeDifference, ...]
    """Entries of the recipe that differ, even if the bytes do not."""
    seconds: float
    """Seconds from reading the records to the digests; for the first version including loading the model."""

    @property
    def equal(self) -> bool:
        """Whether every file is as recorded."""
        return not self.differences


def recorded_events(settings: Settings, policy: str, history: History) -> dict[int, AdapterEvent]:
    """Return by version the event that says how it was trained: the first one counts, as in
    `streams.adapters.versions`.

    Raises LogError if the log cannot be read.
    """
    tp = (topics(settings.topics)["adapters"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["adapters"]).get(tp, (0, 0))
    after, events = AdapterFold(empty(policy)), {}
    for record in history.read({tp: first}, {tp: end}):
        event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
        if isinstance(event, Poison):
            continue
        if after.take(event) and event.kind == "trained":
            events[event.version] = event
    return events


def taken_batches(events: Mapping[int, AdapterEvent], version: int) -> int:
    """Return how many batches a policy had taken by a version; see `Version.trained_batches`."""
    return sum(event.takes_batch for number, event in events.items() if number <= version)


class RecordedSetup:
    """Settings and base model as recorded, where they are available here."""

    def __init__(self, settings: Settings, changed: frozenset[str]) -> None:
        """`changed` names keys of model and trainer to take from `settings` instead of the recipes."""
        self._settings, self._changed = settings, changed

    def settings_of(self, event: AdapterEvent) -> tuple[Settings, int]:
        """Return the settings of a version's recipe, with this machine's device, and its threads.

        Raises SettingsError as `as_recorded`.
        """
        used = self._on_a_device(as_recorded(self._settings, event.recipe, self._changed - {"model.base"}))
        return used, threads_of(used, event.recipe, self._changed)

    def _on_a_device(self, used: Settings) -> Settings:
        """Return the settings with the recorded device, or with the configured one if that cannot be used here."""
        try:
            check_device(used.model.device)
        except SettingsError:
            device = self._settings.model.device
            return used.model_copy(update={"model": used.model.model_copy(update={"device": device})})
        return used

    def base(self, used: Settings, event: AdapterEvent) -> Base:
        """Return the model that was trained, by its digests: from the place in the recipe, or from that in the
        settings.

        Raises SettingsError if neither is that model.
        """
        recorded_base, configured = used.model.base, self._settings.model.base
        wrong = []
        for name in [configured] if "model.base" in self._changed else dict.fromkeys([recorded_base, configured]):
            try:
                base = load_base(used.model.model_copy(update={"base": name}))
            except SettingsError as exc:
                wrong.append(str(exc))
                continue
            for entry in ("base_digest", "tokenizer_digest"):
                digest, expected = getattr(base, entry), event.recipe.get(entry, getattr(base, entry))
                if digest != expected:
                    wrong.append(f"model.base={name} has {entry} {digest[:12]}, expected {expected[:12]}")
                    break
            else:
                return base
        raise SettingsError(
            f"version {event.version} was trained on model.base={recorded_base}, which is not here: "
            f"{'; '.join(wrong)}. Name its folder: --set model.base=FOLDER"
        )
