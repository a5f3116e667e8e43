"""Train versions again from what the log recorded, and compare them byte for byte.

    adapters: trained ──► recipe, manifest ─┐
    batches, groups ────────────────────────┴─► plan ──► the base, or a checkpoint ──► step ──► sha256 against the log
                                                                                         ▲          │ equal: the next
                                                                                         └──────────┴ not: what, and why

Every version on the way is compared, and the first that differs is the last: later ones could not be equal. The recipe
is the one in each version's event, not this machine's settings. Where it changes between two versions, training
continues as it does for a trainer restarted with other settings: adapter, optimizer state and RNG are carried over
through a checkpoint. Tuned versions are made again by trainer/reproduce/tuned.py. One that was trained elsewhere
cannot be made again; later versions that were trained here can, from its files in the store.

It only reads: nothing is written to the log or committed, and no group is joined. What it needs is looked up before the
first step, so that a range which retention has deleted is reported at once, and not after hours.

Responses and rewards are read as recorded; nothing is sampled again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.conventions import trained_elsewhere
from schemas.events import AdapterEvent, Batch, Coordinates
from schemas.serde import Poison
from streams.adapters.store import manifest_of
from streams.adapters.versions import version_of
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.files import Scratch
from streams.kafka.history import History
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.reproduce.recorded import (
    GROUPS_ALONE,
    ExampleSources,
    RecordedSetup,
    ReproducedVersion,
    ReproductionPlan,
    recorded_events,
)
from trainer.reproduce.tuned import TunedReproduction, tuned_plan
from trainer.step.model import pin
from trainer.step.recipe import RecipeDifference, in_data, in_files, in_recipe
from trainer.versions import checkpoint, import_adapter as imports
from trainer.versions.checkpoint import ADAPTER_FOLDER, State
from trainer.versions.learner import BatchGroups, Learner, coordinates_of, cut, due, out_of_turn


def plan(
    settings: Settings,
    policy: str,
    version: int | None,
    history: History,
    *,
    start: int = 0,
    sources: ExampleSources = GROUPS_ALONE,
) -> ReproductionPlan:
    """Return everything needed to train `version` (None: the newest) from `start`; `sources` are of tuned versions.

    Raises NotFoundError for a missing version, checkpoint or file, SettingsError if `start` is not before the version,
    RefusedError if retention has deleted a batch or a group, or a file is missing, LogError if the log cannot be read.
    """
    events = recorded_events(settings, policy, history)
    if not events:
        raise NotFoundError(
            f"policy {policy} has no version in {topics(settings.topics)['adapters'].name}; check policy, "
            "topics.prefix and kafka.bootstrap (`streamward adapters list`)"
        )
    newest = max(events)
    version = newest if version is None else version
    if version not in events:
        raise NotFoundError(
            f"policy {policy} has no adapter version {version}; the newest is {newest} "
            "(`streamward adapters list` shows all of them)"
        )
    if not 0 <= start < version:
        raise SettingsError(f"version {version} cannot be trained from version {start}; start from 0 to {version - 1}")
    if events[version].tuning is not None:
        return tuned_plan(settings, events, version, history, start=start, sources=sources)
    start, imported = _behind_imports(policy, events, version, start)
    if sources.files:
        raise SettingsError(f"--file has no effect: version {version} of {policy} was trained on batches; leave it out")
    saved = _checkpoint(settings, policy, start, events) if start and imported is None else None
    batches = _batches(settings, policy, range(start, version), history)
    _refuse_cut(settings, policy, batches, version, history)
    return ReproductionPlan(
        policy=policy,
        start=start,
        version=version,
        events={number: event for number, event in events.items() if number <= version},
        batches=batches,
        checkpoint=saved,
        imported=imported,
    )


def _behind_imports(
    policy: str, events: dict[int, AdapterEvent], version: int, start: int
) -> tuple[int, AdapterEvent | None]:
    """Return the version to start from, and its event if it was trained elsewhere: none before it leads to `version`.

    Raises RefusedError if `version` itself was trained elsewhere, or an imported one is between it and a checkpoint.
    """
    if (origin := trained_elsewhere(events[version].recipe)) is not None:
        raise RefusedError(
            f"version {version} of {policy} was trained elsewhere ({origin}) and imported, so it cannot be recomputed "
            "here: the log has its files with their sha256, and what its recipe says, but not the program that made "
            f"it. Later versions that were trained here can be reproduced (--from-version {version})"
        )
    imported = [number for number, event in events.items() if trained_elsewhere(event.recipe) is not None]
    newest = max((number for number in imported if number < version), default=None)
    if newest is None or start > newest:
        return start, None
    if 0 < start < newest:
        raise RefusedError(
            f"version {newest} of {policy} was trained elsewhere ({trained_elsewhere(events[newest].recipe)}), so "
            f"nothing leads from version {start} to version {version}; start from it: --from-version {newest}"
        )
    return newest, events[newest]


def _checkpoint(settings: Settings, policy: str, version: int, events: dict[int, AdapterEvent]) -> tuple[Path, State]:
    """Return the checkpoint of `version`, complete and with the adapter of the log. Raises as `plan`."""
    path, state = checkpoint.of_version(settings.trainer.checkpoints / policy, version)
    event = events.get(version)
    if event is None:
        raise NotFoundError(f"{path}: the log has no version {version}, so this checkpoint cannot be checked")
    if wrong := in_files(version, event.files, manifest_of(path / ADAPTER_FOLDER)):
        raise RefusedError(
            f"{path}: {wrong[0].name} has sha256 {wrong[0].reproduced}, and version {version} in the log has "
            f"{wrong[0].recorded}; the checkpoint is of another log. Set trainer.checkpoints to this log's own, or "
            "start from the base (without --from-version)"
        )
    return path, state


def _batches(
    settings: Settings, policy: str, sequences: range, history: History
) -> tuple[tuple[Coordinates, Batch], ...]:
    """Return the batches of `sequences`, the first of each. Raises RefusedError if one is missing."""
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["batches"]).get(tp, (0, 0))
    batches: list[tuple[Coordinates, Batch]] = []
    problem: str | None = None
    for record in history.read({tp: first}, {tp: end}):
        version = sequences.start + len(batches)
        if version == sequences.stop:
            break
        batch = record.decode(Batch)
        if isinstance(batch, Poison) or not due(batch, policy, version):
            continue
        if problem := out_of_turn(record.at, batch, version, first):
            break
        batches.append((record.at, batch))
    if len(batches) < len(sequences):
        version = sequences.start + len(batches)
        problem = problem or f"{tp[0]}[{tp[1]}]: batch {version} of {policy} is missing between {first} and {end}"
        raise RefusedError(f"{problem}. {_way_out(settings, policy, version + 1, sequences.stop)}")
    return tuple(batches)


def _refuse_cut(
    settings: Settings, policy: str, batches: Collection[tuple[Coordinates, Batch]], version: int, history: History
) -> None:
    """Raise RefusedError, naming the first, if groups of these batches are no longer in the log."""
    topic = topics(settings.topics)["groups"].name
    bounds = history.bounds(["groups"])
    problems = {}
    for _, batch in batches:
        first, end = bounds.get((topic, batch.groups_partition), (0, 0))
        beyond = [place for place in coordinates_of(batch, topic) if place.offset >= end]
        if problem := cut(batch, topic, first):
            problems[batch.sequence] = problem
        elif beyond:
            problems[batch.sequence] = f"{beyond[0]}: a group of batch {batch.sequence}, but the log ends at {end}"
    if problems:
        way_out = _way_out(settings, policy, max(problems) + 1, version)
        raise RefusedError(f"{next(iter(problems.values()))}. {way_out}")


def _way_out(settings: Settings, policy: str, earliest: int, version: int) -> str:
    """Return what to do if no version before `earliest` can be trained."""
    folder = settings.trainer.checkpoints / policy
    usable = [number for number in checkpoint.versions(folder) if earliest <= number < version]
    start = (
        f"start after it: --from-version {usable[0]}"
        if usable
        else f"start after it from a checkpoint (--from-version; {folder} has none of versions {earliest} to "
        f"{version - 1}, and trainer.checkpoints names another folder)"
        if earliest < version
        else "keep the files of the version, since no checkpoint before it helps"
    )
    return f"Read them from an archive that has them (--source archive), or {start}"


# --- training ---------------------------------------------------------------------------------------------------------


def run(
    planned: ReproductionPlan,
    settings: Settings,
    history: History,
    *,
    into: Path | None = None,
    changed: Collection[str] = (),
) -> Iterator[ReproducedVersion]:
    """Train what is planned and yield each version, compared; the first that is not equal is the last.

    Their checkpoints are kept in `into`/POLICY, from where a trainer can resume; without `into` nothing is kept.
    `changed` names keys of model and trainer to take from `settings` instead of the recipes.

    Raises RefusedError if `into` is not empty, SettingsError if the model is missing or cannot run here, LogError if
    the log cannot be read, StreamwardError if a disk is full.
    """
    with (
        _folder(into, planned.policy) as folder,
        checkpoint.explaining_disks(str(folder), "Make room, or name another folder with --into"),
    ):
        if planned.tuned:
            yield from TunedReproduction(planned, settings, history, folder, frozenset(changed)).versions()
            return
        work = _Reproduction(planned, settings, history, folder, keep=into is not None, changed=frozenset(changed))
        yield from work.versions()


@contextmanager
def _folder(into: Path | None, policy: str) -> Iterator[Path]:
    if into is None:
        with Scratch("reproduce") as folder:
            yield folder
        return
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise RefusedError(f"{into}: not empty; name an empty folder or a new one")
    folder = into / policy
    try:
        folder.mkdir(parents=True)
    except OSError as exc:
        raise SettingsError(f"{into}: cannot be created: {exc}; name another folder with --into") from exc
    yield folder


class _Reproduction:
    """A running reproduction."""

    def __init__(
        self,
        planned: ReproductionPlan,
        settings: Settings,
        history: History,
        folder: Path,
        *,
        keep: bool,
        changed: frozenset[str],
    ) -> None:
        trainer = settings.trainer.model_copy(update={"checkpoints": folder})
        self._settings = settings.model_copy(update={"trainer": trainer})
        self._plan, self._history, self._folder = planned, history, folder
        self._setup = RecordedSetup(self._settings, changed)
        self._keep = planned.version if keep else 1
        self._learner: Learner | None = None
        self._learner_is_of: tuple[Settings, int] | None = None
        self._newest = planned.checkpoint
        self._recipe_differences: dict[str, RecipeDifference] = {}  # by name, as first seen

    def versions(self) -> Iterator[ReproducedVersion]:
        """Yield each version, up to the first that differs."""
        for coordinates, batch in self._plan.batches:
            version = self._train(coordinates, batch)
            yield version
            if not version.equal:
                return

    def _train(self, coordinates: Coordinates, batch: Batch) -> ReproducedVersion:
        began = time.perf_counter()
        version = batch.sequence + 1
        event = self._plan.events[version]
        learner = self._learner_of(event)
        groups = self._groups_of(learner, batch)
        state, metrics = learner.step(coordinates, batch, groups, {})
        path = learner.save(self._folder, state, self._keep)
        self._newest = path, state
        files = manifest_of(path / ADAPTER_FOLDER)
        differences: list[RecipeDifference] = []
        for difference in in_recipe(version, event.recipe, learner.recipe):
            self._recipe_differences.setdefault(difference.name, difference)
        announced = event if event.version == version else None
        if announced is not None and (differences := in_files(version, announced.files, files)):
            differences += [*in_data(version, announced.metrics, metrics), *self._recipe_differences.values()]
        return ReproducedVersion(
            version=version,
            batch=coordinates,
            groups=len(groups.good),
            refused=len(groups.refused),
            recorded=None if announced is None else announced.files,
            reproduced=files,
            differences=tuple(differences),
            other_recipe=tuple(self._recipe_differences.values()),
            seconds=time.perf_counter() - began,
        )

    def _groups_of(self, learner: Learner, batch: Batch) -> BatchGroups:
        coordinates = coordinates_of(batch, topics(self._settings.topics)["groups"].name)
        records = self._history.fetch(coordinates)
        return learner.groups_of(batch, (records[place] for place in coordinates), self._history)

    def _learner_of(self, event: AdapterEvent) -> Learner:
        """Return the learner for the next step: a new one if the recipe has changed."""
        recorded_settings, threads = self._setup.settings_of(event)
        if self._learner is not None and self._learner_is_of == (recorded_settings, threads):
            return self._learner
        self._learner = None  # frees the old model before the new one is loaded
        pin(
            recorded_settings.model_copy(
                update={"trainer": recorded_settings.trainer.model_copy(update={"threads": threads})}
            )
        )
        learner = Learner(recorded_settings, self._setup.base(recorded_settings, event))
        if self._newest is not None:
            learner.restore(*self._newest)
        elif self._plan.imported is not None:
            imports.begin(
                recorded_settings, self._plan.policy, learner, version_of(self._plan.imported, self._plan.start - 1)
            )
        self._learner, self._learner_is_of = learner, (recorded_settings, threads)
        return learner
