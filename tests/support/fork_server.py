"""Processes of `python -m MODULE` that begin with their libraries imported: forks of one process of the run.

    pytest's first process ──► the server, which imports torch, transformers and ours once, without a thread of them
    a worker: arguments, environment, folder, stdin, stdout, stderr ──► a fork that becomes the process ──► its pid
    its end ──► status and CPU seconds ──► wait(), poll(), and tests/times.py

The imports of a trainer take 4 s of CPU, those of a server 1.5 s, and a run starts hundreds of both. A fork is used as
a `subprocess.Popen`: it has its own pid, is killed by it, and ends with its own exit code.

Not covered: that a process imports what it needs, and how long it takes: what is typed in tests of the pages, the demo
and whatever a process of ours starts begin with nothing, as does everything in a run without workers (pytest -n 0).
Hashes of texts are the same in all forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import runpy
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "trainer.policy_trainer",
    "trainer.fleet",
    "streams.stages.policy.policy_agent",
    "streams.stages.scoring.scoring_agent",
    "streams.stages.advantages.live",
    "streams.worker.faust.faust_worker",
    "streams.worker.batched.run",
    "gateway.server",
)
"""What brings the libraries. One that starts a thread cannot be here; pyarrow's allocator has one, and minds forks."""
CHANGES = ("STREAMWARD_", "PYTEST_", "SSL_CERT_", "TMPDIR", "TRACEPARENT", "JOIN_")
"""What in an environment no library reads when it is imported. A process with another one is no fork."""
OPTIONS = {"env", "cwd", "stdin", "stdout", "stderr", "text", "bufsize", "start_new_session"}
LENGTH = struct.Struct(">I")

address: str | None = None
"""Where this run's server listens; None: every process begins with nothing."""
cpu_s = 0.0
"""Of the forks that have ended, as far as somebody has waited for them."""


class Request(NamedTuple):
    """A process that is wanted."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    is_new_session: bool


# --- the server -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(*imported: str) -> Iterator[str | None]:
    """Give the address of a server while the block runs; None where forks cannot be waited for.

    It imports IMPORTED, or other modules, with the first request, and ends with its parent.
    """
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        path = f"{folder}/socket"
        command = [sys.executable, "-m", "tests.support.fork_server", path, *(imported or IMPORTED)]
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, cwd=ROOT, env=env) as process:
            try:
                yield path
            finally:
                process.kill()


def accept_until_fork(path: str, *imported: str) -> Request:
    """Fork for each request. Return in each fork, with what it has to become; the server itself never returns."""
    is_ready = False
    watched: dict[int, tuple[int, socket.socket]] = {}
    """By the file descriptor of a fork: its pid, and who waits for it."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)  # its parent's end of the pipe
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    sys.exit(0)
                if key.fileobj is not listener:
                    pid, client = watched.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, status, used = os.wait4(pid, 0)
                    with client, contextlib.suppress(OSError):  # who wanted it may be gone
                        client.sendall(json.dumps([status, used.ru_utime + used.ru_stime]).encode())
                    continue
                client, _ = listener.accept()
                request, descriptors = _receive(client)
                if not is_ready:
                    _import(imported)
                    is_ready = True
                pid = os.fork()
                if pid == 0:
                    for descriptor, (_, other) in watched.items():
                        os.close(descriptor)
                        other.close()
                    client.close()
                    _take_descriptors(descriptors)
                    return request
                for descriptor in descriptors:
                    os.close(descriptor)
                with contextlib.suppress(OSError):
                    client.sendall(LENGTH.pack(pid))
                descriptor = os.pidfd_open(pid)
                watched[descriptor] = (pid, client)
                selector.register(descriptor, selectors.EVENT_READ)


def _import(modules: Sequence[str]) -> None:
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    names = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    others = [name for name in names[1:] if name != "jemalloc_bg_thd"]
    if others:
        raise RuntimeError(f"threads would be lost in a fork: {others}")


def _receive(client: socket.socket) -> tuple[Request, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(client, LENGTH.size, 3)
    with client.makefile("rb") as file:
        return Request(*json.loads(file.read(LENGTH.unpack(head)[0]))), list(descriptors)


def _take_descriptors(descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)


def become(request: Request) -> None:
    """Run the module that was asked for, as `python -m` does."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if request.is_new_session:
        os.setsid()
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # `random` does so by itself
    gc.enable()
    sys.path[0] = request.folder
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


# --- its clients ------------------------------------------------------------------------------------------------------


class Fork(subprocess.Popen):
    """A process that a server forked. What is private here are the three places in which Popen asks the kernel."""

    def _execute_child(self, *values: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *values).arguments
        request = Request(
            given["args"][2],
            [os.fspath(argument) for argument in given["args"][3:]],
            given["env"] or dict(os.environ),
            os.path.abspath(given["cwd"] or os.getcwd()),
            given["start_new_session"],
        )
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        body = json.dumps(request).encode()
        descriptors = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        with contextlib.ExitStack() as failing:
            self._server = failing.enter_context(socket.socket(socket.AF_UNIX))
            self._server.connect(address)
            socket.send_fds(self._server, [LENGTH.pack(len(body))], descriptors)
            self._server.sendall(body)
            (self.pid,) = LENGTH.unpack(self._server.recv(LENGTH.size, socket.MSG_WAITALL))
            failing.pop_all()
        self._child_created = True
        ends = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        self._close_pipe_fds(*ends)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        global cpu_s
        self._server.setblocking(not flags & os.WNOHANG)
        try:
            ended = self._server.recv(1024)
        except BlockingIOError:
            return 0, 0
        self._server.close()
        status, used_s = json.loads(ended) if ended else (1, 0.0)
        cpu_s += used_s
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            with contextlib.ExitStack() as stack:
                stack.callback(self._waitpid_lock.release)
                pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)
        return self.returncode


def spawn(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Start `python -m MODULE ...`: as a fork, where the run has a server and the environment lets it."""
    is_module = list(command[:2]) == [sys.executable, "-m"] and options.keys() <= OPTIONS
    is_fork = address is not None and is_module and _plain(options.get("env") or os.environ) == _plain(os.environ)
    return (Fork if is_fork else subprocess.Popen)(command, **options)


def spawn_and_wait(
    command: Sequence[str | Path],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do with it what `subprocess.run` does with a command, but for its `input`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with spawn(command, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _plain(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(CHANGES)}


if __name__ == "__main__":
    become(accept_until_fork(*sys.argv[1:]))
