"""The embedded broker: real Apache Kafka, one KRaft node, one folder.

    settings.broker ──► start ──► the node (broker and controller, loopback only) ──► BrokerProcess: bootstrap, pid
                        status, ensure, stop ──► the same node, found through its folder

Everything is in the folder: `log/` (the data), `server.properties`, `server.log`, `node.json` (pid and ports), `tmp/`
(what Java unpacks), and `node.lock`. The node holds the lock itself: it inherits the locked file from the process that
starts it, so the lock lasts exactly as long as the node, and two nodes never share a folder. A node killed at any
moment starts again on the same data, at the same port if that is free.

Not covered: Windows; network file systems without working locks; moving a folder between Kafka versions; loss of power
(`kill -9` leaves the page cache intact).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.errors import LogError, RefusedError
from streams.kafka.node import class_archive, config as node, formatting, jvm
from streams.kafka.node.config import Node
from streams.processes.child import ChildProcess, signal_and_wait
from streams.settings.model import Broker

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 120.0
"""Time limit for the node to answer: enough for a slow machine, or a large log after a kill."""
ATTEMPTS = 3
"""Attempts to start if another process takes the chosen port before the node binds it."""
HELD_WAIT_S, DEAD_WAIT_S = 1.0, 5.0
"""How long a start waits for the lock of a living holder, and of a dead one. A node that was just killed briefly seems
alive, and the kernel may take some time to release its lock."""
ARCHIVING_S = 120.0
"""Time for a node to write the archive of classes when it ends: usually five seconds, on very busy cores over half a
minute. Kafka has stopped before, so a kill loses no record, but the next node has to write the archive again."""
KILLED_S = 10.0
"""How long a killed node may take to exit."""
MAIN_CLASS = "kafka.Kafka"
CONFIG_FILE = "server.properties"
LOG_FILE = "server.log"
_spawned: set[int] = set()
"""Nodes that are children of this process and not yet reaped."""

_LEASH = """\
import sys
if not sys.stdin.buffer.read(1):
    from pathlib import Path
    from streams.kafka.node import process
    from streams.settings.model import Broker
    process.stop(Broker(data_dir=Path(sys.argv[1])))
"""


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """A running node."""

    bootstrap: str
    """host:port for clients."""
    pid: int
    data_dir: Path
    log_file: Path

    def has_topic(self, name: str) -> bool:
        """Return whether it has a topic. The folder says so at once; a node that has just started may not list it."""
        return (self.data_dir / "log" / f"{name}-0").is_dir()


def start(
    settings: Broker,
    *,
    port: int | None = None,
    sasl_users: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> BrokerProcess:
    """Start the node of this folder and return when it answers Metadata. It outlives the caller.

    Without a `port`, it is the one that the folder remembers, else the default one, else any that is free; 0: the same
    without the default one. With `sasl_users` (name to password) clients must use SASL_PLAINTEXT and PLAIN, else
    PLAINTEXT. `properties` override other server properties. Neither is remembered: give them again at the next start.

    Raises RefusedError, naming the holder of the folder, if a node runs or starts there; SettingsError if `port` is
    taken, and without a usable Java runtime; LogError, with the end of the node's log, if it exits or does not answer
    in time, and if Kafka's jars cannot be fetched.
    """
    data_dir = node.folder(settings.data_dir)
    with contextlib.suppress(PermissionError):  # a folder that its owner shares with this user
        data_dir.chmod(0o700)  # the log holds all prompts and answers
    with _hold(data_dir) as lock:
        java = _java(data_dir, settings.heap_mb)
        before = node.read_node(data_dir)
        for attempt in range(1, ATTEMPTS + 1):
            chosen = node.choose(data_dir, before, port, sasl=bool(sasl_users))
            config = {**node.server_properties(data_dir, chosen, sasl_users or {}), **(properties or {})}
            try:
                return _launch(java, data_dir, chosen, config, lock)
            except _PortTaken:
                if attempt == ATTEMPTS:
                    raise
                before, port = None, port or 0
    raise AssertionError("the last attempt returns or raises")


def ensure(settings: Broker) -> BrokerProcess:
    """Return the node of this folder once it answers, starting it if it does not run.

    Waits for another process that is starting it. Raises as `start`.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        running = status(settings)
        if running is not None:
            with contextlib.suppress(_Ended):  # it was stopped just now: start it again
                _await_ready(running, deadline)
                return running
        try:
            return start(settings)
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def stop(settings: Broker, timeout_s: float = 30.0) -> bool:
    """Stop the node of this folder: SIGTERM, and after `timeout_s` seconds SIGKILL. Return False if none runs.

    A node that writes the archive of classes as it ends is given ARCHIVING_S seconds more.
    """
    running = status(settings)
    if running is None:
        return False
    patience_s = timeout_s + (ARCHIVING_S if class_archive.is_written_by(_command(running.pid)) else 0.0)
    is_running = partial(_is_node, running.pid, running.data_dir)
    if signal_and_wait(running.pid, signal.SIGTERM, is_running, patience_s):
        class_archive.keep(running.data_dir)
        return True
    logger.warning("%s: node %d has not ended in %g s; killing it", running.data_dir, running.pid, patience_s)
    if signal_and_wait(running.pid, signal.SIGKILL, is_running, KILLED_S):
        class_archive.drop(running.data_dir)
        return True
    raise LogError(
        f"{running.data_dir}: node {running.pid} does not end, not even after SIGKILL; see what it waits for"
    )


