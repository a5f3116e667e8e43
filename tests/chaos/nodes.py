"""Three Kafka nodes on one machine, any of which can be killed, stopped, frozen, and started again.

    Cluster(root) ──► root/0, root/1, root/2: broker and controller each, replication 3, two must acknowledge
                  ──► kill, stop, freeze, thaw, start; leader_of, controller, wait_in_sync

The nodes are named 0, 1 and 2, as Kafka names them, too. They end with the block, and also if the process is killed:
they share a process group with a helper that reads a pipe and ends the group when nobody holds the other end.

Not covered: machines, racks, disks of their own; SASL; more nodes or fewer; a cluster that lost its majority for good.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.errors import LogError
from streams.kafka.node import config as node, jvm
from streams.kafka.node.config import HOST, Node
from streams.kafka.node.process import MAIN_CLASS, READY_TIMEOUT_S
from tests.chaos.proxy import free_ports

NODES = (0, 1, 2)
IN_SYNC = 2
"""min.insync.replicas: one node may be away and writes go on."""
_LEASH = """\
import os, signal, sys
if not sys.stdin.buffer.read(1):
    os.killpg(0, signal.SIGKILL)
"""


class Cluster:
    """Three nodes under `root`, which run while the block runs; in a folder of an earlier cluster with its data.

    `properties` are further server properties, which win. Raises LogError with a node's last words if one does not
    start; SettingsError and LogError as `streams.kafka.node.jvm` does.
    """

    def __init__(self, root: Path, *, heap_mb: int = 256, properties: Mapping[str, str] | None = None) -> None:
        self.root = root.resolve()
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: set[int] = set()

    def __enter__(self) -> Self:
        ports = free_ports(2 * len(NODES))
        self._ports = dict(zip(NODES, ports, strict=False))
        self._controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        self._classpath = jvm.kafka_classpath()
        self._java = str(jvm.java())
        with contextlib.ExitStack() as ending:
            self._leash = ending.enter_context(_leash())
            ending.callback(self._end)
            self._configure()
            for i in NODES:
                self._spawn(i)
            for i in NODES:
                self._await_ready(i)
            self.wait_in_sync()
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()  # also what is frozen
        for process in self._processes.values():
            process.wait(30)

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill(self, i: int) -> None:
        """SIGKILL."""
        self._processes[i].kill()
        self._processes[i].wait(30)
        self._frozen.discard(i)

    def stop(self, i: int, timeout_s: float = 60.0) -> None:
        """SIGTERM: the node hands its partitions over and ends; SIGKILL if that takes longer than `timeout_s`."""
        self.thaw(i)
        self._processes[i].terminate()
        try:
            self._processes[i].wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(i)

    def start(self, i: int) -> None:
        """Start the node again, and return when it answers and the others know it."""
        if i in self.running():
            raise ValueError(f"node {i} runs; stop or kill it first")
        self._spawn(i)
        self._await_ready(i)

    def freeze(self, i: int) -> None:
        """SIGSTOP."""
        self._processes[i].send_signal(signal.SIGSTOP)
        self._frozen.add(i)

    def thaw(self, i: int) -> None:
        """SIGCONT."""
        self._processes[i].send_signal(signal.SIGCONT)
        self._frozen.discard(i)

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """host:port of all three, for clients."""
        return ",".join(self.address(i) for i in NODES)

    def address(self, i: int) -> str:
        """Return host:port of one."""
        return f"{HOST}:{self._ports[i]}"

    def pid(self, i: int) -> int:
        """Return the process id of the node, or of the last one that ran as `i`."""
        return self._processes[i].pid

    def running(self) -> list[int]:
        """Return the nodes that run and are not frozen."""
        return [i for i, process in self._processes.items() if i not in self._frozen and process.poll() is None]

    def leader_of(self, topic: str, partition: int, timeout_s: float = 30.0) -> int:
        """Return the node that leads the partition, once one of those that run does. Raises LogError if none does."""
        said: dict[int, int] = {}
        for _ in _until(timeout_s):
            for i in self.running():
                with contextlib.suppress(KafkaException, KeyError):
                    said[i] = self._metadata(i).topics[topic].partitions[partition].leader
                    if said[i] in self.running():
                        return said[i]
        raise LogError(f"{topic}[{partition}] has no leader that runs for {timeout_s:g} s; the nodes say {said}")

    def controller(self, timeout_s: float = 30.0) -> int:
        """Return the active controller, once it is one of those that run. Raises LogError if there is none."""
        said: dict[int, int] = {}
        for _ in _until(timeout_s):
            for i in self.running():
                with contextlib.suppress(OSError, struct.error):
                    said[i] = _quorum_leader(self._ports[i])
                    if said[i] in self.running():
                        return said[i]
        raise LogError(f"no controller that runs for {timeout_s:g} s; the nodes say {said}")

    def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        """Return when all nodes run and each says that every replica of every partition is in sync.

        Raises LogError, naming the partitions that are not.
        """
        missing: Any = "nothing"
        for _ in _until(timeout_s):
            try:
                missing = {i: lacking for i in NODES if (lacking := self._lacking(i))}
            except KafkaException as exc:
                missing = exc
            if not missing and self.running() == list(NODES):
                return
        raise LogError(f"{self.root}: not in sync after {timeout_s:g} s; running {self.running()}, missing {missing}")

    def _lacking(self, i: int) -> list[str]:
        """Return the nodes and the partitions that node `i` misses."""
        found = self._metadata(i)
        partitions = [(name, p) for name, topic in found.topics.items() for p in topic.partitions.values()]
        return [f"node {j}" for j in NODES if j not in found.brokers] + [
            f"{name}[{p.id}]" for name, p in partitions if p.leader < 0 or set(p.isrs) != set(p.replicas)
        ]

    def _metadata(self, i: int) -> Any:
        """Return what node `i` itself says: a client that is new knows nobody else."""
        client = AdminClient({"bootstrap.servers": self.address(i), "log_level": 0, "error_cb": _on_error})
        return client.list_topics(timeout=2.0)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _configure(self) -> None:
        """Write each node's configuration; format the folder of the first if it is new, and give the others copies."""
        for i in NODES:
            folder = self.root / str(i)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "log4j2.properties").write_text(node.LOG4J2)
            (folder / "server.properties").write_text(node.as_properties(self._config(i, folder)))
        first, *others = (self.root / str(i) / "log" for i in NODES)
        if (first / "meta.properties").exists():
            return
        cluster_id, *directory_ids = (_kafka_uuid() for _ in NODES)
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", f"{first.parent}/server.properties"]
        if self._run(NODES[0], *tool).wait(READY_TIMEOUT_S) != 0:
            raise LogError(f"{first} could not be formatted; {self._last_words(NODES[0])}")
        for log, directory_id in zip(others, directory_ids, strict=True):
            shutil.copytree(first, log)
            meta = (log / "meta.properties").read_text()
            meta = re.sub(r"(?m)^node\.id=.*$", f"node.id={log.parent.name}", meta)
            meta = re.sub(r"(?m)^directory\.id=.*$", f"directory.id={directory_id}", meta)
            (log / "meta.properties").write_text(meta)

    def _config(self, i: int, folder: Path) -> dict[str, str]:
        own = Node(0, self._ports[i], self._controllers[i], "", {})
        internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        return {
            **node.server_properties(folder, own, {}),
            "node.id": str(i),
            # a single node follows nobody and hands over to nobody; of these three, each does (Kafka's defaults)
            "broker.session.timeout.ms": "9000",
            "metadata.max.idle.interval.ms": "500",
            "controller.quorum.voters": ",".join(f"{j}@{HOST}:{self._controllers[j]}" for j in NODES),
            "default.replication.factor": str(len(NODES)),
            "min.insync.replicas": str(IN_SYNC),
            **{f"{topic}.replication.factor": str(len(NODES)) for topic in internal},
            **{f"{topic}.min.isr": str(IN_SYNC) for topic in internal[1:]},
            "unclean.leader.election.enable": "false",
            **self._properties,
        }

    def _spawn(self, i: int) -> None:
        self._processes[i] = self._run(i, MAIN_CLASS, f"{self.root}/{i}/server.properties")

    def _run(self, i: int, *main: str) -> subprocess.Popen[bytes]:
        folder = self.root / str(i)
        command = [
            self._java,
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-XX:ErrorFile={folder}/hs_err_%p.log",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
            *("-cp", self._classpath, *main),
        ]
        with (folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._leash.pid
            )

    def _await_ready(self, i: int) -> None:
        for _ in _until(READY_TIMEOUT_S):
            if self._processes[i].poll() is not None:
                raise LogError(f"node {i} ended before it answered; {self._last_words(i)}")
            with contextlib.suppress(OSError, KafkaException):
                socket.create_connection((HOST, self._ports[i]), timeout=1.0).close()
                if i in self._metadata(i).brokers:
                    return
        raise LogError(f"node {i} does not answer at {self.address(i)}; {self._last_words(i)}")

    def _last_words(self, i: int) -> str:
        log = self.root / str(i) / "server.log"
        lines = [line[:300] for line in log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
        complaints = [line for line in lines if re.search(r" ERROR | FATAL |Exception|^Error", line)]
        return f"{log} says:\n" + "\n".join([*complaints[-8:], "...", *lines[-5:]])


def _kafka_uuid() -> str:
    """Return a new id in Kafka's form: a UUID, base64, URL-safe, bare; none begins with a dash, as none of Kafka's."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _on_error(error: object) -> None:
    """Keep librdkafka from printing."""


def _until(timeout_s: float) -> Any:
    """Yield at least once, and then every 100 ms, until the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)


