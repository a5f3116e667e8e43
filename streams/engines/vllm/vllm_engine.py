"""Sample with vLLM servers, each used only after verifying which weights it serves.

    serve:   adapter ──► policy.server_folder ──► loaded under a new name ──► listed? as predicted? (server_proof.py)
    sample:  prompt ids ──► POST /v1/completions, one request per task ──► checked (completions_api.py) ──► completions
    sample_mixed: the same for several versions at once, which the servers then decode together

The model name in the request states the version (server_adapters.py), and the answer must carry the same. A server that
lists an adapter but answers with the base is detected by its logprobs (probe.py), and not used for this adapter; if no
server serves it, the adapter is refused and the old version stays in service. A server that was unreachable or has lost
its adapters (vLLM forgets them when it restarts) is verified again before it is used.

vLLM has to be started with --enable-lora, --max-lora-rank of at least trainer.lora_rank, and in its environment
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. Its logprobs are those before temperature and top_p, unless it is started with
--logprobs-mode processed_logprobs; tasks with another temperature than 0 or 1, or with top_p, and all tasks for a model
that has rows without a token, are only answered by servers that are. On a CPU it needs --no-enable-chunked-prefill as
well: version 0.32.0 ends when a seeded prompt is run in two parts there (it rewinds a generator that a CPU cannot
rewind). launch.py starts a server with all of this.

Rounds are not made of streams (vllm_tokens.py): compared with a stream for each slot, one request for all slots of a
task takes a ninth of the client's CPU time with 12 tokens a slot, and a twentieth with 128; and it can be retried as a
whole, so that a server that fails in the middle of its answers loses no task.

An agent killed by SIGKILL leaves its copies in policy.server_folder, and its names on the servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from streams.engines import quantized_base
from streams.engines.base_model import load_base
from streams.engines.protocol import Completion, EnginePart, SamplingRequest, check_folder, failed_slots
from streams.engines.vllm.completions_api import completions, completions_body, needs_processed, unanswerable
from streams.engines.vllm.server_adapters import VllmAdapters
from streams.engines.vllm.server_proof import Loaded
from streams.engines.vllm.servers import VllmServer
from streams.errors import BadAnswer, EventError, RequestRejected, ServerError, StreamwardError, WrongModel
from streams.settings.model import Settings

CAPACITY = 4
"""Number of a policy's versions that stay loaded: the primary, a candidate, the previous one, and a pinned one."""


