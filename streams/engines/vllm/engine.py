"""Sample with vLLM servers, each used only after verifying which weights it serves.

    serve:   adapter ──► policy.server_folder ──► loaded under a new name ──► listed? as predicted? (verify.py)
    sample:  prompt ids ──► POST /v1/completions, one request per task ──► checked (responses.py) ──► completions

An adapter's name on every server is made of policy, version and the hash of its files. The model name in the request
says which version is wanted, and the answer must carry the same. A server that lists an adapter but answers with the
base is detected by its logprobs (probe.py), and not used for this adapter; if no server serves it, the adapter is
refused and the old version stays in service. A server that was unreachable or has lost its adapters (vLLM forgets them
when it restarts) is verified again before it is used.

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
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from streams.engines.base_model import load_base
from streams.engines.prompts import Prompts
from streams.engines.protocol import Completion, SamplingRequest, failed
from streams.engines.vllm import responses
from streams.engines.vllm.client import VllmServer, VllmServers
from streams.engines.vllm.probe import Probe
from streams.engines.vllm.responses import completions, needs_processed, unanswerable
from streams.engines.vllm.verify import Loaded, Proof
from streams.errors import (
    BadAnswer,
    EventError,
    RequestRejected,
    ServerError,
    ServerUnavailable,
    SettingsError,
    StreamwardError,
    WrongModel,
)
from streams.files import sha256_of
from streams.settings.model import Settings

log = logging.getLogger("streamward.vllm")

KEPT = 4
"""Versions that stay loaded: the primary, a candidate, the one before, and one that a task is pinned to."""
MOST_THREADS = 256
UNLOAD_S = 5.0
"""An adapter that a server does not unload within this stays loaded, which only costs memory."""


class VllmEngine:
    """Serves the adapters of one policy through the servers in `settings.policy.servers`."""

    name = "vllm"

    def __init__(self, settings: Settings) -> None:
        """Load the base (for the probe's predictions) and verify the servers.

        Raises SettingsError if one wants another key, has no model to ask for, serves another base than model.base, or
        the folder cannot be written; StreamwardError if none answers.
        """
        policy = settings.policy
        base = load_base(settings.model.model_copy(update={"device": "cpu"}))
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self.served_version = 0
        self._policy = policy
        self._prompts = Prompts(base.model, base.tokenizer)
        _use_threads(policy.threads)
        self._probe = Probe(self._prompts, base.model) if policy.verify == "logprobs" else None
        self._proof = Proof(policy, self._probe, self._prompts)
        self._now: Loaded | None = None
        self._known: dict[int, Loaded] = {}  # in the order of use
        self._folder = _own_folder(policy.server_folder)
        self._servers = VllmServers(policy)
        workers = min(MOST_THREADS, policy.max_concurrent * len(self._servers.all))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vllm")
        self._each(None)
        try:
            self._servers.run(b"", lambda server: self._proof.ready(server, None))
        except (WrongModel, ServerError, BadAnswer) as exc:
            self.close()
            raise SettingsError(str(exc)) from exc
        except StreamwardError:
            self.close()
            raise

    def close(self) -> None:
        """Unload our adapters from the servers that answer, and release everything else."""
        for loaded in self._known.values():
            self._unload(loaded)
        self._known.clear()
        self._pool.shutdown()
        self._servers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        loaded = self._known.get(version) if adapter else None
        if adapter and (loaded is None or loaded.source != adapter):
            loaded = self._put(version, adapter)
        if loaded is not None:
            try:
                self._load(loaded)
            except StreamwardError:
                if self._known.get(version) is not loaded:
                    self._unload(loaded)
                raise
            before = self._known.pop(version, loaded)
            self._known[version] = loaded
            if before.name != loaded.name:
                self._unload(before)
        self._now, self.served_version = loaded, version
        for old in list(self._known)[:-KEPT]:
            self._unload(self._known.pop(old))

    def _put(self, version: int, adapter: Path) -> Loaded:
        """Copy an adapter to where the servers find it, and predict its logprobs. Raises EventError (bad_adapter)."""
        predicted = self._probe.of(adapter) if self._probe else []
        files = sorted(path for path in adapter.iterdir() if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.name}\0{sha256_of(path)}\n".encode())
        name = f"{self._policy.name}-v{version}-{digest.hexdigest()[:8]}"
        copy = self._folder / name
        try:
            copy.mkdir(exist_ok=True)
            for path in files:
                shutil.copyfile(path, copy / path.name)
        except OSError as exc:
            raise StreamwardError(f"{copy}: cannot be written: {exc}; make room in policy.server_folder") from exc
        root = self._policy.server_adapters or str(self._folder.parent)
        return Loaded(version, adapter, name, f"{root.rstrip('/')}/{self._folder.name}/{name}", predicted)

    def _load(self, loaded: Loaded) -> None:
        """Have at least one server serve the adapter. Raises EventError (not_served), or as `VllmServers.run`."""
        if any(loaded.name in server.verified for server in self._servers.all):
            return
        self._each(loaded)
        try:
            self._servers.run(loaded.name.encode(), lambda server: self._proof.ready(server, loaded))
        except (WrongModel, ServerError, BadAnswer) as exc:
            raise EventError(
                f"adapter {loaded.name}: no server in policy.servers serves it: {exc}; version {self.served_version} "
                "continues: look into the server's output, or train the version again",
                reason="not_served",
            ) from exc

    def _each(self, loaded: Loaded | None) -> None:
        """Load and verify on every server ahead of its first task, as far as possible."""
        for attempt in [self._pool.submit(self._try, server, loaded) for server in self._servers.all]:
            attempt.result()

    def _try(self, server: VllmServer, loaded: Loaded | None) -> None:
        if server.is_paused():
            return
        try:
            self._proof.ready(server, loaded)
        except ServerUnavailable as exc:
            server.pause(exc)
        except (WrongModel, ServerError, BadAnswer) as exc:
            log.warning("%s is not used for %s: %s", server.url, loaded.name if loaded else "the base", exc)

    def _unload(self, loaded: Loaded) -> None:
        for server in self._servers.all:
            server.verified.discard(loaded.name)
            if loaded.name not in server.ours or server.is_paused():
                continue
            server.ours.discard(loaded.name)
            try:
                server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": loaded.name}, timeout_s=UNLOAD_S)
            except StreamwardError as exc:
                log.info("%s stays loaded on the server: %s", loaded.name, exc)
        shutil.rmtree(self._folder / loaded.name, ignore_errors=True)

    # --- sampling ----------------------------------------------------------------------------------------------------

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; see `Engine.sample`.

        Raises StreamwardError if no server gives a usable answer; no task is lost then.
        """
        jobs: list[Future[list[Completion]]] = []
        for request in requests:  # here, not in the threads: tokenizers are not thread-safe
            prompt, error = self._prompts.tokens(request)
            if error is None and len(prompt) >= self._proof.context_tokens:
                error = (
                    f"task {request.task.task_id}: {len(prompt)} prompt tokens do not fit the context of "
                    f"{self._proof.context_tokens} that the servers have; shorten it, or raise their --max-model-len"
                )
            error = error or unanswerable(request)
            jobs.append(self._pool.submit(self._answer, request, prompt, error))
        wait(jobs)
        return [job.result() for job in jobs]

    def _answer(self, request: SamplingRequest, prompt: tuple[int, ...], error: str | None) -> list[Completion]:
        slots = range(request.task.group_size)
        if error is not None:
            return [failed(slot, error) for slot in slots]
        loaded, room = self._now, min(request.sampling.max_tokens, self._proof.context_tokens - len(prompt))
        asked = responses.body(request, prompt, room, sorted(self._prompts.ends))
        is_unreported = False

        def on(server: VllmServer) -> list[Completion]:
            model = self._proof.ready(server, loaded)
            if needs_processed(request) and not server.is_processed:
                nonlocal is_unreported
                is_unreported = True
                raise WrongModel(
                    f"task {request.task.task_id}: temperature {request.sampling.temperature:g} and top_p "
                    f"{request.sampling.top_p:g} need logprobs of the distribution drawn from, and {server.url} "
                    "reports those before them; start it with --logprobs-mode processed_logprobs"
                )
            try:
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


def _own_folder(shared: Path) -> Path:
    """Return a new folder in the shared one, readable by the servers. Raises SettingsError."""
    try:
        shared.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="agent-", dir=shared.resolve()))
        folder.chmod(0o755)
    except OSError as exc:
        raise SettingsError(
            f"policy.server_folder={shared}: cannot be written: {exc}; set it to a folder that this agent writes and "
            "the servers read"
        ) from exc
    return folder


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads or os.cpu_count() or 1)
