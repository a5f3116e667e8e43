"""The samples that calls ask for: their weights, wherever they are, and the engine.

    sampling session ──► files of a save of its model, of the store, or none: the base ──► adapter ──┐
    calls ──► requests ──────────────────────────────────────────────────────────────────────────────┴──► PromptSampler

What a call draws depends on its weights and itself alone, not on the calls that are served with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugins.tinker.calls.call_state import CallState, place_of
from plugins.tinker.sampling.prompt_sampler import PromptSampler
from plugins.tinker.worker.apply_call import CallFiles, CallOutcome
from plugins.tinker.worker.call_queue import WaitingCall
from plugins.tinker.worker.call_tensors import tensors_of
from plugins.tinker.worker.resident_models import ResidentModels
from plugins.tinker.worker.sample_call import draw_of, outcome_of
from plugins.tinker.worker.saved_weights import SavedWeights, sampler_folder
from plugins.tinker.worker.worker_settings import Tinker
from schemas.events import TrainingCall
from streams.engines.base_model import load_base
from streams.engines.local.prompt_scores import PromptDraw
from streams.errors import CallError
from streams.settings.model import Settings

log = logging.getLogger(__name__)


class CallSampler:
    """Answers samples of the models of a worker."""

    def __init__(
        self, settings: Settings, state: CallState, models: ResidentModels, saved: SavedWeights, files: CallFiles
    ) -> None:
        self._settings, self._state, self._models, self._saved, self._files = settings, state, models, saved, files
        self._engine: PromptSampler | None = None

    def close(self) -> None:
        """Let go of the engine."""
        if self._engine is not None:
            self._engine.close()

    def request_of(self, waiting: WaitingCall) -> tuple[PromptDraw, int]:
        """Return what a call asks for, and how many tokens that is at most. Raises CallError with what cannot be."""
        if waiting.refused is not None:
            raise CallError("invalid", waiting.refused)
        if waiting.call.call_id in self._state.cancelled:
            raise CallError("invalid", "the request was cancelled by its client")
        request = draw_of(waiting.call, tensors_of(self._files.data(waiting.call)))
        return request, len(request.prompt) + request.samples * self._sampler.room(request)

    def draw_all(self, batch: Sequence[tuple[WaitingCall, PromptDraw]]) -> Iterator[tuple[WaitingCall, CallOutcome]]:
        """Yield the outcomes of calls that read the same weights, as they are done.

        Raises CallError if there are no such weights, EventError if they cannot be used.
        """
        if not batch:
            return
        adapter = self._weights_of(batch[0][0].call)
        for index, drawn in self._sampler.draw_all(adapter, [request for _, request in batch]):
            waiting, request = batch[index]
            yield waiting, outcome_of(waiting.call, request, drawn)

    def _weights_of(self, call: TrainingCall) -> Path | None:
        """Return the folder of the weights that a call samples from; None: the base model's. Raises CallError."""
        sampler = self._state.samplers.get(call.sampling_session or "")
        if sampler is None:
            raise CallError("invalid", f"there is no sampling session {call.sampling_session}")
        if sampler.save is None:
            return None if sampler.source is None else self._saved.fetch(sampler.source, sampler.path or "")
        saved, place = self._state.results[sampler.save], place_of(self._state.calls[sampler.save])
        if saved.error is not None or place is None:
            raise CallError("invalid", f"the weights of {call.sampling_session} were not saved: {saved.error}")
        folder = sampler_folder(self._models.folder(sampler.model), place)
        if not folder.is_dir():
            log.info("%s: computing the weights of %s again", sampler.model, call.sampling_session)
            self._models.enter(sampler.model, place)
            self._saved.keep_for_sampler(self._models.folder(sampler.model), place)
        return folder

    @property
    def _sampler(self) -> PromptSampler:
        """The engine, loaded when it is first needed."""
        if self._engine is None:
            base = load_base(self._settings.model)
            samplers = self._settings.of_plugin(Tinker).samplers
            self._engine = PromptSampler(base, self._settings.trainer.threads, samplers)
        return self._engine
