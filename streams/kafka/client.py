"""The clients of librdkafka, and the configuration that all of them share.

settings, this client's options ──► consumer, producer, admin_client ──► librdkafka's
                                          └── kafka.client has a key or value that it refuses: SettingsError
settings ──► kept_admin ──► a client of the administration, one for the process, which stays connected
"""

from __future__ import annotations

import atexit
import logging
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin

from streams.errors import LogError, SettingsError
from streams.kafka.retry import ANSWER_S, BrokerUnreachable
from streams.settings.model import Kafka

T = TypeVar("T")

POLL_S = 0.2
"""Longest wait in one poll, and so how quickly a process notices that it should stop."""

METADATA_S = 5
"""How often a consumer asks which topics exist. A broker that has just started may briefly report none, and a member
that asked then joins no group until it asks again: after five minutes, by librdkafka's default."""

LOST_S = 30.0
"""How often a client that gets nothing is compared with a new one."""


def client_config(kafka: Kafka) -> dict[str, Any]:
    """Return the librdkafka settings that every client of this cluster shares."""
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "socket.timeout.ms": int(kafka.request_timeout_s * 1000),
        "socket.keepalive.enable": True,  # a broker whose machine died closes no connection
        "reconnect.backoff.max.ms": 1000,  # finds a broker soon after it is back; the default is 10 s
        "error_cb": _on_error,
        "logger": logging.getLogger("librdkafka"),  # called from poll and flush; without it librdkafka writes to stderr
    }
    optional = {
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": kafka.sasl_username,
        "sasl.password": kafka.sasl_password.get_secret_value() if kafka.sasl_password else None,
        "ssl.ca.location": kafka.ssl_ca_location,
        "ssl.certificate.location": kafka.ssl_certificate_location,
        "ssl.key.location": kafka.ssl_key_location,
    }
    config |= {key: str(value) for key, value in optional.items() if value is not None}
    return config | {key: value.get_secret_value() for key, value in kafka.client.items()}


def tls_context(kafka: Kafka) -> ssl.SSLContext | None:
    """Return what aiokafka's clients need for TLS, if it is on. Raises SettingsError, naming the unusable setting."""
    if not kafka.security_protocol.endswith("SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_ca_location)
        if kafka.ssl_certificate_location is not None:
            context.load_cert_chain(kafka.ssl_certificate_location, kafka.ssl_key_location)
    except OSError as exc:  # ssl.SSLError is one
        raise SettingsError(
            f"TLS cannot be set up from kafka.ssl_ca_location={kafka.ssl_ca_location}, ssl_certificate_location="
            f"{kafka.ssl_certificate_location}, ssl_key_location={kafka.ssl_key_location}: {exc}. Each must be a "
            "readable PEM file, and the key must fit the certificate"
        ) from exc
    return context


def consumer(kafka: Kafka, config: Mapping[str, Any]) -> ck.Consumer:
    """Return a consumer of committed records alone. Raises SettingsError for what `kafka.client` must not hold."""
    shared = {"isolation.level": "read_committed", "topic.metadata.refresh.interval.ms": METADATA_S * 1000}
    return _make_client(ck.Consumer, kafka, {**config, **shared})


def producer(kafka: Kafka, config: Mapping[str, Any]) -> ck.Producer:
    """Return a producer. Raises SettingsError as `consumer`."""
    return _make_client(ck.Producer, kafka, config)


def admin_client(kafka: Kafka) -> admin.AdminClient:
    """Return a client of the cluster's administration. Raises SettingsError as `consumer`."""
    return _make_client(admin.AdminClient, kafka, {})


class KeptAdmin:
    """The client that a process keeps, and the latest errors that it was told of."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.errors: deque[ck.KafkaError] = deque(maxlen=20)
        self.client: admin.AdminClient = admin.AdminClient({**config, "error_cb": self.errors.append, "log_level": 0})
        self.has_answered = False


def kept_admin(kafka: Kafka) -> KeptAdmin:
    """Return this process's client of the cluster's administration. Raises SettingsError as `consumer`.

    A new client costs the broker ten times as much as a request. Call `forget_admins` after a request got no answer.
    """
    return _make_client(lambda config: _keep(tuple(config.items())), kafka, {})


@lru_cache(maxsize=4)
def _keep(config: tuple[tuple[str, Any], ...]) -> KeptAdmin:
    return KeptAdmin(dict(config))


forget_admins = _keep.cache_clear
atexit.register(forget_admins)
os.register_at_fork(before=forget_admins)  # a fork has none of the client's threads, and could not even close it


def _make_client(client: Callable[[dict[str, Any]], T], kafka: Kafka, config: Mapping[str, Any]) -> T:
    try:
        return client({**client_config(kafka), **config})
    except ck.KafkaException as exc:
        if exc.args[0].code() != ck.KafkaError._INVALID_ARG:
            raise
        names = f", kafka.client ({', '.join(kafka.client)}) among them" if kafka.client else ""
        raise SettingsError(f"librdkafka refuses the settings in [kafka]{names}: {exc.args[0].str()}") from exc


class LostBrokers:
    """Notices that a client has lost its brokers for good.

    A broker that was frozen longer than its session is fenced when it continues, and may answer with topics and no
    brokers. librdkafka then drops all that it knows, and may never bootstrap again (librdkafka#5301, open in 2.16).
    """

    def __init__(self, kafka: Kafka, own: ck.Consumer | ck.Producer) -> None:
        self._kafka, self._own = kafka, own
        self._well_at = time.monotonic()

    def works(self) -> None:
        """Note that the client got something."""
        self._well_at = time.monotonic()

    def reason(self) -> str | None:
        """Return why the client has to be replaced, if a new one gets an answer and it does not; None otherwise.

        Asks only after every LOST_S in which the client got nothing.
        """
        if time.monotonic() < self._well_at + LOST_S:
            return None
        self.works()
        if _names_brokers(self._own) or not _names_brokers(admin_client(self._kafka)):
            return None
        return (
            f"Kafka at {self._kafka.bootstrap} answers a new client, and one of this process gets no answer: it has "
            "lost its brokers, and does not find them again (librdkafka#5301)"
        )

    def check(self) -> None:
        """Raise LogError if the client has to be replaced."""
        if (reason := self.reason()) is not None:
            raise LogError(f"{reason}. Nothing is lost: start this process again")


def _names_brokers(asking: ck.Consumer | ck.Producer | admin.AdminClient) -> bool:
    try:
        return bool(asking.list_topics(timeout=ANSWER_S).brokers)
    except ck.KafkaException:
        return False


def _on_error(error: ck.KafkaError) -> None:
    """Keep librdkafka from printing; errors that matter are raised by poll or flush, or show as a timeout."""


def unreachable(kafka: Kafka, cause: object, *, within_s: float | None = None) -> BrokerUnreachable:
    """Return the error for a broker that does not answer, with the ways out. `within_s`: time limit, default
    request_timeout_s."""
    waited_s = kafka.request_timeout_s if within_s is None else within_s
    return BrokerUnreachable(
        f"Kafka at {kafka.bootstrap} did not answer within {waited_s:g} s ({cause}). Check that it runs "
        "(`streamward admin broker status`, or `streamward admin broker start` for an embedded one) and that "
        "kafka.bootstrap and kafka.security_protocol are right (`streamward config show`)"
    )
