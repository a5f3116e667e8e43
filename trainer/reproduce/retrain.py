"""Train versions again from what the log recorded, and compare them byte for byte.

    adapters: trained ──► recipe, manifest ─┐
    batches, groups ────────────────────────┴─► plan ──► the base, or a checkpoint ──► step ──► sha256 against the log
                                                                                         ▲          │ equal: the next
                                                                                         └──────────┴ not: what, and why

A step is a batch's, or of another kind, for which plugins have a Remake (trainer/reproduce/recorded.py); a policy's
history may have several kinds. The version is reproduced along with those from which it was made. Every version on the
way is compared, and the first that differs is the last: later ones could not be equal. The recipe is the one in each
version's event, not this machine's settings. Where it changes between two versions, training continues as it does for a
trainer restarted with other settings: adapter, optimizer state and RNG are carried over through a checkpoint. A version
that was trained elsewhere cannot be reproduced; later versions that were trained here can, from its files in the store.

It only reads: nothing is written to the log or committed, and no group is joined. All input is looked up before the
first step, so that a range which retention has deleted is reported at once, not after hours.

Responses and rewards are read as recorded; nothing is sampled again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from schemas.conventions import OPTIMIZER, trained_elsewhere
from schemas.events import AdapterEvent, Batch, Coordinates
from schemas.serde import Poison
from streams.adapters.store import manifest_of
from streams.adapters.versions import Version, version_of
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.files import Scratch, sha256_of
from streams.kafka.history import History
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings
from trainer.reproduce.erased_examples import records_in_parts, refuse_erased
from trainer.reproduce.recorded import (
    PlannedStep,
    RecordedSetup,
    Remake,
    ReproducedVersion,
    ReproductionPlan,
    recorded_events,
    taken_batches,
)
from trainer.step.model import pin
from trainer.step.recipe import RecipeDifference, in_data, in_files, in_recipe
from trainer.versions import adopt_version, checkpoint
from trainer.versions.checkpoint import ADAPTER_FOLDER, State
from trainer.versions.learner import BatchGroups, Learner, coordinates_of, cut, due, out_of_turn


def plan(
    settings: Settings,
    policy: str,
    version: int | None,
    history: History,
    *,
    start: int = 0,
    files: Sequence[Path] = (),
) -> ReproductionPlan:
    """Return everything needed to make `version` (None: the newest) from `start`; `files` are what versions came from.

    Raises NotFoundError for a missing version, checkpoint or file, SettingsError if `start` is not before the version
    or does not lead to it, RefusedError if retention has deleted a batch or a group, or a file is missing, LogError if
    the log cannot be read.
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
    first, chain = _chain(policy, events, version, start)
    remakes = remakes_of(settings, chain, start, files, history)
    start, by_batch = first, chain[0].last_batch is not None
    adopted = _start_version(events, start, chain[0]) if by_batch else None
    saved = _checkpoint(settings, policy, start, events) if start and by_batch and adopted is None else None
    made_by = {event.last_batch: event.version for event in chain if event.last_batch is not None}
    batches = {batch.sequence: (at, batch) for at, batch in _batches(settings, policy, made_by, history)}
    _refuse_cut(settings, policy, batches.values(), made_by, history)
    steps = (
        PlannedStep(event, remake=remakes[event.version])
        if event.last_batch is None
        else PlannedStep(event, *batches[event.last_batch])
        for event in chain
    )
    return ReproductionPlan(
        policy=policy,
        start=start,
        version=version,
        events={number: event for number, event in events.items() if number <= version},
        steps=tuple(steps),
        checkpoint=saved,
        adopted=adopted,
    )


def remakes_of(
    settings: Settings, chain: Sequence[AdapterEvent], start: int, files: Sequence[Path], history: History
) -> dict[int, Remake]:
    """Return by version what makes it again, for those that no batch made.

    Raises NotFoundError for a file that cannot be read, SettingsError for files without effect, RefusedError if nothing
    makes a version or something is missing for it.
    """
    by_digest = _by_digest(files)
    others = [event for event in chain if event.last_batch is None]
    if files and not others:
        version, policy = chain[-1].version, chain[-1].policy
        raise SettingsError(f"--file has no effect: version {version} of {policy} was trained on batches; leave it out")
    kinds = (kind for plugin, _, _ in load_plugins() for kind in plugin.load_all(plugin.remakes))
    every: list[Remake] = [kind(settings, history, by_digest) for kind in kinds]
    remakes = {}
    for event in others:
        remake = next((remake for remake in every if remake.makes(event)), None)
        if remake is None:
            raise RefusedError(
                f"version {event.version} of {event.policy} is on the way, and was made by {event.actor}, not of "
                "batches; no loaded plugin makes such versions again (`streamward admin plugins`). Start after it with "
                "--from-version"
            )
        remake.check(event, start=start)
        remakes[event.version] = remake
    return remakes


def _by_digest(files: Sequence[Path]) -> dict[str, Path]:
    """Return files by their sha256. Raises NotFoundError for one that cannot be read."""
    by_digest: dict[str, Path] = {}
    for path in files:
        try:
            by_digest[sha256_of(path)] = path
        except OSError as exc:
            raise NotFoundError(f"--file {path}: {exc.strerror}") from exc
    return by_digest