@contextlib.contextmanager
def _leash() -> Any:
    """Run the helper that ends its process group when this process ends without a word."""
    helper = subprocess.Popen([sys.executable, "-c", _LEASH], stdin=subprocess.PIPE, process_group=0)
    try:
        yield helper
    finally:
        helper.communicate(b".")


def _quorum_leader(port: int) -> int:
    """Return the leader of the controllers' quorum, -1 if there is none; asked of a broker, which asks the quorum.

    DescribeQuorum (Kafka protocol, key 55, version 0) by hand: no Python client has it, and what Metadata calls the
    controller is, with KRaft, any broker. Raises OSError and struct.error if the answer does not come.
    """
    topic = b"__cluster_metadata"
    header = struct.pack(">hhih", 55, 0, 1, -1) + b"\0"
    body = b"\x02" + bytes([len(topic) + 1]) + topic + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
    with socket.create_connection((HOST, port), timeout=2.0) as link, link.makefile("rb") as answers:
        link.sendall(struct.pack(">i", len(header + body)) + header + body)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    # correlation, tags, error, topics, name, partitions, index, error, leader
    failed, partition_failed, leader = struct.unpack_from(f">5xh2x{len(topic)}x1x4xhi", answer)
    return -1 if failed or partition_failed else int(leader)
