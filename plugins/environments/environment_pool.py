"""Environments by reference, each in a process that can be killed.

    name, settings ──► a process that opens it ──► reset, step ──► Observation, StepResult, or EpisodeError

A process is kept for the next episode of the same environment, since an import takes seconds; for other settings it
creates the environment again. Step time, memory and observation size are limited, and the network is blocked unless the
settings allow it (environment_worker.py). An environment that hangs or crashes ends only its episode.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import asdict
from queue import SimpleQueue
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter, ValidationError

from plugins.environments.by_reference import check_kind, host_of, imported_module, is_reference, is_server
from plugins.environments.environment_kind import kind_of
from plugins.environments.episodes.environment import (
    OBSERVATION,
    RESULT,
    Action,
    Environment,
    EpisodeError,
    Observation,
    StepResult,
)
from plugins.environments.listed import open_listed, settings_of
from plugins.environments.settings import Environments
from schemas import json_text
from schemas.events import EpisodeStart
from streams.egress import current_rule, trace_headers
from streams.egress.http_client import clean_key
from streams.errors import SettingsError, StreamwardError
from streams.processes.worker_pipe import START_LIMIT_S, WorkerError, WorkerKind, WorkerProcess
from streams.settings.model import Settings

ENVIRONMENT = WorkerKind(
    "plugins.environments.environment_worker", "an environment's process", "environments.timeout_s"
)


class EnvironmentPool:
    """Opens environments: listed ones in the caller's thread, others in processes. Any number of threads may use it."""

    def __init__(self, limits: Environments, settings: Settings | None = None) -> None:
        """`settings`: for the kinds of environments that other plugins open; without them none is."""
        self._limits, self._settings = limits, settings
        self._lock = threading.Lock()
        self._idle: dict[str, list[_EnvironmentProcess]] = defaultdict(list)
        self._alive: set[_EnvironmentProcess] = set()
        self._returned: deque[tuple[str, _EnvironmentProcess]] = deque()
        """Processes whose environment is gone."""
        self._releasing = threading.Lock()
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """One True for each of them; False: the pool is closed."""
        self._thread: threading.Thread | None = None

    def open(self, start: EpisodeStart) -> Environment:
        """Return an environment for one episode at a time.

        Its process is free again when the environment is garbage collected, which ends a session on a server. Raises
        EpisodeError.
        """
        if not is_reference(start.name):
            return open_listed(start.name, start.settings)
        settings = settings_of(start.name, start.settings)
        if self._settings is not None and (kind := kind_of(start.name)) is not None:
            try:
                return kind.open(self._settings, start.name, settings)
            except EpisodeError:
                raise
            except StreamwardError as exc:
                raise EpisodeError(f"{start.name}: {exc}", reason="exception") from exc
        self._check_allowed(start.name)
        self._release_returned()
        process = self._take_idle(start.name, settings) or self._start(start.name)
        try:
            process.open(settings)
        except BaseException:  # KeyboardInterrupt too: nothing else would end the process
            process.is_usable = False
            self._release(start.name, process)
            raise
        environment = SandboxedEnvironment(process)
        weakref.finalize(environment, self._return, start.name, process)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._release_until_closed, name="environments", daemon=True)
                self._thread.start()
        return environment

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            alive, self._alive = list(self._alive), set()
            self._idle.clear()
        self._wakes.put(False)
        for process in alive:
            process.dispose()

    def _take_idle(self, name: str, settings: dict[str, Any]) -> _EnvironmentProcess | None:
        """Return an idle process of an environment, if possible one that has it open with these settings."""
        with self._lock:
            idle = self._idle[name]
            if not idle:
                return None
            process = next((process for process in idle if process.settings == settings), idle[-1])
            idle.remove(process)
        if process.is_spoilt():
            self._release(name, process)
            return None
        return process

    def _start(self, name: str) -> _EnvironmentProcess:
        """Start a process. Raises EpisodeError."""
        process = _EnvironmentProcess(name, self._limits)
        with self._lock:
            self._alive.add(process)
        return process

    def _return(self, name: str, process: _EnvironmentProcess) -> None:
        """Take a process back. A finalizer runs in any thread, in the middle of anything, so it takes no lock."""
        self._returned.append((name, process))
        self._wakes.put(True)

    def _release_until_closed(self) -> None:
        while self._wakes.get():
            self._release_returned()

    def _release_returned(self) -> None:
        """Release all processes that came back; wait for their sessions to end, also if another thread ends them."""
        with self._releasing:
            while self._returned:
                self._release(*self._returned.popleft())

    def _release(self, name: str, process: _EnvironmentProcess) -> None:
        with self._lock:
            is_alive = process.is_usable and process in self._alive
        if is_alive:  # an idle process would hold a place of its server
            with contextlib.suppress(EpisodeError):
                process.end_session()
        with self._lock:
            if process.is_usable and process in self._alive and not process.is_spoilt():
                self._idle[name].append(process)
                return
            self._alive.discard(process)
        process.dispose()

    def _check_allowed(self, name: str) -> None:
        """Raise EpisodeError: unknown_environment; not_allowed for code and servers that tasks may not name."""
        check_kind(name)
        if is_server(name):
            check_listed(name, self._limits)
            return
        module, modules = imported_module(name), self._limits.importable
        packages = [package for package in modules if package != "."]
        if module and not any(module == package or module.startswith(f"{package}.") for package in packages):
            raise EpisodeError(
                f"{name} is not opened: environments.modules lists {', '.join(modules) or 'no module'}, and a task can "
                f"only name what is listed; add {module}, and `.` if it is in the working folder",
                reason="not_allowed",
            )


