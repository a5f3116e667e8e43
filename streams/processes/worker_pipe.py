"""A worker process that answers one request after another, and both ends of the pipes to it.

    WorkerProcess.write    ──► stdin:  length, body           ──► serve ──► the worker's own function
    WorkerProcess.receive  ◄── stdout: length, JSON {"id", …} ◄── AnswerPipe.send

A worker is a fresh interpreter (no fork: the parent has threads). The worker trusts its parent, but its parent does not
trust it: an answer is JSON with the id of its request, and anything else ends the worker. What a worker prints goes to
stderr. A process that it forks can neither read requests nor answer them. When its parent dies, a worker's stdin closes
and it ends; if it is still computing, a watching process kills it.

This protects against accidents, not attackers: a worker runs with the user's rights.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NamedTuple

from streams.processes.child import ChildProcess, describe_exit, is_ready

START_LIMIT_S = 60.0
"""Time limit for starting an interpreter and importing a user's module (sympy takes seconds); not part of a request's
limit."""
GRACE_S = 1.0
"""Time from the parent's end to the kill of a worker that has not ended by itself."""
VARIABLES = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|PYTHON[A-Z]+|VIRTUAL_ENV|LD_LIBRARY_PATH|DYLD_[A-Z_]+|"
    "SSL_CERT_FILE|SSL_CERT_DIR|XDG_[A-Z]+_HOME|HF_HOME|HF_HUB_OFFLINE|OMP_[A-Z_]+|CUDA_[A-Z_]+"
)
"""Environment variables passed to a process that runs a user's code; the others may be keys."""
MAX_ANSWER_BYTES = 1024 * 1024
START_ID = ""
"""Id of the frame that says that a worker has started."""
_LENGTH = struct.Struct(">I")


class WorkerError(Exception):
    """A worker gave no answer. `reason`: timeout or crashed."""

    def __init__(self, message: str, reason: str, *, again: bool = False) -> None:
        """`again`: another attempt may succeed."""
        super().__init__(message)
        self.reason, self.again = reason, again


class WorkerKind(NamedTuple):
    """The workers' module, and their name in errors."""

    module: str
    """The worker runs this module's `main`."""
    title: str
    """A worker's name, e.g. "a scorer's worker"."""
    limit_setting: str
    """The setting of the time limit of a request."""


# --- the parent's end -------------------------------------------------------------------------------------------------


