"""Environments by reference, each in a process that can be killed.

    name, settings ──► a process that opens it ──► reset, step ──► Shown, StepResult, or EpisodeError

A process is kept for the next episode of the same environment, since importing one takes seconds; for other settings,
the environment is made anew in it. Time for each step, memory and the size of an observation are limited, and there is
no network unless the settings allow it (environment_worker.py). An environment that hangs or crashes ends its episode
and nothing else.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import defaultdict
from dataclasses import asdict
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter, ValidationError

from schemas.events import EpisodeStart
from streams.environments.protocol import Action, Environment, EpisodeError, Shown, StepResult
from streams.environments.references import ADAPTERS, SERVERS, check_kind, host_of, is_reference
from streams.environments.registry import listed, settings_of
from streams.environments.wire import RESULT, SHOWN
from streams.scorers.sandbox import START_LIMIT_S, SandboxProcess
from streams.scorers.scorer_worker import FRAME
from streams.scorers.verdict import ScoreError
from streams.settings.model import Environments


class EnvironmentPool:
    """Opens environments, listed ones in the caller's thread and others in processes. Any number of threads may ask."""

    def __init__(self, limits: Environments) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._resting: dict[str, list[_EnvironmentProcess]] = defaultdict(list)
        self._alive: set[_EnvironmentProcess] = set()

    def open(self, start: EpisodeStart) -> Environment:
        """Return an environment for one episode at a time.

        Its process is free again when nobody refers to it any more. Raises EpisodeError.
        """
        if not is_reference(start.name):
            return listed(start.name, start.settings)
        self._check_allowed(start.name)
        settings = settings_of(start.name, start.settings)
        with self._lock:
            resting = self._resting[start.name]
            process = next((one for one in resting if one.settings == settings), resting[-1] if resting else None)
            if process is not None:
                resting.remove(process)
        if process is not None and process.is_spoilt():
            self._rest(start.name, process)
            process = None
        if process is None:
            process = _started(start.name, self._limits)
            with self._lock:
                self._alive.add(process)
        try:
            process.open(settings)
        except BaseException:
            process.is_usable = False
            self._rest(start.name, process)
            raise
        environment = SandboxedEnvironment(process)
        weakref.finalize(environment, self._rest, start.name, process)
        return environment

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            alive, self._alive = list(self._alive), set()
            self._resting.clear()
        for process in alive:
            process.dispose()

    def _rest(self, name: str, process: _EnvironmentProcess) -> None:
        with self._lock:
            if process.is_usable and process in self._alive and not process.is_spoilt():
                self._resting[name].append(process)
                return
            self._alive.discard(process)
        process.dispose()

    def _check_allowed(self, name: str) -> None:
        """Raise EpisodeError: unknown_environment; not_allowed for code and servers that tasks may not name."""
        check_kind(name)
        kind, _, rest = name.partition(":")
        if kind in SERVERS:
            if name in self._limits.allowed_servers:
                return
            listed_ones = ", ".join(self._limits.allowed_servers) or "no server"
            raise EpisodeError(
                f"{name} is not opened: environments.servers lists {listed_ones}, and a task can only name what is "
                f"listed; add {name}",
                reason="not_allowed",
            )
        imported = (
            kind if kind not in ADAPTERS else rest.partition(":")[0] if kind == "gymnasium" and ":" in rest else ""
        )
        modules = self._limits.importable
        if imported and not any(imported == one or imported.startswith(f"{one}.") for one in modules if one != "."):
            raise EpisodeError(
                f"{name} is not opened: environments.modules lists {', '.join(modules) or 'no module'}, and a task can "
                f"only name what is listed; add {imported}, and `.` if it is in the working folder",
                reason="not_allowed",
            )


class SandboxedEnvironment:
    """An environment in a process of its own."""

    def __init__(self, process: _EnvironmentProcess) -> None:
        self._process, self.version = process, process.version

    def reset(self, seed: int) -> Shown:
        """Begin the episode of `seed`. Raises EpisodeError, as `step`."""
        shown: Shown = self._process.ask("reset", "shown", SHOWN, {"seed": seed})
        return shown

    def step(self, action: Action) -> StepResult:
        """Return what came of the action. Raises EpisodeError: timeout, crashed, memory, and what its worker says."""
        result: StepResult = self._process.ask("step", "result", RESULT, {"action": asdict(action)})
        return result


class _EnvironmentProcess(SandboxProcess):
    """The process of one environment."""

    worker, who, limit = "streams.environments.environment_worker", "an environment's process", "environments.timeout_s"

    def __init__(self, name: str, limits: Environments) -> None:
        folders = [os.getcwd()] if "." in limits.importable else []
        self._name, self._limits = name, limits
        self.version = ""
        self.is_usable = True
        self.settings: dict[str, Any] | None = None
        """Of the environment that is open; None before the first."""
        super().__init__([str(int(limits.network)), host_of(name) or "", *folders])

    def open(self, settings: dict[str, Any]) -> None:
        """Let it open its environment, unless it is open. Raises EpisodeError."""
        if settings == self.settings:
            return
        self.settings = settings
        answer = self._asked("open", {"settings": settings}, START_LIMIT_S)
        self.version = str(answer.get("version", ""))

    def ask(self, do: str, field: str, kind: TypeAdapter[Any], more: dict[str, Any]) -> Any:
        """Return what it gives. Raises EpisodeError."""
        answer = self._asked(do, more, self._limits.timeout_s)
        try:
            return kind.validate_json(json.dumps(answer.get(field)), strict=True)
        except ValidationError as exc:
            error = exc.errors()[0]
            at = ".".join(map(str, error["loc"]))
            what = f"{self._name}: {do}: {at}: {error['msg']}, got {str(error['input'])[:80]!r}"
            raise EpisodeError(what, reason="bad_result") from exc

    def _asked(self, do: str, more: dict[str, Any], limit_s: float) -> dict[str, Any]:
        request_id = token_hex(16)
        memory_bytes = self._limits.memory_mib * 1024**2
        asked = {"id": request_id, "do": do, "name": self._name, "limit_s": limit_s, "memory_bytes": memory_bytes}
        body = json.dumps(asked | more).encode()
        try:
            self.write(self._name, FRAME.pack(len(body)) + body, limit_s)
            answer = self.receive(self._name, do, limit_s, request_id)
        except ScoreError as exc:
            self.is_usable = False
            self.kill()
            raise EpisodeError(str(exc), reason=exc.reason) from exc
        if "reason" in answer:
            self.is_usable = answer["reason"] not in ("memory", "exception")
            raise EpisodeError(str(answer.get("error")), reason=str(answer["reason"]))
        return answer


def _started(name: str, limits: Environments) -> _EnvironmentProcess:
    try:
        return _EnvironmentProcess(name, limits)
    except ScoreError as exc:
        raise EpisodeError(str(exc), reason=exc.reason) from exc
