"""Sample with vLLM servers, each used only after verifying which weights it serves.

    serve:   adapter ──► policy.server_folder ──► loaded under a new name ──► listed? as predicted? (verify.py)
    sample:  prompt ids ──► POST /v1/completions, one request per task ──► checked (responses.py) ──► completions
    sample_mixed: the same for several versions at once, which the servers then decode together

The model name in the request says which version is wanted (adapters.py), and the answer must carry the same. A server
that lists an adapter but answers with the base is detected by its logprobs (probe.py), and not used for this adapter;
if no server serves it, the adapter is refused and the old version stays in service. A server that was unreachable or
has lost its adapters (vLLM forgets them when it restarts) is verified again before it is used.

vLLM has to be started with --enable-lora, --max-lora-rank of at least trainer.lora_rank, and in its environment
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. Its logprobs are those before temperature and top_p, unless it is started with
--logprobs-mode processed_logprobs; tasks with another temperature than 0 or 1, or with top_p, are only answered by
servers that are. On a CPU it needs --no-enable-chunked-prefill as well: version 0.32.0 ends when a seeded prompt is run
in two parts there (it rewinds a generator that a CPU cannot rewind). launch.py starts a server with all of this.

An agent killed by SIGKILL leaves its copies in policy.server_folder, and its names on the servers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from streams.engines.base_model import load_base
from streams.engines.protocol import Completion, EnginePart, SamplingRequest, failed
from streams.engines.vllm import responses
from streams.engines.vllm.adapters import VllmAdapters
from streams.engines.vllm.client import VllmServer
from streams.engines.vllm.responses import completions, needs_processed, unanswerable, unprocessed
from streams.engines.vllm.verify import Loaded
from streams.errors import (
    BadAnswer,
    EventError,
    RequestRejected,
    ServerError,
    StreamwardError,
    WrongModel,
)
from streams.settings.model import Settings

log = logging.getLogger("streamward.vllm")

KEPT = 4
"""Versions of a policy that stay loaded: the primary, a candidate, the one before, and one that a task is pinned to."""


class VllmEngine:
    """Serves adapters, of one policy or of several, through the servers in `settings.policy.servers`."""

    name = "vllm"

    def __init__(self, settings: Settings, kept: int | None = None) -> None:
        """`kept` versions stay loaded; None: KEPT. Load the base (for the probe's predictions) and verify the servers.

        Raises SettingsError if one wants another key, has no model to ask for, serves another base than model.base, or
        the folder cannot be written; StreamwardError if none answers.
        """
        base = load_base(settings.model.model_copy(update={"device": "cpu"}))
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self.served_version = 0
        self._now: Loaded | None = None
        self._kept = kept
        self._known: dict[str, Loaded] = {}  # by name, in the order of use
        self._names: dict[tuple[int, Path], str] = {}
        self._adapters = VllmAdapters(settings.policy, base)
        self._prompts, self._proof = self._adapters.prompts, self._adapters.proof
        self._servers = self._adapters.servers

    def close(self) -> None:
        """Unload our adapters from the servers that answer, and release everything else."""
        for loaded in self._known.values():
            self._adapters.unload(loaded)
        self._known.clear()
        self._adapters.close()

    # --- serving -----------------------------------------------------------------------------------------------------

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version`, at no cost if it is still loaded. Keeps the old one when it raises.

        Raises EventError: bad_adapter if it does not fit the base, not_served if no server shows that it serves it;
        SettingsError if the servers take no adapters, StreamwardError if none answers.
        """
        if (adapter is None) != (version == 0):
            raise EventError(
                f"adapter version {version} with folder {adapter}: version 0 is the base model and has no folder, "
                "any other has one; check the uri of the adapter event",
                reason="bad_adapter",
            )
        self._now, self.served_version = None if adapter is None else self._loaded(version, adapter), version
        self._unload_unused()

    def _loaded(self, version: int, adapter: Path) -> Loaded:
        """Return an adapter that at least one server serves. Raises as `serve`."""
        loaded = self._known.get(self._names.get((version, adapter), "")) or self._adapters.put(version, adapter)
        try:
            self._adapters.load(loaded, served=self.served_version)
        except StreamwardError:
            if loaded.name not in self._known:
                self._adapters.unload(loaded)
            raise
        self._known.pop(loaded.name, None)
        self._known[loaded.name], self._names[version, adapter] = loaded, loaded.name
        return loaded

    def _unload_unused(self) -> None:
        others = [loaded for loaded in self._known.values() if loaded is not self._now]
        for loaded in others[: max(0, len(self._known) - (self._kept or KEPT))]:
            self._adapters.unload(self._known.pop(loaded.name))
        self._names = {place: name for place, name in self._names.items() if name in self._known}

    # --- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; see `Engine.sample`.

        Raises StreamwardError if no server gives a usable answer; no task is lost then.
        """
        jobs = self._asked(self._now, requests)
        wait(jobs)
        return [job.result() for job in jobs]

    def sample_mixed(self, parts: Sequence[EnginePart]) -> list[list[list[Completion]]]:
        """Answer requests of several versions in one round; see `MixedEngine`. Raises as `serve` and `sample`.

        The base model is asked apart: vLLM 0.32.0 on a CPU answers for it with the weights of adapters beside it.
        """
        loaded = [None if part.adapter is None else self._loaded(part.version, part.adapter) for part in parts]
        jobs: list[list[Future[list[Completion]]]] = [[] for _ in parts]
        for of_base in (False, True):
            for number, part in enumerate(parts):
                if (loaded[number] is None) is of_base:
                    jobs[number] = self._asked(loaded[number], part.requests)
            wait([job for each in jobs for job in each])
        self._unload_unused()
        return [[job.result() for job in each] for each in jobs]

    def _asked(self, loaded: Loaded | None, requests: Sequence[SamplingRequest]) -> list[Future[list[Completion]]]:
        """Begin to ask the servers."""
        jobs: list[Future[list[Completion]]] = []
        for request in requests:  # here, not in the threads: tokenizers are not thread-safe
            prompt, error = self._prompts.tokens(request)
            if error is None and len(prompt) >= self._proof.context_tokens:
                error = (
                    f"task {request.task.task_id}: {len(prompt)} prompt tokens do not fit the context of "
                    f"{self._proof.context_tokens} that the servers have; shorten it, or raise their --max-model-len"
                )
            if error is None and (unfit := unanswerable(request.sampling)) is not None:
                error = f"task {request.task.task_id}: {unfit}"
            jobs.append(self._adapters.pool.submit(self._answer, loaded, request, prompt, error))
        return jobs

    def _answer(
        self, loaded: Loaded | None, request: SamplingRequest, prompt: tuple[int, ...], error: str | None
    ) -> list[Completion]:
        slots = range(request.task.group_size)
        if error is not None:
            return [failed(slot, error) for slot in slots]
        room = min(request.sampling.max_tokens, self._proof.context_tokens - len(prompt))
        asked = responses.body(request, prompt, room, sorted(self._prompts.ends))
        is_unreported = False

        def on(server: VllmServer) -> list[Completion]:
            model = self._proof.ready(server, loaded)
            if needs_processed(request.sampling) and not server.is_processed:
                nonlocal is_unreported
                is_unreported = True
                raise WrongModel(f"task {request.task.task_id}: {unprocessed(request.sampling, server.url)}")
            try:
                with server.answering():
                    answer = server.ask("POST", "/v1/completions", {"model": model, **asked}, trace=request.trace)
                return completions(answer, request, model=model, prompt=prompt, room=room, prompts=self._prompts)
            except RequestRejected as exc:
                if exc.status != 404:
                    raise
                server.forget()  # it was restarted, or another agent unloaded the adapter
                raise BadAnswer(f"{exc}; it will be verified again") from exc
            except BadAnswer as exc:
                raise BadAnswer(f"task {request.task.task_id}: {server.url} gave an unusable answer: {exc}") from exc

        try:
            return self._servers.run(hashlib.sha256(str(prompt).encode()).digest(), on)
        except (RequestRejected, ServerError, WrongModel) as exc:
            if isinstance(exc, WrongModel) and not is_unreported:
                raise
            return [failed(slot, str(exc)) for slot in slots]