def _chain(policy: str, events: Mapping[int, AdapterEvent], version: int, start: int) -> tuple[int, list[AdapterEvent]]:
    """Return the version to start from, and the events from there to `version`, each made from the one before it.

    It is 0 for a version that was made from one of another policy, and an imported one where that is on the way: no
    earlier one leads to `version`. Raises RefusedError if `version` itself was imported, or an imported one is between
    it and `start`; SettingsError if `start` does not lead to it.
    """
    _refuse_imported(policy, events, version)
    _refuse_outside(policy, events[version])
    chain, parent = [events[version]], _parent_of(events, version)
    while parent and parent != start and trained_elsewhere(events[parent].recipe) is None:
        chain.insert(0, events[parent])
        parent = _parent_of(events, parent)
    if start in (0, parent):
        return parent or 0, chain
    if parent and start < parent and (origin := trained_elsewhere(events[parent].recipe)) is not None:
        raise RefusedError(
            f"version {parent} of {policy} was trained elsewhere ({origin}), so nothing leads from version {start} to "
            f"version {version}; start from it: --from-version {parent}"
        )
    ways = " <- ".join(str(event.version) for event in reversed(chain))
    first = "another policy" if parent is None else f"version {parent}"
    raise SettingsError(
        f"version {version} does not come from version {start}: {ways} <- {first}; leave --from-version out"
    )


def _parent_of(events: Mapping[int, AdapterEvent], version: int) -> int | None:
    """Return the version of its policy that a version was made from; None: it was made from another policy's.

    A batch is trained onto the weights of the previous version, or if that is an outside model, of the one before.
    """
    if events[version].last_batch is None:
        return events[version].parent_version
    parent = version - 1
    while parent and events[parent].outside is not None:
        parent -= 1
    return parent


def _refuse_outside(policy: str, event: AdapterEvent) -> None:
    """Raise RefusedError for an outside model."""
    if event.outside is not None:
        raise RefusedError(
            f"version {event.version} of {policy} is {event.outside.model} at {event.outside.url}: it has no weights "
            "here, so it cannot be reproduced. Versions before and after it can"
        )


def _refuse_imported(policy: str, events: Mapping[int, AdapterEvent], version: int) -> None:
    """Raise RefusedError if `version` was trained elsewhere."""
    if (origin := trained_elsewhere(events[version].recipe)) is not None:
        raise RefusedError(
            f"version {version} of {policy} was trained elsewhere ({origin}) and imported, so it cannot be recomputed "
            "here: the log has its files with their sha256, and what its recipe says, but not the program that made "
            f"it. Later versions that were trained here can be reproduced (--from-version {version})"
        )


def _start_version(events: Mapping[int, AdapterEvent], start: int, first: AdapterEvent) -> Version | None:
    """Return the version to start from, if no batch made it here, or an outside model is between it and the `first`."""
    if start == 0:
        return None
    version = version_of(events[start], taken_batches(events, start - 1))
    is_next = first.version == start + 1
    return None if is_next and adopt_version.origin(version) is None else version


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
    settings: Settings, policy: str, made_by: Mapping[int, int], history: History
) -> list[tuple[Coordinates, Batch]]:
    """Return the first batch of each sequence in `made_by`, which maps to the version it made. Raises RefusedError if
    one is missing."""
    if not made_by:
        return []
    tp = (topics(settings.topics)["batches"].name, partition_of(policy, settings.topics.policy_partitions))
    first, end = history.bounds(["batches"]).get(tp, (0, 0))
    wanted, batches = sorted(made_by), list[tuple[Coordinates, Batch]]()
    problem: str | None = None
    for record in history.read({tp: first}, {tp: end}):
        if len(batches) == len(wanted):
            break
        expected = wanted[len(batches)]
        batch = record.decode(Batch)
        if isinstance(batch, Poison) or not due(batch, policy, expected):
            continue
        if problem := out_of_turn(record.at, batch, expected, first):
            break
        batches.append((record.at, batch))
    if len(batches) < len(wanted):
        missing = wanted[len(batches)]
        problem = problem or f"{tp[0]}[{tp[1]}]: batch {missing} of {policy} is missing between {first} and {end}"
        raise RefusedError(f"{problem}. {_way_out(settings, policy, made_by[missing], max(made_by.values()))}")
    return batches