class VllmEngine:
    """Serves adapters, of one policy or of several, through the servers in `settings.policy.servers`."""

    name = "vllm"

    def __init__(self, settings: Settings, capacity: int | None = None) -> None:
        """Load the base (for the probe's predictions) and verify the servers. `capacity` versions stay loaded.

        Raises SettingsError if one requires another key, has no model, serves another base than model.base, or
        the folder cannot be written; StreamwardError if none answers.
        """
        quantized_base.refuse(settings.model, "engine vllm")
        base = load_base(settings.model.model_copy(update={"device": "cpu"}))
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self.served_version = 0
        self._served: Loaded | None = None
        self._capacity = capacity or CAPACITY
        self._loaded: dict[str, Loaded] = {}  # by name, in the order of use
        self._names: dict[tuple[int, Path], str] = {}
        self._adapters = VllmAdapters(settings.policy, base)
        self._prompts, self._proof = self._adapters.prompts, self._adapters.proof
        self._servers = self._adapters.servers

    def close(self) -> None:
        """Unload our adapters from the servers that answer, and release everything else."""
        for loaded in self._loaded.values():
            self._adapters.unload(loaded)
        self._loaded.clear()
        self._adapters.close()

    # --- serving -----------------------------------------------------------------------------------------------------

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version`, at no cost if it is still loaded. Keeps the old one when it raises.

        Raises EventError: bad_adapter if it does not fit the base, not_served if no server shows that it serves it;
        SettingsError if the servers take no adapters, StreamwardError if none answers.
        """
        check_folder(version, adapter)
        self._served, self.served_version = None if adapter is None else self._load(version, adapter), version
        self._unload_unused()

    def _load(self, version: int, adapter: Path) -> Loaded:
        """Return an adapter that at least one server serves. Raises as `serve`."""
        loaded = self._loaded.get(self._names.get((version, adapter), "")) or self._adapters.put(version, adapter)
        try:
            self._adapters.load(loaded, served=self.served_version)
        except StreamwardError:
            if loaded.name not in self._loaded:
                self._adapters.unload(loaded)
            raise
        self._loaded.pop(loaded.name, None)
        self._loaded[loaded.name], self._names[version, adapter] = loaded, loaded.name
        return loaded

    def _unload_unused(self) -> None:
        unserved = [loaded for loaded in self._loaded.values() if loaded is not self._served]
        for loaded in unserved[: max(0, len(self._loaded) - self._capacity)]:
            self._adapters.unload(self._loaded.pop(loaded.name))
        self._names = {place: name for place, name in self._names.items() if name in self._loaded}

    # --- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; see `Engine.sample`.

        Raises StreamwardError if no server gives a usable answer; no task is lost then.
        """
        jobs = self._submit(self._served, requests)
        wait(jobs)
        return [job.result() for job in jobs]

    def sample_mixed(self, parts: Sequence[EnginePart]) -> list[list[list[Completion]]]:
        """Answer requests of several versions in one round; see `MixedEngine`. Raises as `serve` and `sample`.

        The base model answers separately: vLLM 0.32.0 on a CPU answers for it with the weights of adapters in the same
        step.
        """
        loaded = [None if part.adapter is None else self._load(part.version, part.adapter) for part in parts]
        jobs: list[list[Future[list[Completion]]]] = [[] for _ in parts]
        for of_base in (False, True):
            for number, part in enumerate(parts):
                if (loaded[number] is None) is of_base:
                    jobs[number] = self._submit(loaded[number], part.requests)
            wait([job for part_jobs in jobs for job in part_jobs])
        self._unload_unused()
        return [[job.result() for job in part_jobs] for part_jobs in jobs]

    def _submit(self, loaded: Loaded | None, requests: Sequence[SamplingRequest]) -> list[Future[list[Completion]]]:
        """Send the requests, in threads."""
        jobs: list[Future[list[Completion]]] = []
        for request in requests:
            try:
                prompt = self._prompt(request)  # here, not in the threads: tokenizers are not thread-safe
            except EventError as exc:
                job = Future[list[Completion]]()
                job.set_result(_answer_failed(request, exc))
            else:
                job = self._adapters.pool.submit(self._answer, loaded, request, prompt)
            jobs.append(job)
        return jobs

    def _prompt(self, request: SamplingRequest) -> tuple[int, ...]:
        """Return the tokens of a prompt. Raises EventError if it can never be answered."""
        prompt = self._prompts.of_request(request)
        if len(prompt) >= self._proof.context_tokens:
            raise EventError(
                f"{len(prompt)} prompt tokens do not fit the context of {self._proof.context_tokens} that the servers "
                "have; shorten it, or raise their --max-model-len",
                reason="prompt_too_long",
            )
        if (unfit := unanswerable(request.sampling)) is not None:
            raise EventError(unfit, reason="bad_sampling")
        return prompt

    def _answer(self, loaded: Loaded | None, request: SamplingRequest, prompt: tuple[int, ...]) -> list[Completion]:
        room = min(request.sampling.max_tokens, self._proof.context_tokens - len(prompt))
        body = completions_body(request, prompt, room, self._prompts.token_table)

        def complete(server: VllmServer) -> list[Completion]:
            def post(model: str) -> list[Completion]:
                reply = server.ask("POST", "/v1/completions", {"model": model, **body}, trace=request.trace)
                return completions(reply, request, model=model, prompt=prompt, room=room, prompts=self._prompts)

            try:
                return self._adapters.request(server, loaded, request.sampling, post)
            except BadAnswer as exc:
                raise BadAnswer(f"task {request.task.task_id}: {server.url} gave an unusable answer: {exc}") from exc

        try:
            return self._servers.run(hashlib.sha256(str(prompt).encode()).digest(), complete)
        except WrongModel as exc:
            if needs_processed(request.sampling, self._prompts.token_table) and any(
                server.reports_unprocessed for server in self._servers.servers
            ):
                return _answer_failed(request, exc)
            raise
        except (RequestRejected, ServerError) as exc:
            return _answer_failed(request, exc)


def _answer_failed(request: SamplingRequest, error: StreamwardError) -> list[Completion]:
    return failed_slots(request, f"task {request.task.task_id}: {error}")
