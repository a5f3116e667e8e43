"""A Kafka node that lets nobody in without a password, for tests: one port in plain text, another in TLS.

    users ──► an embedded node with two doors, SASL_PLAINTEXT and SASL_SSL, both with PLAIN ──► stopped with the block
    rights ─► what each of them may do; without rights, who is in may do everything

Not covered: SCRAM, certificates of clients.
"""

from __future__ import annotations

import datetime
import ipaddress
import random
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import admin
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streams.kafka.node import config as node, process as broker
from streams.settings.model import Broker

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{node.NODE_USER};User:ANONYMOUS",  # the controller's own door, where nobody logs in
}


class Right(NamedTuple):
    """What somebody may do with topics or consumer groups."""

    operations: tuple[str, ...]
    """As Kafka names them: ALL, READ, WRITE, CREATE, DESCRIBE, DESCRIBE_CONFIGS. READ and WRITE bring DESCRIBE."""
    kind: str
    """TOPIC or GROUP."""
    names: str
    """One name, or with * at its end all that begin so."""


@dataclass(frozen=True)
class Secured:
    """A node with two doors."""

    bootstrap: dict[str, str]
    """host:port by security protocol."""
    authority: Path
    """PEM file of who vouches for the node's certificate."""


@contextmanager
def running_node(
    folder: Path, users: Mapping[str, str], rights: Mapping[str, Iterable[Right]] | None = None
) -> Iterator[Secured]:
    """Run a node for these users (password by name) while the block runs; its files lie in `folder`."""
    certificate, private = self_signed()
    (folder / "authority.pem").write_text(certificate)
    plain, tls, controller = free_ports(3)
    doors = {"CLIENT": plain, "TLS": tls}
    listeners = ",".join(f"{name}://{node.HOST}:{port}" for name, port in doors.items())
    properties = {
        "controller.quorum.voters": f"1@{node.HOST}:{controller}",
        "listeners": f"{listeners},CONTROLLER://{node.HOST}:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT",
        "listener.name.tls.plain.sasl.jaas.config": f"{PLAIN} required {_known(users)};",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.certificate.chain": certificate,
        "listener.name.tls.ssl.keystore.key": private,
        **({} if rights is None else AUTHORIZER),
    }
    where = Broker(data_dir=folder / "node")
    try:
        broker.start(where, port=plain, sasl_users=users, properties=properties)
        _grant(where.data_dir, rights or {})
        bootstrap = {"SASL_PLAINTEXT": f"{node.HOST}:{plain}", "SASL_SSL": f"{node.HOST}:{tls}"}
        yield Secured(bootstrap, folder / "authority.pem")
    finally:
        broker.stop(where)


def _grant(data_dir: Path, rights: Mapping[str, Iterable[Right]]) -> None:
    """Give users their rights, as the node's own user."""
    known = node.read_node(data_dir)
    assert known is not None
    client = admin.AdminClient({"bootstrap.servers": known.bootstrap, **known.client})
    acls = [
        admin.AclBinding(
            admin.ResourceType[right.kind],
            right.names if right.names == "*" else right.names.removesuffix("*"),
            admin.ResourcePatternType.PREFIXED if right.names[1:].endswith("*") else admin.ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            admin.AclOperation[operation],
            admin.AclPermissionType.ALLOW,
        )
        for user, own in rights.items()
        for right in own
        for operation in right.operations
    ]
    for made in client.create_acls(acls).values() if acls else ():
        made.result()


def _known(users: Mapping[str, str]) -> str:
    """Return the options that make Kafka's login module know these users."""
    quoted = {name: password.replace("\\", "\\\\").replace('"', '\\"') for name, password in users.items()}
    return " ".join(f'user_{name}="{password}"' for name, password in quoted.items())


def free_ports(count: int) -> list[int]:
    """Return ports to listen on, all different; see node.PORTS for why not just any."""
    found: list[int] = []
    for port in random.SystemRandom().sample(node.PORTS, len(node.PORTS)):  # a test may have set the seed
        with socket.socket() as probe:
            try:
                probe.bind((node.HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found


def self_signed() -> tuple[str, str]:
    """Return (certificate, private key) for 127.0.0.1, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "streamward test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(node.HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
