"""Run scorers that may hang, crash or exhaust memory in processes that can be killed.

    (name, settings, task, response) ──► a free worker ──► Verdict, or ScoreError(timeout | crashed | memory | …)

A worker is a fresh interpreter (no fork: this process has threads) in its own process group. At the time limit the
group is killed with SIGKILL, and the next score gets a new worker; also where a file that the worker imported has
changed since. Workers are started when first needed, so a deployment without such scorers pays nothing.

A worker serves one score after another, so a scorer may leave something behind: a forked process, a thread, bytes in
the pipe. Each request has an id, and only a frame with that id is its answer; anything else ends the worker. What a
worker with a past crashed on is scored again by a fresh one, and there it counts. There is no protection against
hostile code (see scorer_worker.py), and no limit on CPU, disk and network.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, ClassVar

from schemas.events import Response, Task
from streams.scorers.scorer_worker import FRAME, START_ID
from streams.scorers.verdict import ScoreError, Verdict, checked

log = logging.getLogger(__name__)

START_LIMIT_S = 60.0
"""To start an interpreter, and to import a scorer's module (sympy takes seconds); not part of the score's limit."""
MEMORY_BYTES = 2 * 1024**3
"""Of data one worker may have."""
MAX_ANSWER_BYTES = 1024 * 1024


class Sandbox:
    """Worker processes, at most `processes` of them. Threads may call `score` together; each waits for a worker."""

    def __init__(
        self, processes: int, timeout_s: float, *, folders: Sequence[str] = (), memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """`folders` are looked for modules in, after all that the interpreter knows."""
        self.timeout_s = timeout_s
        self._folders = tuple(folders)
        self._memory_bytes = memory_bytes
        self._closed = False
        self._alive: set[_ScorerProcess] = set()
        self._free: queue.LifoQueue[_ScorerProcess | None] = queue.LifoQueue()
        for _ in range(processes):
            self._free.put(None)

    def score(self, name: str, settings: dict[str, Any], task: Task, response: Response) -> Verdict:
        """Return the verdict of the scorer called `name`.

        Raises ScoreError: timeout, crashed, memory, exception, not_a_number, and what the scorer itself gave as reason.
        """
        worker = self._free.get()
        try:
            while True:
                if self._closed:
                    raise ScoreError(f"{name} was not asked: the sandbox is closed", reason="crashed")
                if worker is not None and worker.is_spoilt():
                    self._end(worker)
                    worker = None
                if worker is None:
                    worker = _ScorerProcess(self._folders)
                    self._alive.add(worker)
                has_past, request_id = worker.served > 0, token_hex(16)
                body = (request_id, self.timeout_s, self._memory_bytes, name, settings, task, response)
                try:
                    return worker.score(name, request_id, pickle.dumps(body), self.timeout_s)
                except _ModuleChanged as exc:
                    log.warning("%s has changed on disk; scorers are loaded again from here on", exc)
                    self._end(worker)
                    worker = None
                except BaseException as exc:
                    reason = exc.reason if isinstance(exc, ScoreError) else "crashed"
                    if reason in _KILLING:
                        self._end(worker)
                        worker = None
                    if not (has_past and reason in _INHERITED and isinstance(exc, ScoreError)):
                        raise
        finally:
            self._free.put(worker)

    def load(self, name: str) -> None:
        """Import the scorer called `name`, in a worker of its own. Raises ScoreError if that fails."""
        worker, request_id = _ScorerProcess(self._folders), token_hex(16)
        try:
            worker.load(name, request_id, pickle.dumps((request_id, 0.0, self._memory_bytes, name, {}, None, None)))
        finally:
            worker.dispose()

    def _end(self, worker: _ScorerProcess) -> None:
        worker.dispose()
        self._alive.discard(worker)

    def close(self) -> None:
        """Kill the workers; scores that still run end as crashed."""
        self._closed = True
        for worker in list(self._alive):
            worker.kill()
        with contextlib.suppress(queue.Empty):
            while True:  # those at rest; one that was at work is disposed of by its caller
                idle = self._free.get_nowait()
                if idle is not None:
                    idle.dispose()


_KILLING = {"timeout", "crashed", "memory"}
_INHERITED = {"crashed", "memory"}
"""What an earlier scorer in the same worker may be to blame for."""


class _ModuleChanged(Exception):
    """A file that a worker imported has changed since: the worker is of no use any more."""


class SandboxProcess:
    """One child process and the pipe to it: frames of JSON, each the answer to one request."""

    worker: ClassVar[str]
    """The module whose `main` it runs."""
    who: ClassVar[str]
    """What it is called while it starts."""
    limit: ClassVar[str]
    """The setting of its time limit."""

    def __init__(self, folders: Sequence[str]) -> None:
        """`folders` are its arguments. Raises ScoreError if it does not start."""
        # -P: the working folder is no place to import from, unless it is among `folders`.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {self.worker} import main; main()", *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101 - PIPE says so
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            self.receive(self.who, "start", START_LIMIT_S, START_ID)
        except BaseException:
            self.dispose()
            raise

    def is_spoilt(self) -> bool:
        """Return whether it ended, or says something that nobody asked for."""
        return bool(select.select([self._out], [], [], 0)[0])

    def kill(self) -> None:
        """End the process and all it started, and return when it is gone. Any thread may; a reader sees its end."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def dispose(self) -> None:
        """End it and close the pipes; for the thread that uses it."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def write(self, name: str, data: bytes, limit_s: float) -> None:
        """Send a request. Raises ScoreError: timeout, crashed."""
        deadline, view = time.monotonic() + limit_s, memoryview(data)
        while view:
            if not select.select([], [self._in], [], max(0.0, deadline - time.monotonic()))[1]:
                raise ScoreError(f"the worker for {name} took no work in {limit_s:g} s", reason="timeout")
            try:
                view = view[os.write(self._in, view) :]
            except BrokenPipeError as exc:
                raise self._crashed(name) from exc

    def receive(self, name: str, what: str, limit_s: float, request_id: str) -> dict[str, Any]:
        """Return the answer to a request. Raises ScoreError: timeout, crashed."""
        deadline = time.monotonic() + limit_s
        length = FRAME.unpack(self._read(name, what, FRAME.size, deadline, limit_s))[0]
        if length > MAX_ANSWER_BYTES:
            raise ScoreError(f"{name} gave an answer of {length} bytes; at most {MAX_ANSWER_BYTES}", reason="crashed")
        try:
            answer = json.loads(self._read(name, what, length, deadline, limit_s))
        except (ValueError, RecursionError) as exc:
            raise _not_an_answer(name) from exc
        if not isinstance(answer, dict) or answer.get("id") != request_id:
            raise _not_an_answer(name)
        return answer

    def _read(self, name: str, what: str, size: int, deadline: float, limit_s: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ScoreError(
                    f"{name} did not {what} within {limit_s:g} s and was killed; make it faster, or raise {self.limit}",
                    reason="timeout",
                )
            chunk = os.read(self._out, size - len(data))
            if not chunk:
                raise self._crashed(name)
            data += chunk
        return bytes(data)

    def _crashed(self, name: str) -> ScoreError:
        self.kill()
        code = self._process.returncode
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return ScoreError(f"{name} ended its process ({how}) instead of answering", reason="crashed", again=True)


class _ScorerProcess(SandboxProcess):
    """A process that scores."""

    worker, who, limit = "streams.scorers.scorer_worker", "a scorer's worker", "scoring.timeout_s"

    def __init__(self, folders: Sequence[str]) -> None:
        self.served = 0
        """Scores that it was asked for."""
        super().__init__(folders)

    def score(self, name: str, request_id: str, body: bytes, timeout_s: float) -> Verdict:
        """Return the worker's verdict on one pickled request. Raises ScoreError, _ModuleChanged."""
        self.served += 1
        self.write(name, FRAME.pack(len(body)) + body, START_LIMIT_S)
        answer = self.receive(name, "be imported", START_LIMIT_S, request_id)
        if "changed" in answer:
            raise _ModuleChanged(str(answer["changed"]))
        if "prepared" in answer:
            answer = self.receive(name, "answer", timeout_s, request_id)
        if "reason" in answer:
            raise _failure(name, answer)
        try:
            said = (answer["value"], answer["components"], answer["rationale"])
            verdict = Verdict(*said, str(answer["version"]), answer["steps"])
        except KeyError as exc:
            raise _not_an_answer(name) from exc
        return checked(verdict, name)

    def load(self, name: str, request_id: str, body: bytes) -> None:
        """Import the scorer that a pickled request without a response names. Raises ScoreError."""
        self.write(name, FRAME.pack(len(body)) + body, START_LIMIT_S)
        answer = self.receive(name, "be imported", START_LIMIT_S, request_id)
        if "prepared" not in answer:
            raise _failure(name, answer)


def _failure(name: str, answer: dict[str, Any]) -> ScoreError:
    try:
        error, reason, again = str(answer["error"]), str(answer["reason"]), bool(answer["again"])
        return ScoreError(error, reason=reason, again=again, version=str(answer["version"]))
    except KeyError:
        return _not_an_answer(name)


def _not_an_answer(name: str) -> ScoreError:
    return ScoreError(
        f"the worker of {name} sent something that is no answer to its request; a scorer must leave the descriptors of "
        "its process alone",
        reason="crashed",
        again=True,
    )
