"""Recompute the weights that a training loop saved, only from its calls, for `reproduce`.

    adapters: trained, with origin ──► the model's calls before it ──► apply each again ──► sha256 against the log
                                       training-calls, training-results: failures, and the weights of each call

Passes, steps and loads are repeated; calls that failed are skipped, as they changed nothing. Weights that a model
loaded are taken from the store, if their files match the log; reproducing them is a matter of their own policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plugins.tinker.calls.call_state import place_of
from plugins.tinker.worker.apply_call import fresh_state
from plugins.tinker.worker.call_worker import FETCHED, LABEL, RESULTS, call_recipe
from plugins.tinker.worker.called_model import CalledModel, CalledState
from plugins.tinker.worker.resident_models import repeat
from schemas.events import AdapterEvent, Coordinates, TrainingCall, TrainingResult
from schemas.serde import Poison
from streams.adapters import signing, store, stored_tensors
from streams.errors import CallError, EventError, RefusedError, SettingsError
from streams.files import Scratch
from streams.kafka.history import History
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from trainer.reproduce.recorded import RecordedSetup, RemadeVersion, Remake, recorded_events
from trainer.step.model import pin


class RecordedCalls:
    """The calls of one model and their results, as a history has them."""

    def __init__(self, settings: Settings, model: str, history: History, scratch: Path) -> None:
        """Raises RefusedError if calls are missing, LogError if the log cannot be read."""
        self._settings, self._model, self._history, self._scratch = settings, model, history, scratch
        self._places: dict[int, Coordinates] = {}
        self._results: dict[str, TrainingResult] = {}
        for record in self._records(LABEL):
            call = record.decode(TrainingCall)
            if not isinstance(call, Poison) and call.model == model and (place := place_of(call)) is not None:
                self._places.setdefault(place, record.at)
        for record in self._records(RESULTS):
            result = record.decode(TrainingResult)
            if not isinstance(result, Poison) and result.model == model:
                self._results.setdefault(result.call_id, result)

    def _records(self, label: str) -> Iterator[Record]:
        name = topics(self._settings.topics)[label].name
        tp = (name, partition_of(self._model, self._settings.topics.policy_partitions))
        first, end = self._history.bounds([label]).get(tp, (0, 0))
        return self._history.read({tp: first}, {tp: end})

    def check(self, end: int, version: int) -> None:
        """Raise RefusedError if a call before the one at `end` is missing."""
        missing = [place for place in range(end) if place not in self._places]
        if missing:
            raise RefusedError(
                f"version {version}: call {missing[0]} of {self._model} is not in the log, and {len(missing)} of {end} "
                "are missing; retention has deleted them. Read them from an archive that has them (--source archive)"
            )

    def calls_of(self, begin: int, end: int) -> Iterator[TrainingCall]:
        """Yield the calls from one place to below another, with their data."""
        for start in range(begin, end, FETCHED):
            part = [self._places[place] for place in range(start, min(end, start + FETCHED))]
            records = self._history.fetch(part)
            for at in part:
                call = records[at].decode(TrainingCall)
                assert not isinstance(call, Poison), "it was read before"  # noqa: S101
                yield call

    def result_of(self, call_id: str) -> TrainingResult | None:
        """Return the logged result of a call."""
        return self._results.get(call_id)

    def data(self, call: TrainingCall) -> bytes:
        """Return the data of a call. Raises EventError."""
        if call.data_uri is None:
            return bytes(call.data.data)
        return stored_tensors.get(self._settings.adapters.store, call.data_uri, call.data_sha256 or "")

    def weights(self, call: TrainingCall) -> Path:
        """Return the folder of the weights that a call loads. Raises CallError, EventError."""
        uri = call.source or ""
        policy = uri.rstrip("/").rpartition("/")[0].rpartition("/")[2]
        events = recorded_events(self._settings, policy, self._history)
        event = next((event for event in events.values() if event.uri == uri), None)
        if event is None:
            raise CallError("invalid", f"there are no saved weights {call.path}", "path")
        signed = signing.expected_signer(self._settings.adapters, policy, event.version)
        return store.fetch(self._settings.adapters.store, uri, event.files, self._scratch, signed)


class CalledRemake(Remake):
    """Computes versions that calls saved, each from where the one before it ended."""

    _model: CalledModel | None = None
    _state: CalledState | None = None
    _place = -1

    @classmethod
    def makes(cls, event: AdapterEvent) -> bool:
        """Return whether a call saved it."""
        return event.origin is not None

    def check(self, event: AdapterEvent, *, start: int) -> None:
        """Raise SettingsError if it is not to be computed from the first call on."""
        if start:
            raise SettingsError(
                f"version {event.version} of {event.policy} is computed from the first call of its model; leave "
                "--from-version out"
            )

    def remake(self, event: AdapterEvent, setup: RecordedSetup, folder: Path, previous: Path | None) -> RemadeVersion:
        """Compute the weights that a call saved. Raises RefusedError, SettingsError."""
        origin = event.origin
        assert origin is not None  # noqa: S101 - that is what it makes
        with Scratch("reproduce") as scratch:
            model, recipe = self._begin(event, setup)
            calls = RecordedCalls(self._settings, origin.model, self._history, scratch)
            calls.check(origin.seq_id, event.version)
            count = origin.seq_id - max(self._place, 0)
            self._repeat(model, calls, origin.seq_id)
            folder.mkdir(parents=True)
            model.save(folder, optimizer=origin.optimizer)
        return RemadeVersion(f"{count} calls", recipe)

    def _begin(self, event: AdapterEvent, setup: RecordedSetup) -> tuple[CalledModel, dict[str, str]]:
        """Return the model as recorded, and the recipe here."""
        used, threads = setup.settings_of(event)
        used = used.model_copy(update={"trainer": used.trainer.model_copy(update={"threads": threads})})
        pin(used)
        if self._model is None:
            self._base = setup.base(used, event)
            self._model = CalledModel(used, self._base)
        return self._model, call_recipe(used, self._base)

    def _repeat(self, model: CalledModel, calls: RecordedCalls, end: int) -> None:
        """Repeat the calls after the last one that was repeated, up to and without the one at `end`."""
        for call in calls.calls_of(self._place + 1, end):
            place = place_of(call)
            if place == 0:
                self._state = fresh_state(model, call)
                model.enter(self._state)
            assert self._state is not None and place is not None  # noqa: S101 - the first call makes it
            try:
                repeat(model, self._state, call, calls.result_of(call.call_id), calls)
            except EventError as exc:
                raise RefusedError(f"call {call.call_id} cannot be repeated: {exc}") from exc
            self._place = place


REMAKES = (CalledRemake,)
