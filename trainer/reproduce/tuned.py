"""Tune versions again from what the log recorded, for `reproduce`.

    adapters: trained, with tuning ──► the start, from the store or just made ──┐
    the groups or the file that it names ───────────────► the same examples ────┴──► Tuner ──► sha256 against the log

A version of another policy that one started from is taken from the store, where its files are those in the log; how it
came about is that policy's own reproduction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.events import AdapterEvent, Tuning
from streams.adapters.store import manifest_of
from streams.engines.base_model import Base
from streams.errors import NotFoundError, RefusedError
from streams.files import Scratch, sha256_of
from streams.kafka.history import History
from streams.settings.model import Settings
from trainer.reproduce.recorded import (
    RecordedSetup,
    ReproducedVersion,
    ReproductionPlan,
    recorded_events,
)
from trainer.step.model import pin
from trainer.step.recipe import RecipeDifference, in_files, in_recipe
from trainer.tuning import from_dataset, from_log
from trainer.tuning.tuned_examples import TunedExample, digest
from trainer.tuning.tuned_version import limits_of, read_file, start_folder
from trainer.tuning.tuner import Tuner, TuningSteps


def find_files(files: Sequence[Path]) -> dict[str, Path]:
    """Return files of examples by their sha256. Raises NotFoundError for one that cannot be read."""
    by_digest: dict[str, Path] = {}
    for path in files:
        try:
            by_digest[sha256_of(path)] = path
        except OSError as exc:
            raise NotFoundError(f"--file {path}: {exc.strerror}") from exc
    return by_digest


def check_examples(settings: Settings, event: AdapterEvent, files: Mapping[str, Path], history: History) -> None:
    """Raise RefusedError if the file or the groups are missing that a version was tuned on."""
    tuning = tuning_of(event)
    if tuning.file_sha256 is not None and tuning.file_sha256 not in files:
        raise RefusedError(
            f"version {event.version} of {event.policy} was tuned on {tuning.file} with sha256 {tuning.file_sha256}, "
            "which is not in the log; name the file that has it: --file FILE"
        )
    if (problem := from_log.missing_groups(settings, tuning, history)) is not None:
        raise RefusedError(f"version {event.version} of {event.policy}: {problem}")


def tuning_of(event: AdapterEvent) -> Tuning:
    """Return what a version was tuned on. Raises RefusedError if its event says neither that nor batches."""
    if event.tuning is None:
        raise RefusedError(
            f"version {event.version} of {event.policy} is on the way, and its event says neither batches nor tuning; "
            "such a version cannot be made again. Start after it with --from-version"
        )
    return event.tuning


class TunedReproduction:
    """Tuned versions that are being made again, in `folder`."""

    def __init__(
        self,
        planned: ReproductionPlan,
        settings: Settings,
        history: History,
        folder: Path,
        changed: frozenset[str],
    ) -> None:
        self._plan, self._settings, self._history, self._folder = planned, settings, history, folder
        self._setup = RecordedSetup(settings, changed)
        self._recipe_differences: dict[str, RecipeDifference] = {}  # by name, as first seen

    def tune(self, event: AdapterEvent, before: Path | None) -> tuple[ReproducedVersion, Path]:
        """Return the version of this event, compared, and the folder of its adapter.

        `before` has the adapter that it starts from, if that was just made; else it is taken from the store.
        """
        began = time.perf_counter()
        tuning, number = tuning_of(event), event.version
        recorded_settings, threads = self._setup.settings_of(event)
        pin(
            recorded_settings.model_copy(
                update={"trainer": recorded_settings.trainer.model_copy(update={"threads": threads})}
            )
        )
        base = self._setup.base(recorded_settings, event)
        examples = self._examples(tuning, base)
        with Scratch("reproduce") as scratch:
            start = before if before is not None else self._start(event, tuning, base, scratch)
            tuner = Tuner(recorded_settings, base, TuningSteps.of_recipe(event.recipe), start)
            metrics = tuner.tune(examples)
        folder = self._folder / str(number)
        tuner.save(folder)
        files = manifest_of(folder)
        for difference in in_recipe(number, event.recipe, tuner.recipe):
            self._recipe_differences.setdefault(difference.name, difference)
        differences: list[RecipeDifference] = []
        if differences := in_files(number, event.files, files):
            differences += [*_in_examples(number, tuning, examples), *self._recipe_differences.values()]
        return (
            ReproducedVersion(
                version=number,
                batch=None,
                groups=len(tuning.groups),
                refused=0,
                examples=int(metrics["examples"]),
                recorded=event.files,
                reproduced=files,
                differences=tuple(differences),
                other_recipe=tuple(self._recipe_differences.values()),
                seconds=time.perf_counter() - began,
            ),
            folder,
        )

    def _start(self, event: AdapterEvent, tuning: Tuning, base: Base, scratch: Path) -> Path | None:
        """Return the folder of the adapter that a version started from, out of the store; None for the base model."""
        if tuning.start_version == 0:
            return None
        policy = tuning.start_policy or event.policy
        events = self._plan.events if policy == event.policy else recorded_events(self._settings, policy, self._history)
        if tuning.start_version not in events:
            raise NotFoundError(
                f"version {event.version} of {event.policy} started from version {tuning.start_version} of {policy}, "
                "which is not in the log"
            )
        return start_folder(self._settings, events[tuning.start_version], base, scratch)

    def _examples(self, tuning: Tuning, base: Base) -> list[TunedExample]:
        if tuning.file_sha256 is not None:
            return read_file(self._plan.files[tuning.file_sha256], tuning.method, base).examples
        if tuning.dataset is not None and self._plan.datasets is not None:
            dataset = self._plan.datasets(tuning.dataset, tuning.dataset_digest or "", tuning.method)
            return from_dataset.choose(dataset, limits_of(base)).examples
        return from_log.recorded_examples(self._settings, tuning, limits_of(base), self._history)


def _in_examples(version: int, tuning: Tuning, examples: Sequence[TunedExample]) -> list[RecipeDifference]:
    """Return that the examples differ, if they do."""
    reproduced = digest(examples)
    if reproduced == tuning.digest:
        return []
    return [
        RecipeDifference(
            version=version, kind="data", name="digest of the examples", recorded=tuning.digest, reproduced=reproduced
        )
    ]