def status(settings: Broker) -> BrokerProcess | None:
    """Return the node of this folder if it runs; it may not answer yet. None if another process has its pid now."""
    data_dir = Path(os.path.expanduser(settings.data_dir)).resolve()
    saved = node.read_node(data_dir)
    if saved is None or not _is_node(saved.pid, data_dir):
        return None
    return BrokerProcess(saved.bootstrap, saved.pid, data_dir, data_dir / LOG_FILE)


@contextlib.contextmanager
def embedded(
    data_dir: Path,
    heap_mb: int = 384,
    *,
    sasl_users: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[BrokerProcess]:
    """Run a node while the block runs. Arguments and errors as `start`; any free port.

    If the process dies inside the block, even by kill -9, a small helper process stops the node, or one that was
    started in the same folder meanwhile.
    """
    settings = Broker(data_dir=data_dir, heap_mb=heap_mb)
    running = start(settings, port=0, sasl_users=sasl_users, properties=properties)
    try:
        with _leash(running.data_dir):
            yield running
    finally:
        stop(settings)


class _Ended(LogError):
    """The node ended before it answered."""


class _PortTaken(_Ended):
    """It ended because its port was taken."""


# --- one node per folder ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _hold(data_dir: Path) -> Iterator[int]:
    """Hold the folder's lock; yield its descriptor, which the node inherits. The file has the holder's pid."""
    lock_file = data_dir / "node.lock"
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(data_dir, lock)
                if time.monotonic() - begun > (HELD_WAIT_S if holder else DEAD_WAIT_S):
                    unknown = f"{lock_file} is locked by a process that did not sign it; end that process"
                    raise RefusedError(f"{data_dir}: {holder or unknown}") from None
                time.sleep(0.02)
        _sign(lock, os.getpid())
        yield lock
    finally:
        os.close(lock)


def _sign(lock: int, pid: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(pid).encode(), 0)


def _holder(data_dir: Path, lock: int) -> str | None:
    """Describe the holder of the lock; None for a process that has just ended, whose lock the kernel will release."""
    saved = node.read_node(data_dir)
    if saved is not None and _is_node(saved.pid, data_dir):
        return (
            f"a Kafka node runs here already: pid {saved.pid}, bootstrap {saved.bootstrap}; use it, or stop it first "
            "with `streamward admin broker stop`"
        )
    pid = int(os.pread(lock, 20, 0) or b"0")
    if pid and (saved is None or pid != saved.pid) and psutil.pid_exists(pid):
        return f"process {pid} is starting a Kafka node here; wait for it, or stop that process"
    return None


def _is_node(pid: int, data_dir: Path) -> bool:
    """Tell whether `pid` is this folder's node: alive, and a Kafka started with this folder's configuration.

    The command line distinguishes it from a process that got the pid later. Its start time would not: psutil derives it
    from the wall clock, which may have been set.
    """
    if pid in _spawned:
        with contextlib.suppress(ChildProcessError):  # already reaped
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                return True
        _spawned.discard(pid)
    return _command(pid)[-2:] == [MAIN_CLASS, str(data_dir / CONFIG_FILE)]


def _command(pid: int) -> list[str]:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:  # gone, or a zombie, or another user's
        return []


# --- the process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Java:
    """How Java is started in a folder."""

    command: list[str]
    archiving: list[str]
    """Options with which the node writes an archive of classes for those after it."""
    classpath: str

    def node(self, config_file: Path) -> list[str]:
        """Return the command of the node."""
        java, *options = self.command
        return [java, *self.archiving, *options, MAIN_CLASS, str(config_file)]


def _java(data_dir: Path, heap_mb: int) -> _Java:
    (data_dir / "log4j2.properties").write_text(node.LOG4J2)
    java, classpath = jvm.java(), jvm.kafka_classpath()
    reading, archiving = class_archive.options(java, classpath, data_dir)
    command = [
        str(java),
        *reading,
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={data_dir}/hs_err_%p.log",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={_empty(data_dir / 'tmp')}",
        f"-Dlog4j2.configurationFile={data_dir}/log4j2.properties",
        "-cp",
        classpath,
    ]
    return _Java(command, archiving, classpath)


def _empty(folder: Path) -> Path:
    """Empty a folder, and return it: a node that was killed leaves its native libraries there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return folder


def _launch(java: _Java, data_dir: Path, chosen: Node, config: Mapping[str, str], lock: int) -> BrokerProcess:
    """Format the folder if it is new, run the node, and return when it answers; end it if it does not."""
    config_file, log = data_dir / CONFIG_FILE, data_dir / LOG_FILE
    node.write_private(config_file, node.as_properties(config))
    if log.exists():
        log.replace(data_dir / f"{LOG_FILE}.1")
    if not (data_dir / "log" / "meta.properties").exists():
        formatting.format_folder(data_dir, java.command, java.classpath, chosen.cluster_id)
    os.set_inheritable(lock, True)
    # not Popen: the node outlives this process, and Popen warns about children that do
    pid = os.posix_spawn(
        java.command[0],
        java.node(config_file),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )
    os.set_inheritable(lock, False)
    _spawned.add(pid)
    try:
        node.remember(data_dir, replace(chosen, pid=pid))
        _sign(lock, pid)
        running = BrokerProcess(chosen.bootstrap, pid, data_dir, log)
        _await_ready(running, time.monotonic() + READY_TIMEOUT_S)
    except BaseException:  # KeyboardInterrupt too: nothing else would end the node
        if _is_node(pid, data_dir):
            os.kill(pid, signal.SIGKILL)
        raise
    return running


def _await_ready(running: BrokerProcess, deadline: float) -> None:
    """Return when the node answers Metadata, as the cluster of this folder.

    Raises LogError, with the end of the node's log, if it ends or does not answer by `deadline` (monotonic clock).
    """
    saved = node.read_node(running.data_dir)
    client: AdminClient | None = None
    while time.monotonic() < deadline:
        if saved is None or not _is_node(running.pid, running.data_dir):
            is_port_taken = "Address already in use" in _words(running.log_file)
            raise (_PortTaken if is_port_taken else _Ended)(
                f"{running.data_dir}: node {running.pid} ended before it answered; {_last_words(running.log_file)}"
            )
        if client is None:
            with contextlib.suppress(OSError), socket.create_connection((node.HOST, saved.port), timeout=1.0):
                client = AdminClient({"bootstrap.servers": saved.bootstrap, "log_level": 0, **saved.client})
        else:
            with contextlib.suppress(KafkaException):
                answer = client.list_topics(timeout=1.0)
                if answer.brokers and answer.cluster_id == saved.cluster_id:
                    return
            client = None  # a client that got metadata without nodes, as from a fenced node, never asks again
        time.sleep(0.02)
    raise LogError(
        f"{running.data_dir}: node {running.pid} does not answer at {running.bootstrap}; "
        f"{_last_words(running.log_file)}"
    )


def _words(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _last_words(log: Path) -> str:
    """Return the lines that explain an exit: errors first (a stopping node buries them), then the last lines."""
    lines = [line[:300] for line in _words(log).splitlines() if not line.startswith("\tat ")]
    complaints = [line for line in lines[:-5] if re.search(r" ERROR | FATAL |Exception|^Error", line)]
    return f"{log} says:\n" + "\n".join([*complaints[:8], "...", *lines[-5:]])


@contextlib.contextmanager
def _leash(data_dir: Path) -> Iterator[None]:
    """Stop the folder's node if this process dies: a helper waits for the end of a pipe."""
    helper = ChildProcess([sys.executable, "-c", _LEASH, str(data_dir)], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        helper.communicate(b".")