class WorkerProcess:
    """One worker and the pipes to it. For one thread at a time, except `kill`."""

    def __init__(self, kind: WorkerKind, arguments: Sequence[str], variables: str = "") -> None:
        """Start it with `arguments`, and return when it is ready. Raises WorkerError.

        `variables`: comma-separated environment variables, in addition to VARIABLES.
        """
        further = variables.replace(" ", "").split(",")
        env = {name: value for name, value in os.environ.items() if name in further or VARIABLES.fullmatch(name)}
        self._kind = kind
        # -P: do not import from the working folder, unless the worker's arguments name it
        self._process = ChildProcess(
            [sys.executable, "-P", "-c", f"from {kind.module} import main; main()", *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101 - PIPE says so
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            self.receive(kind.title, "start", START_LIMIT_S, START_ID)
        except BaseException:  # KeyboardInterrupt too: nothing else would end the process
            self.dispose()
            raise

    def is_spoilt(self) -> bool:
        """Return whether it ended, or sent output without a request."""
        return is_ready(self._out, "read", 0)

    def kill(self) -> None:
        """Kill it with all it started, and return when it is gone. Any thread may call it; a reader sees the end."""
        self._process.kill_group()

    def dispose(self) -> None:
        """Kill it and close the pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def write(self, name: str, body: bytes, limit_s: float) -> None:
        """Send a request for `name`. Raises WorkerError: timeout, crashed."""
        deadline, unsent = time.monotonic() + limit_s, memoryview(_frame(body))
        while unsent:
            if not is_ready(self._in, "write", deadline - time.monotonic()):
                raise WorkerError(f"the worker for {name} took no work in {limit_s:g} s", "timeout")
            try:
                unsent = unsent[os.write(self._in, unsent) :]
            except BrokenPipeError as exc:
                raise self._crash(name) from exc

    def receive(
        self, name: str, action: str, limit_s: float, request_id: str, *, most_bytes: int = MAX_ANSWER_BYTES
    ) -> dict[str, Any]:
        """Return the answer to a request. Raises WorkerError: timeout, crashed."""
        deadline = time.monotonic() + limit_s
        late = f"{name} did not {action} within {limit_s:g} s and was killed; make it faster, or raise "
        late += self._kind.limit_setting
        length = _LENGTH.unpack(self._read(name, _LENGTH.size, deadline, late))[0]
        if length > most_bytes:
            raise WorkerError(f"{name} gave an answer of {length} bytes; at most {most_bytes}", "crashed")
        try:
            answer = json.loads(self._read(name, length, deadline, late))
        except (ValueError, RecursionError) as exc:
            raise bad_answer(name) from exc
        if not isinstance(answer, dict) or answer.get("id") != request_id:
            raise bad_answer(name)
        return answer

    def _read(self, name: str, size: int, deadline: float, late: str) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not is_ready(self._out, "read", deadline - time.monotonic()):
                raise WorkerError(late, "timeout")
            chunk = os.read(self._out, size - len(data))
            if not chunk:
                raise self._crash(name)
            data += chunk
        return bytes(data)

    def _crash(self, name: str) -> WorkerError:
        self.kill()
        ending = describe_exit(self._process.returncode)
        return WorkerError(f"{name} ended its process ({ending}) instead of answering", "crashed", again=True)


def bad_answer(name: str) -> WorkerError:
    """Return the error of a worker that sent something other than an answer."""
    return WorkerError(
        f"the worker of {name} sent something that is no answer to its request; it must leave the descriptors of its "
        "process alone",
        "crashed",
        again=True,
    )


# --- the worker's end -------------------------------------------------------------------------------------------------


class AnswerPipe:
    """The pipe for a worker's answers."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe, self._pid = pipe, os.getpid()

    def send(self, request_id: str, answer: dict[str, Any]) -> None:
        """Write an answer to a request. Ends a process that the user's code forked, which must not answer."""
        if os.getpid() != self._pid:
            os._exit(0)
        data = _frame(json.dumps({**answer, "id": request_id}).encode())
        while data:
            data = data[self._pipe.write(data) :]


def serve(answer: Callable[[AnswerPipe, bytes], None]) -> None:
    """Call `answer` with each request on stdin, until stdin ends. Output printed meanwhile goes to stderr."""
    _end_with_parent()
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=requests.close)
    os.register_at_fork(after_in_child=answers.close)
    pipe = AnswerPipe(answers)
    pipe.send(START_ID, {"ready": os.getpid()})
    while header := _read(requests, _LENGTH.size):
        answer(pipe, _read(requests, _LENGTH.unpack(header)[0]))


def _end_with_parent() -> None:
    """Start a process that kills this one's group soon after the parent's end, whatever this one is doing. An alarm
    would not do: a user's code may replace or block it, or compute without end in C. Only the parent has the other end
    of stdin, so its closing shows the parent's end. It is forked twice, so that a user's code cannot find it as a
    child.
    """
    if child := os.fork():
        os.waitpid(child, 0)
        return
    try:
        if not os.fork():
            os.closerange(1, os.sysconf("SC_OPEN_MAX"))
            closing = select.poll()
            closing.register(0, 0)  # no event but its end
            closing.poll()
            time.sleep(GRACE_S)
            os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def limit_memory(memory_bytes: int) -> None:
    """Let allocations beyond this fail with MemoryError, where the system supports it."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def data_bytes() -> int:
    """Return this process's own reserved memory, as `limit_memory` counts it; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def describe_exception(action: str, exc: BaseException) -> str:
    """Return the error of a user's code during `action`, and its place, which a SyntaxError already has."""
    try:
        text = str(exc)[:1000].encode(errors="backslashreplace").decode()  # half of a surrogate pair fits in no frame
    except Exception as broken:  # an exception's own code may raise anything
        text = f"its text cannot be read: {type(broken).__name__}"
    problem = f"{action} raised {type(exc).__name__}: {text}"
    frame = traceback.extract_tb(exc.__traceback__)[-1]
    return problem if frame.filename.startswith("<") else f"{problem} ({frame.filename}, line {frame.lineno})"


def _frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _read(pipe: BinaryIO, size: int) -> bytes:
    """Return `size` bytes; fewer at the end of the stream."""
    data = bytearray()
    while len(data) < size and (chunk := pipe.read(size - len(data))):
        data += chunk
    return bytes(data)
