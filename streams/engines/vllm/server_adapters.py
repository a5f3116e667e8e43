"""The adapters of one policy on its vLLM servers: put where the servers find them, loaded, verified, unloaded.

    adapter ──► policy.server_folder ──► loaded under a new name ──► listed? as predicted? (server_proof.py) ──► served

An adapter's name on every server is made of policy, version and the hash of its files, so the model name in a request
says which version is wanted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from schemas.events import Sampling
from streams.engines.base_model import Base
from streams.engines.rendering.prompts import Prompts
from streams.engines.vllm.completions_api import needs_processed, processed_needed
from streams.engines.vllm.probe import Probe
from streams.engines.vllm.server_proof import Loaded, Proof
from streams.engines.vllm.servers import VllmServer, VllmServers
from streams.errors import (
    BadAnswer,
    EventError,
    ModelServerError,
    RequestRejected,
    ServerError,
    ServerUnavailable,
    SettingsError,
    StreamwardError,
    WrongModel,
)
from streams.files import sha256_of
from streams.settings.model import Policy

T = TypeVar("T")
log = logging.getLogger("streamward.vllm")

MOST_THREADS = 256
UNLOAD_S = 5.0
"""Time limit for a server to unload an adapter; if exceeded, it stays loaded, which only costs memory."""


class VllmAdapters:
    """The servers in `policy.servers`, and their adapters. One thread at a time puts and loads."""

    def __init__(self, policy: Policy, base: Base) -> None:
        """Verify the servers with `base`; nothing else may run its model until `close`.

        Raises SettingsError if one requires another key, has no model, serves another base than model.base, or
        the folder cannot be written; if none reports the logprobs that model.base needs; StreamwardError if none
        answers.
        """
        self._policy = policy
        self.prompts = Prompts(base)
        _use_threads(policy.threads)
        self._probe = Probe(self.prompts, base.model) if policy.verify == "logprobs" else None
        self.proof = Proof(policy, self._probe, self.prompts)
        self._folder = _own_folder(policy.server_folder)
        self.servers = VllmServers(policy)
        workers = min(MOST_THREADS, policy.max_concurrent * len(self.servers.servers))
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="vllm")
        """The threads that send requests."""
        self._loaders = ThreadPoolExecutor(len(self.servers.servers), thread_name_prefix="vllm-load")
        self._verify_everywhere(None)
        try:
            self.servers.run(b"", lambda server: self.proof.ready(server, None))
        except (WrongModel, ServerError, BadAnswer) as exc:
            self.close()
            raise SettingsError(str(exc)) from exc
        except StreamwardError:
            self.close()
            raise
        table, servers = self.prompts.token_table, self.servers.servers
        if needs_processed(Sampling(), table) and all(server.reports_unprocessed for server in servers):
            self.close()
            raise SettingsError(processed_needed(Sampling(), table, servers[0].url))

    def close(self) -> None:
        """Release everything, once the threads are done."""
        self._loaders.shutdown()
        self.pool.shutdown()
        self.servers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, version: int, adapter: Path) -> Loaded:
        """Copy an adapter to where the servers find it, and predict its logprobs. Raises EventError (bad_adapter)."""
        predicted = self._probe.logprobs(adapter) if self._probe else []
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

    def load(self, loaded: Loaded, *, served: int) -> None:
        """Have at least one server serve the adapter; `served` continues to be served if none does.

        Raises EventError (not_served), or as `VllmServers.run`.
        """
        if self._is_verified(loaded):
            return
        self._verify_everywhere(loaded)
        try:
            self.servers.run(loaded.name.encode(), lambda server: self.proof.ready(server, loaded))
        except (WrongModel, ServerError, BadAnswer) as exc:
            raise not_served(loaded, exc, served) from exc

    def load_now(self, loaded: Loaded) -> None:
        """Have at least one server serve the adapter, without waiting for unreachable ones.

        Raises EventError: not_served, or store_unreachable if one that could not be asked may serve it later.
        """
        if self._is_verified(loaded):
            return
        failures = self._verify_everywhere(loaded)
        if self._is_verified(loaded):
            return
        paused = [server.url for server in self.servers.servers if server.is_paused()]
        if paused or any(isinstance(failure, ServerUnavailable) for failure in failures):  # a pause may be over by now
            servers = ", ".join(paused) or "a server"
            error = f"adapter {loaded.name}: {servers} cannot be asked now; start what is in policy.servers"
            raise EventError(error, reason="store_unreachable")
        raise not_served(loaded, failures[-1], 0) from failures[-1]

    def request(self, server: VllmServer, loaded: Loaded | None, sampling: Sampling, send: Callable[[str], T]) -> T:
        """Return the result of `send` with the model's name, once this server is verified to serve `loaded`.

        Raises WrongModel if the server cannot draw like this, BadAnswer if it has lost the adapter, and the errors of
        `Proof.ready` and `send`.
        """
        model = self.proof.ready(server, loaded)
        table = self.prompts.token_table
        if needs_processed(sampling, table) and not server.is_processed:
            raise WrongModel(processed_needed(sampling, table, server.url))
        try:
            with server.answering():
                return send(model)
        except RequestRejected as exc:
            if exc.status != 404:
                raise
            server.forget()  # it was restarted, or another agent unloaded the adapter
            raise BadAnswer(f"{exc}; it will be verified again") from exc

    def unload(self, loaded: Loaded) -> None:
        """Unload an adapter from the servers that answer, and delete our copy."""
        for server in self.servers.servers:
            server.verified.discard(loaded.name)
            if loaded.name not in server.loaded_here or server.is_paused():
                continue
            server.loaded_here.discard(loaded.name)
            try:
                server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": loaded.name}, timeout_s=UNLOAD_S)
            except StreamwardError as exc:
                log.info("%s stays loaded on the server: %s", loaded.name, exc)
        shutil.rmtree(self._folder / loaded.name, ignore_errors=True)

    def _is_verified(self, loaded: Loaded) -> bool:
        return any(loaded.name in server.verified for server in self.servers.servers)

    def _verify_everywhere(self, loaded: Loaded | None) -> list[ModelServerError]:
        """Try to load and verify on every server ahead of its first task, and return the failures."""
        failures = self._loaders.map(lambda server: self._verify(server, loaded), self.servers.servers)
        return [failure for failure in failures if failure is not None]

    def _verify(self, server: VllmServer, loaded: Loaded | None) -> ModelServerError | None:
        if server.is_paused():
            return None
        try:
            self.proof.ready(server, loaded)
        except ServerUnavailable as exc:
            server.pause(exc)
            return exc
        except (WrongModel, ServerError, BadAnswer) as exc:
            log.warning("%s is not used for %s: %s", server.url, loaded.name if loaded else "the base", exc)
            return exc
        return None


def not_served(loaded: Loaded, cause: ModelServerError, served: int) -> EventError:
    """Return the error of an adapter that no server serves."""
    return EventError(
        f"adapter {loaded.name}: no server in policy.servers serves it: {cause}; version {served} continues: look into "
        "the server's output, or train the version again",
        reason="not_served",
    )


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
