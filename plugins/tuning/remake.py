"""Tune versions again from what the log recorded, for `reproduce`.

    adapters: trained, with tuning ──► the start, from the store or just made ──┐
    its groups, file or data set ───────────────────────► the same examples ────┴──► Tuner ──► sha256 against the log

A version of another policy that one started from is taken from the store, where its files are those in the log; how it
came about is that policy's own reproduction.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plugins.tuning import from_log
from plugins.tuning.tuned_version import limits_of, read_file, start_folder
from plugins.tuning.tuner import Tuner, TuningSteps
from schemas.events import AdapterEvent, Tuning
from streams.engines.base_model import Base
from streams.errors import NotFoundError, RefusedError
from streams.files import Scratch
from streams.tools.dataset_reader import dataset_reader
from trainer.examples.tuned_examples import TunedExample, digest, loss_tokens
from trainer.reproduce.recorded import RecordedSetup, RemadeVersion, Remake, recorded_events
from trainer.step.model import pin
from trainer.step.recipe import RecipeDifference


class TunedRemake(Remake):
    """Tunes versions again."""

    @classmethod
    def makes(cls, event: AdapterEvent) -> bool:
        """Return whether it was tuned."""
        return event.tuning is not None

    def check(self, event: AdapterEvent, *, start: int) -> None:
        """Raise RefusedError if the file or the groups are missing that it was tuned on."""
        tuning = _tuning_of(event)
        if tuning.file_sha256 is not None and tuning.file_sha256 not in self._files:
            raise RefusedError(
                f"version {event.version} of {event.policy} was tuned on {tuning.file} with sha256 "
                f"{tuning.file_sha256}, which is not in the log; name the file that has it: --file FILE"
            )
        if (problem := from_log.missing_groups(self._settings, tuning, self._history)) is not None:
            raise RefusedError(f"version {event.version} of {event.policy}: {problem}")

    def remake(self, event: AdapterEvent, setup: RecordedSetup, folder: Path, previous: Path | None) -> RemadeVersion:
        """Tune a version from `previous`, or from what it started from in the store."""
        tuning = _tuning_of(event)
        used, threads = setup.settings_of(event)
        pin(used.model_copy(update={"trainer": used.trainer.model_copy(update={"threads": threads})}))
        base = setup.base(used, event)
        examples = self._examples(tuning, base)
        with Scratch("reproduce") as scratch:
            start = previous if previous is not None else self._start(event, tuning, base, scratch)
            tuner = Tuner(used, base, TuningSteps.of_recipe(event.recipe), start)
            metrics = tuner.tune(examples)
        tuner.save(folder)
        remade = replace(tuning, examples=len(examples), loss_tokens=loss_tokens(examples), digest=digest(examples))
        other = () if remade.digest == tuning.digest else (_other(event, tuning, remade.digest),)
        return RemadeVersion(f"{len(examples)} examples", tuner.recipe, other, remade, metrics)

    def _start(self, event: AdapterEvent, tuning: Tuning, base: Base, scratch: Path) -> Path | None:
        """Return the folder of the adapter that a version started from, out of the store; None for the base model."""
        if tuning.start_version == 0:
            return None
        policy = tuning.start_policy or event.policy
        events = recorded_events(self._settings, policy, self._history)
        if tuning.start_version not in events:
            raise NotFoundError(
                f"version {event.version} of {event.policy} started from version {tuning.start_version} of {policy}, "
                "which is not in the log"
            )
        return start_folder(self._settings, events[tuning.start_version], base, scratch)

    def _examples(self, tuning: Tuning, base: Base) -> list[TunedExample]:
        if tuning.file_sha256 is not None:
            return read_file(self._files[tuning.file_sha256], tuning.method, base).examples
        if tuning.dataset is not None:
            build = f"{tuning.dataset}@{tuning.dataset_digest}"
            dataset = dataset_reader().examples(self._settings, build, tuning.method, self._history)
            return from_log.choose_rows(dataset, limits_of(base)).examples
        return from_log.recorded_examples(self._settings, tuning, limits_of(base), self._history)


def _tuning_of(event: AdapterEvent) -> Tuning:
    assert event.tuning is not None  # noqa: S101 - that is what it makes
    return event.tuning


def _other(event: AdapterEvent, tuning: Tuning, reproduced: str) -> RecipeDifference:
    """Return that the examples differ."""
    return RecipeDifference(
        version=event.version,
        kind="data",
        name="digest of the examples",
        recorded=tuning.digest,
        reproduced=reproduced,
    )


REMAKES = (TunedRemake,)
