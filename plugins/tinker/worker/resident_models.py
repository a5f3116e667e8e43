"""The models of one base that calls train: as many in memory as tinker.states, each from its newest checkpoint.

    enter(model, place) ──► in memory at that place ────────────────────────────────────────────► CalledState
                       └──► newest checkpoint at or before it ──► the calls in between, once more ──► …
    advance(model) ──► every tinker.checkpoint_s of work, and when it leaves memory ──► a folder, whole or not at all

A checkpoint only saves time: without any, a model is computed from its first call. So none is needed that is right in
the middle of a step, yet a checkpoint has the gradient that was accumulated. What a call gave the first time is in its
result; weights that a repeated call gives must have the digest that the result has.

A checkpoint is written only when the results of all its calls are acknowledged.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.worker.apply_call import CallFiles, apply, fresh_state
from plugins.tinker.worker.called_model import CalledModel, CalledState
from schemas import json_text
from schemas.events import TrainingCall, TrainingResult
from streams import files
from streams.errors import CallError, RefusedError
from streams.files import sha256_of

STATE_FILE = "call.json"
KEPT_CHECKPOINTS = 2
log = logging.getLogger(__name__)


class RepeatedCalls(CallFiles, Protocol):
    """Calls that were done before, and what came of them."""

    def calls_of(self, model: str, begin: int, end: int) -> Iterable[TrainingCall]:
        """Yield the calls of a model from one place to below another, with their data."""

    def result_of(self, call_id: str) -> TrainingResult | None:
        """Return the result that a call has in the log."""


@dataclass(slots=True)
class ResidentModel:
    """A model in memory."""

    state: CalledState
    place: int
    """Of the last call that it has taken."""
    since_s: float = 0.0
    """Work since its newest checkpoint, seconds."""


class ResidentModels:
    """At most `limit` models in memory, of one base."""

    def __init__(self, model: CalledModel, root: Path, base_digest: str, limit: int, source: RepeatedCalls) -> None:
        """`root` has a folder of checkpoints for each model."""
        self.model, self._root, self._base_digest, self._limit, self._source = model, root, base_digest, limit, source
        self._resident: OrderedDict[str, ResidentModel] = OrderedDict()
        self.on_checkpoint: Callable[[], None] = lambda: None
        """Called before a checkpoint is written: acknowledges the results of all calls."""

    def __len__(self) -> int:
        return len(self._resident)

    def enter(self, name: str, place: int) -> None:
        """Have the model compute with this one's state after the call at `place`; -1: it is not created yet.

        Raises RefusedError if its calls give other weights than they did.
        """
        resident = self._resident.get(name)
        if resident is None or resident.place != place:
            self._resident.pop(name, None)
            if place < 0:
                return
            resident = self._compute(name, place)
            self._add(name, resident)
        self._resident.move_to_end(name)
        self.model.enter(resident.state)

    def create(self, call: TrainingCall) -> None:
        """Enter a new model, which its first call creates."""
        state = fresh_state(self.model, call)
        self._add(call.model, ResidentModel(state, -1))
        self.model.enter(state)

    def advance(self, name: str, place: int, seconds: float, checkpoint_s: float) -> None:
        """Take note that the call at `place` was applied to the model that is entered, which took so long."""
        resident = self._resident[name]
        resident.place, resident.since_s = place, resident.since_s + seconds
        if resident.since_s >= checkpoint_s:
            self._save(name, resident)

    def digest(self, name: str) -> str:
        """Return the sha256 of the weights of a model in memory."""
        return self._resident[name].state.digest()

    def stays(self, name: str, place: int) -> None:
        """Take note that the call at `place`, the next one, has changed nothing of a model."""
        if (resident := self._resident.get(name)) is not None:
            resident.place = place

    def forget(self, name: str, *, keep_files: bool = True) -> None:
        """Drop a model from memory; without `keep_files` its checkpoints, too."""
        self._resident.pop(name, None)
        if not keep_files:
            shutil.rmtree(self.folder(name), ignore_errors=True)

    def close(self) -> None:
        """Write a checkpoint of every model that has done work since its newest."""
        for name, resident in self._resident.items():
            if resident.since_s > 0:
                self.model.enter(resident.state)
                self._save(name, resident)
        self._resident.clear()

    def folder(self, name: str) -> Path:
        """Return the folder of a model."""
        return self._root / policy_of(name)

    def _add(self, name: str, resident: ResidentModel) -> None:
        while len(self._resident) >= self._limit:
            oldest, leaving = self._resident.popitem(last=False)
            if leaving.since_s > 0:
                self.model.enter(leaving.state)
                self._save(oldest, leaving)
        self._resident[name] = resident

    # --- computing a state again --------------------------------------------------------------------------------------

    def _compute(self, name: str, place: int) -> ResidentModel:
        """Return a model after its call at `place`, from a checkpoint and the calls since."""
        began = time.perf_counter()
        (first,) = self._source.calls_of(name, 0, 1)
        state = fresh_state(self.model, first)
        self.model.enter(state)
        reached = self._restore(name, place)
        for call in self._source.calls_of(name, reached + 1, place + 1):
            repeat(self.model, state, call, self._source.result_of(call.call_id), self._source)
        if place > reached:
            log.info("%s: computed calls %d to %d again", name, reached + 1, place)
        return ResidentModel(state, place, time.perf_counter() - began if place > reached else 0.0)

    def _restore(self, name: str, place: int) -> int:
        """Restore the newest checkpoint that is not after `place`; return its place, -1 if there is none."""
        for folder in self._checkpoints(name):
            if (at := _place_of(folder)) <= place and self._is_whole(folder):
                self.model.load(folder, optimizer=True, gradient=True)
                return at
        return -1

    def _checkpoints(self, name: str) -> list[Path]:
        """Return the checkpoints of a model, the newest first."""
        return sorted(self.folder(name).glob("c[0-9]*"), key=_place_of, reverse=True)

    def _is_whole(self, folder: Path) -> bool:
        try:
            state = json_text.parse((folder / STATE_FILE).read_bytes())
            digests = state["files"]
            is_ours = state["base_digest"] == self._base_digest
            return is_ours and all(sha256_of(folder / path) == digest for path, digest in digests.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            log.warning("%s: skipped: %s", folder, exc)
            return False

    def _save(self, name: str, resident: ResidentModel) -> None:
        """Write a checkpoint of the model that is entered."""
        self.on_checkpoint()
        target = self.folder(name) / f"c{resident.place:08d}"
        with whole_folder(target) as half:
            self.model.save(half, optimizer=True, gradient=True)
            digests = {path.name: sha256_of(path) for path in sorted(half.iterdir())}
            text = json.dumps({"place": resident.place, "base_digest": self._base_digest, "files": digests}, indent=1)
            (half / STATE_FILE).write_text(text + "\n")
        resident.since_s = 0.0
        for old in self._checkpoints(name)[KEPT_CHECKPOINTS:]:
            shutil.rmtree(old, ignore_errors=True)


def repeat(
    model: CalledModel, state: CalledState, call: TrainingCall, result: TrainingResult | None, call_files: CallFiles
) -> None:
    """Apply a call that has a result once more to the state that is entered.

    Raises RefusedError if it gives other weights than it did.
    """
    if result is not None and result.error is not None:
        return  # it changed nothing
    try:
        outcome = apply(model, call, call_files)
    except CallError as exc:
        raise RefusedError(f"call {call.call_id} was done before, and fails now: {exc}") from exc
    if outcome.changes_weights and result is not None and result.state_sha256 is not None:
        digest = state.digest()
        if digest != result.state_sha256:
            raise RefusedError(
                f"call {call.call_id} gives weights with sha256 {digest}, and gave {result.state_sha256}: this "
                "machine, model.base, trainer.threads or the libraries are others than then; restore them"
            )


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to write, which is at `target`, whole and synced, when the block has ended without an error."""
    with files.half_written(target.with_name(f"{target.name}.new")) as half:
        yield half
        for path in [*half.iterdir(), half]:
            files.sync(path)
        shutil.rmtree(target, ignore_errors=True)
        half.rename(target)


def _place_of(folder: Path) -> int:
    return int(folder.name[1:]) if folder.name[1:].isdecimal() else -1
