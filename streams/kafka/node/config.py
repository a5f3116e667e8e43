"""The folder of an embedded Kafka node: its identity, its ports, its configuration.

    node.json          pid, ports, cluster id: they identify the node, and the port is reused
    server.properties  for `kafka.Kafka`; written at each start
    log4j2.properties  likewise; the node logs to its standard output, which is `server.log`
    log/               the data, in Kafka's format

This file reads and computes; streams/kafka/node/process.py runs the node. Further listeners, TLS and several nodes are
not supported: for a real cluster, set `kafka.bootstrap`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import random
import re
import secrets
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas import json_text
from streams.errors import LogError, SettingsError
from streams.settings.load import NODE_FILE

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
DEFAULT_PORT = 9092
"""The port in the default `kafka.bootstrap`; a first `start` takes it if it is free."""
PORTS = range(20_000, 30_000)
"""Otherwise a free one of these. They are below the ports that clients are given (32768 and up on Linux): a client that
reconnects to a stopped node could be given the node's own port, connect to itself, and block the node's return."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
NODE_USER = "streamward-node"
"""With SASL, the user as which the node itself logs in; its password changes at each start."""
LOG4J2 = """\
status = error
shutdownHook = disable
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.values.name = org.apache.kafka.common.config.AbstractConfig
logger.values.level = warn
"""
"""Without log4j's own shutdown hook, which would run at the same time as Kafka's and cut off its log."""


@dataclass(frozen=True, slots=True)
class Node:
    """The content of `node.json`."""

    pid: int
    port: int
    controller_port: int
    cluster_id: str
    client: dict[str, str]
    """librdkafka settings for a client, with SASL as the node's own user."""

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"


def folder(path: Path) -> Path:
    """Return the folder as an absolute path, created if needed. Raises SettingsError if Kafka cannot use it."""
    whole = Path(os.path.expanduser(path)).resolve()  # Path.expanduser fails without a home folder
    if "," in str(whole):
        raise SettingsError(f"broker.data_dir={whole}: Kafka splits its folders at commas; choose one without")
    try:
        whole.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SettingsError(
            f"broker.data_dir={whole}: cannot be created: {exc.strerror}; choose another folder"
        ) from exc
    return whole


def remember(data_dir: Path, node: Node) -> None:
    """Write `node.json`."""
    write_private(data_dir / NODE_FILE, json.dumps(asdict(node), indent=1) + "\n")


def read_node(data_dir: Path) -> Node | None:
    """Return the content of `node.json`; None if it is missing or cannot be read."""
    try:
        return Node(**json_text.parse((data_dir / NODE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def choose(data_dir: Path, before: Node | None, port: int | None, *, sasl: bool) -> Node:
    """Choose free ports, `port` or those of `before` if possible; the cluster id is the folder's.

    Raises SettingsError if `port` is taken.
    """
    if port and not _is_free(port):
        raise SettingsError(f"port {port} of {HOST} is taken; choose another --port, or stop what uses it")
    preferred = port or (before.port if before else DEFAULT_PORT if port is None else 0)
    chosen = preferred if preferred and _is_free(preferred) else _free_port()
    if before and not port and chosen != before.port:
        logger.warning("%s: port %d is taken; the node is at port %d now", data_dir, before.port, chosen)
    controller = before.controller_port if before and _is_free(before.controller_port) else _free_port(but=chosen)
    client = {}
    if sasl:
        client = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": NODE_USER,
            "sasl.password": secrets.token_urlsafe(24),
        }
    return Node(0, chosen, controller, _cluster_id(data_dir), client)


def _is_free(port: int) -> bool:
    """Return whether a server could bind the port now. Connections left from an earlier server do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def _free_port(but: int = 0) -> int:
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port != but and _is_free(port):
            return port
    raise LogError(f"no free port on {HOST} from {PORTS.start} to {PORTS.stop - 1}; stop some of the servers there")


def _cluster_id(data_dir: Path) -> str:
    """Return the id the folder was formatted with, else a new one."""
    meta = data_dir / "log" / "meta.properties"
    if meta.exists():
        match = re.search(r"^cluster\.id=(\S+)$", meta.read_text(), re.MULTILINE)
        if match is None:
            raise LogError(f"{meta}: names no cluster.id; the folder is damaged, choose another broker.data_dir")
        return match[1].replace("\\", "")
    return new_id()


def new_id() -> str:
    """Return a new id in Kafka's form: a UUID, base64, URL-safe, without padding. It never begins with a dash."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def server_properties(data_dir: Path, node: Node, sasl_users: Mapping[str, str]) -> dict[str, str]:
    """Return the node's server properties. By default records are kept for ever; topics set their own retention."""
    protocol = node.client.get("security.protocol", "PLAINTEXT")
    internal_topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{node.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "listeners": f"CLIENT://{node.bootstrap},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"CLIENT://{node.bootstrap}",
        "listener.security.protocol.map": f"CLIENT:{protocol},CONTROLLER:PLAINTEXT",
        **(_sasl(node, sasl_users) if sasl_users else {}),
        "log.dirs": str(data_dir / "log"),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        **{f"{topic}.replication.factor": "1" for topic in internal_topics},  # one node cannot meet the default, 3
        **{f"{topic}.min.isr": "1" for topic in internal_topics[1:]},
        **{f"{topic}.num.partitions": "4" for topic in internal_topics},
        "broker.heartbeat.interval.ms": "1000",
        "broker.session.timeout.ms": str(_session_ms(data_dir / "log")),
        "metadata.max.idle.interval.ms": "0",  # no other node follows the metadata: no empty records twice a second
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.session.timeout.ms": "6000",  # the default of kafka.session_timeout_s
        "group.consumer.heartbeat.interval.ms": "750",
        "offsets.retention.minutes": str(10 * 365 * 24 * 60),
        "log.retention.ms": "-1",
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        "log.segment.bytes": str(256 * 1024 * 1024),
        "log.index.size.max.bytes": str(1024 * 1024),
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),  # the default, 128 MiB, is a third of the heap
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
    }


def _session_ms(log: Path) -> int:
    """Return how long the node may be silent before it is fenced and loses its partitions. An hour, since no other node
    could take them. But a killed node is refused until its old session is over, and learns how long that is when it
    starts.
    """
    was_killed = (log / "meta.properties").exists() and not (log / ".kafka_cleanshutdown").exists()
    return 6_000 if was_killed else 3_600_000


def _sasl(node: Node, users: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a listener that requires SASL/PLAIN of the users and of the node itself."""
    passwords = {**users, NODE_USER: node.client["sasl.password"]}
    for name in passwords:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise SettingsError(f"SASL user {name!r}: expected letters, digits, _ . and -; choose another name")
    options = {
        "username": NODE_USER,
        "password": passwords[NODE_USER],
        **{f"user_{u}": p for u, p in passwords.items()},
    }
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    quoted = " ".join(f'{name}="{_quote(value)}"' for name, value in options.items())
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f"{module} required {quoted};",
    }


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def as_properties(values: Mapping[str, str]) -> str:
    """Return the text of a properties file."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in values.items())


def _escape(value: str) -> str:
    """Return a value for a properties file, which Java reads as Latin-1 with its own escapes."""
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(utf16[i : i + 2], "big") for i in range(0, len(utf16), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in units)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only: it may hold passwords."""
    draft = path.with_name(path.name + ".draft")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