def _refuse_cut(
    settings: Settings,
    policy: str,
    batches: Collection[tuple[Coordinates, Batch]],
    made_by: Mapping[int, int],
    history: History,
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
        way_out = _way_out(settings, policy, made_by[max(problems)], max(made_by.values()))
        raise RefusedError(f"{next(iter(problems.values()))}. {way_out}")


def _way_out(settings: Settings, policy: str, earliest: int, version: int) -> str:
    """Return the way out if no version before `earliest` can be trained."""
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
    compare: bool = True,
) -> Iterator[ReproducedVersion]:
    """Train the planned versions and yield each with its comparison; the first difference ends it.

    With `compare` false it does not: the plan has other batches than those recorded.

    Their checkpoints are kept in `into`/POLICY, from where a trainer can resume; without `into` nothing is kept.
    `changed` names keys of model and trainer to take from `settings` instead of the recipes.

    Raises RefusedError if examples were erased, or if `into` is not empty, SettingsError if the model is missing or
    cannot run here, LogError if the log cannot be read, StreamwardError if a disk is full.
    """
    topic = topics(settings.topics)["groups"].name
    batches = [step.batch for step in planned.steps if step.batch is not None]
    places = [place for batch in batches for place in coordinates_of(batch, topic)]
    refuse_erased((record, None) for record in records_in_parts(history, places))
    with (
        _folder(into, planned.policy) as folder,
        checkpoint.explaining_disks(str(folder), "Make room, or name another folder with --into"),
    ):
        work = _Reproduction(planned, settings, history, folder, keep=into is not None, changed=frozenset(changed))
        yield from work.versions(compare=compare)


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
        self._made: tuple[AdapterEvent, Path] | None = None
        """The newest reproduced version, and the folder of its adapter."""
        self._recipe_differences: dict[str, RecipeDifference] = {}  # by name, as first seen
        self._began = time.perf_counter()

    def versions(self, *, compare: bool) -> Iterator[ReproducedVersion]:
        """Yield each version; with `compare` up to the first that differs."""
        for step in self._plan.steps:
            self._began = time.perf_counter()
            if step.remake is not None:
                version = self._remake(step.event, step.remake)
            else:
                assert step.at is not None and step.batch is not None  # noqa: S101 - what is planned has one of them
                version = self._train(step.event, step.at, step.batch)
            yield version
            if compare and not version.equal:
                return

    def _remake(self, event: AdapterEvent, remake: Remake) -> ReproducedVersion:
        """Make a version that no batch made. A step after it begins with a fresh optimizer, as the trainer's did."""
        self._learner = self._newest = None
        folder = self._folder / str(event.version)
        remade = remake.remake(event, self._setup, folder, None if self._made is None else self._made[1])
        self._made = event, folder
        return self._comparison(event, folder, remade.recipe, remade.made_from, remade.data)

    def _train(self, event: AdapterEvent, coordinates: Coordinates, batch: Batch) -> ReproducedVersion:
        learner = self._learner_of(event)
        groups = self._groups_of(learner, batch)
        state, metrics = learner.step(coordinates, batch, groups, {})
        if OPTIMIZER in event.recipe:
            state = replace(state, recipe=state.recipe | {OPTIMIZER: event.recipe[OPTIMIZER]})
        path = learner.save(self._folder, state, self._keep)
        self._newest, self._made = (path, state), (event, path / ADAPTER_FOLDER)
        refused = f" and {len(groups.refused)} refused" if groups.refused else ""
        made_from = f"{coordinates}, {len(groups.good)} groups{refused}"
        data = in_data(event.version, event.metrics, metrics)
        return self._comparison(event, path / ADAPTER_FOLDER, learner.recipe, made_from, data)

    def _comparison(
        self,
        event: AdapterEvent,
        folder: Path,
        recipe: Mapping[str, str],
        made_from: str,
        data: Sequence[RecipeDifference],
    ) -> ReproducedVersion:
        """Return a version that was made in `folder`, compared with its event."""
        files = manifest_of(folder)
        for difference in in_recipe(event.version, event.recipe, recipe):
            self._recipe_differences.setdefault(difference.name, difference)
        if differences := in_files(event.version, event.files, files):
            differences += [*data, *self._recipe_differences.values()]
        return ReproducedVersion(
            version=event.version,
            made_from=made_from,
            recorded=event.files,
            reproduced=files,
            differences=tuple(differences),
            other_recipe=tuple(self._recipe_differences.values()),
            seconds=time.perf_counter() - self._began,
        )

    def _groups_of(self, learner: Learner, batch: Batch) -> BatchGroups:
        coordinates = coordinates_of(batch, topics(self._settings.topics)["groups"].name)
        records = self._history.fetch(coordinates)
        return learner.groups_of(batch, (records[place] for place in coordinates), self._history)

    def _learner_of(self, event: AdapterEvent) -> Learner:
        """Return the learner for the next step: a new one if the recipe has changed."""
        recorded_settings, threads = self._setup.settings_of(event)
        before_it = event.version - 1
        if before_it in self._plan.events and self._plan.events[before_it].outside is not None:
            self._learner = self._newest = None  # as the trainer: on from the weights before, with a fresh optimizer
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
        elif self._made is not None:  # which was tuned, or came before an outside model
            learner.begin(self._made[1], before_it, taken_batches(self._plan.events, before_it))
        elif self._plan.adopted is not None:
            adopt_version.begin(recorded_settings, self._plan.policy, learner, self._plan.adopted, before_it)
        else:
            learner.begin(None, before_it, taken_batches(self._plan.events, before_it))
        self._learner, self._learner_is_of = learner, (recorded_settings, threads)
        return learner