class SandboxedEnvironment:
    """An environment in a process of its own."""

    def __init__(self, process: _EnvironmentProcess) -> None:
        self._process, self.version = process, process.version

    def reset(self, seed: int) -> Observation:
        """Begin the episode of `seed`. Raises EpisodeError, as `step`."""
        observation: Observation = self._process.call("reset", {"seed": seed}, "observation", OBSERVATION)
        return observation

    def step(self, action: Action) -> StepResult:
        """Return the result of an action. Raises EpisodeError: timeout, crashed, memory, and those of its worker."""
        result: StepResult = self._process.call("step", {"action": asdict(action)}, "result", RESULT)
        return result

    def end_session(self) -> None:
        """Release its session on a server, if it has one. Raises EpisodeError, and its process has ended then."""
        self._process.end_session()

    def kill(self) -> None:
        """End its process: a call in progress fails. Any thread may call it."""
        self._process.is_usable = False
        self._process.kill()


class _EnvironmentProcess(WorkerProcess):
    """The process of one environment."""

    def __init__(self, name: str, limits: Environments) -> None:
        """Start it. Raises EpisodeError."""
        folders = [os.getcwd()] if "." in limits.importable else []
        self._name, self._limits = name, limits
        self.version = ""
        self.is_usable = True
        self.settings: dict[str, Any] | None = None
        """Of the environment that is open; None before the first."""
        self.has_session = False
        """Whether an episode on a server has begun and was not ended."""
        with _episode_errors():
            rule = current_rule()
            arguments = [str(int(limits.network)), host_of(name) or "", rule.hosts, rule.private, *folders]
            super().__init__(ENVIRONMENT, arguments, limits.variables)

    def open(self, settings: dict[str, Any]) -> None:
        """Let it open its environment, unless it is open. Raises EpisodeError."""
        if settings == self.settings:
            return
        self.settings = settings
        secret = credential_of(self._name, self._limits)
        answer = self._request("open", {"settings": settings, "credential": secret}, START_LIMIT_S)
        self.version = str(answer.get("version", ""))

    def call(self, method: str, arguments: dict[str, Any], field: str, result_type: TypeAdapter[Any]) -> Any:
        """Return the result of a method, which is a field of the worker's answer. Raises EpisodeError."""
        self.has_session = self.has_session or is_server(self._name)
        answer = self._request(method, arguments, self._limits.timeout_s)
        try:
            return result_type.validate_json(json.dumps(answer.get(field)), strict=True)
        except ValidationError as exc:
            error = exc.errors()[0]
            path = ".".join(map(str, error["loc"]))
            message = f"{self._name}: {method}: {path}: {error['msg']}, got {str(error['input'])[:80]!r}"
            raise EpisodeError(message, reason="bad_result") from exc

    def end_session(self) -> None:
        """Let its environment end the session on its server, if it has one. Raises EpisodeError."""
        if self.has_session and self.is_usable:
            self._request("end_session", {}, self._limits.timeout_s)
            self.has_session = False

    def _request(self, method: str, arguments: dict[str, Any], limit_s: float) -> dict[str, Any]:
        request_id = token_hex(16)
        memory_bytes = self._limits.memory_mib * 1024**2
        request = {"id": request_id, "do": method, "name": self._name, "memory_bytes": memory_bytes, **trace_headers()}
        try:
            with _episode_errors():
                self.write(self._name, json.dumps(request | arguments).encode(), limit_s)
                answer = self.receive(self._name, method, limit_s, request_id)
        except EpisodeError:
            self.is_usable = False
            self.kill()
            raise
        if "reason" in answer:
            self.is_usable = answer["reason"] not in ("memory", "exception")
            raise EpisodeError(str(answer.get("error")), reason=str(answer["reason"]))
        return answer


def check_listed(server: str, limits: Environments) -> None:
    """Raise EpisodeError(not_allowed) for a server that the settings do not list."""
    if server not in limits.allowed_servers:
        servers = ", ".join(limits.allowed_servers) or "no server"
        raise EpisodeError(
            f"{server} is not opened: environments.servers lists {servers}, and a task can only name what is "
            f"listed; add {server}",
            reason="not_allowed",
        )


def credential_of(server: str, limits: Environments) -> str:
    """Return the current token of a server from its file; empty: it has none. Raises EpisodeError(not_allowed)."""
    path = limits.credentials
    if path is None or not is_server(server):
        return ""
    try:
        tokens = json_text.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise EpisodeError(
            f"environments.credentials: {path}: {exc}; expected a JSON object", reason="not_allowed"
        ) from exc
    token = tokens.get(server, "") if isinstance(tokens, dict) else None
    if not isinstance(token, str):
        raise EpisodeError(f"environments.credentials: {path}: expected an object of texts", reason="not_allowed")
    try:
        return clean_key(token, f"environments.credentials: {path}: {server}")
    except SettingsError as exc:
        raise EpisodeError(str(exc), reason="not_allowed") from exc


@contextlib.contextmanager
def _episode_errors() -> Iterator[None]:
    """Turn WorkerError into EpisodeError."""
    try:
        yield
    except WorkerError as exc:
        raise EpisodeError(str(exc), reason=exc.reason) from exc
