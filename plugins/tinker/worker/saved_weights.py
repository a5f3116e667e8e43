"""Weights that calls save, load and sample from: versions of a policy, and files of the worker.

    save_weights, save_weights_for_sampler NAME ──► adapter store ──► adapters: trained, with its origin ──► a version
    save_weights_for_sampler without a name ──► MODEL/sNNNNNNNN/: one sampling session's; made again if it is lost
    load_weights, sampling from a path ──► the folder in the store, verified against its event

A model's policy is called as the model. Its versions are numbered in the order in which they are saved; a worker that
was killed after it had announced one finds it by the call that is its origin, and a second worker that saves the same
announces nothing new.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.calls.call_state import saved_path
from plugins.tinker.worker.called_model import CalledModel
from plugins.tinker.worker.resident_models import whole_folder
from schemas.events import AdapterEvent, CallOrigin, TrainingCall, derive_id
from streams.adapters import signing, store
from streams.adapters.decisions import AdapterHistory, read_history
from streams.errors import CallError, EventError, RefusedError
from streams.kafka import times
from streams.settings.model import Settings
from trainer.versions.announce import announce

ACTOR = "calls"
ATTEMPTS = 5
"""How often a version is announced under the next number, because another one has taken it."""
KEPT_SAMPLERS = 16
"""Newest weights of a model for sampling sessions that are kept as files."""


class SavedWeights:
    """What the models of a worker have saved."""

    def __init__(
        self, settings: Settings, model: CalledModel, base_digest: str, recipe: Mapping[str, str], scratch: Path
    ) -> None:
        """`scratch` gets what is fetched from the store, and what is being published."""
        self._settings, self._model, self._scratch = settings, model, scratch
        self._base_digest, self._recipe = base_digest, dict(recipe)

    def publish(self, call: TrainingCall, place: int) -> AdapterEvent:
        """Make a version of the weights that are entered, for a call that names them; or return the one that it made.

        Raises RefusedError if others take every number, LogError, StreamwardError if a disk is full.
        """
        policy = policy_of(call.model)
        for _ in range(ATTEMPTS):
            history = read_history(self._settings, policy)
            if (made := version_of_call(history, call.call_id)) is not None:
                return made
            folder = self._scratch / "publish"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._model.save(folder, optimizer=_has_optimizer(call))
            event = announce(self._settings, self._event(call, place, history), folder, by_bytes=True)
            if event is not None:
                return event
        raise RefusedError(f"other processes made versions of {policy} while {call.call_id} saved one; it is repeated")

    def _event(self, call: TrainingCall, place: int, history: AdapterHistory) -> AdapterEvent:
        newest = history.state.newest
        path = saved_path(call) or ""
        return AdapterEvent(
            event_id=derive_id(policy_of(call.model), newest + 1, "trained"),
            policy=policy_of(call.model),
            created_at=times.now_ms(),
            version=newest + 1,
            kind="trained",
            actor=ACTOR,
            reason=f"saved by call {place} of {call.model}: {call.path}",
            parent_version=newest or None,
            origin=CallOrigin(
                call_id=call.call_id, model=call.model, seq_id=place, path=path, optimizer=_has_optimizer(call)
            ),
            base_digest=self._base_digest,
            recipe=self._recipe,
        )

    # --- for sampling sessions ----------------------------------------------------------------------------------------

    def keep_for_sampler(self, folder: Path, place: int) -> None:
        """Keep the weights that are entered, of the call at `place`, in a model's folder."""
        with whole_folder(sampler_folder(folder, place)) as half:
            self._model.save(half, optimizer=False)
        kept = sorted(folder.glob("s[0-9]*"), reverse=True)
        for old in kept[KEPT_SAMPLERS:]:
            shutil.rmtree(old, ignore_errors=True)

    # --- from the store -----------------------------------------------------------------------------------------------

    def fetch(self, uri: str, path: str) -> Path:
        """Return a folder with the weights of a checkpoint, verified. Raises CallError, EventError."""
        policy = uri.rstrip("/").rpartition("/")[0].rpartition("/")[2]
        history = read_history(self._settings, policy)
        event = next((event for _, event in history.trained.values() if event.uri == uri), None)
        if event is None or (version := history.state.versions.get(event.version)) is None:
            raise CallError("invalid", f"there are no saved weights {path}", "path")
        if version.status == "retired":
            raise CallError("invalid", f"the files of {path} are gone: its version is retired", "path")
        if event.base_digest != self._base_digest:
            raise CallError("invalid", f"{path} was trained on another base model than this server has", "path")
        signed = signing.expected_signer(self._settings.adapters, policy, event.version)
        try:
            return store.fetch(self._settings.adapters.store, uri, event.files, self._scratch / "fetched", signed)
        except EventError as exc:
            raise CallError("invalid", f"{path} cannot be read: {exc}", "path") from exc


def sampler_folder(folder: Path, place: int) -> Path:
    """Return where a model's weights are that the call at `place` saved for a sampling session."""
    return folder / f"s{place:08d}"


def version_of_call(history: AdapterHistory, call_id: str) -> AdapterEvent | None:
    """Return the event of the version that a call saved; None if there is none."""
    events = (event for _, event in history.trained.values())
    return next((event for event in events if event.origin is not None and event.origin.call_id == call_id), None)


def _has_optimizer(call: TrainingCall) -> bool:
    """Return whether a call saves what training continues with, not the weights alone."""
    return call.kind == "save_weights"
