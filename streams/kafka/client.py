"""The librdkafka configuration that every client of this program shares."""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka as ck

from streams.kafka.retry import BrokerUnreachable
from streams.settings.model import Kafka

POLL_S = 0.2
"""Longest wait in one poll, and so how quickly a process notices that it should stop."""


def client_config(kafka: Kafka) -> dict[str, Any]:
    """Return the librdkafka settings that every client of this cluster shares."""
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "socket.timeout.ms": int(kafka.request_timeout_s * 1000),
        "socket.keepalive.enable": True,  # a broker whose machine died closes no connection
        "reconnect.backoff.max.ms": 1000,  # so that a broker that is back is found soon; the default is 10 s
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


def _on_error(error: ck.KafkaError) -> None:
    """Keep librdkafka from printing; what matters is raised by poll or flush, or times out."""


def unreachable(kafka: Kafka, cause: object, *, within_s: float | None = None) -> BrokerUnreachable:
    """Return the error for a broker that does not answer, with the ways out. `within_s`: if not request_timeout_s."""
    waited_s = kafka.request_timeout_s if within_s is None else within_s
    return BrokerUnreachable(
        f"Kafka at {kafka.bootstrap} did not answer within {waited_s:g} s ({cause}). Check that it runs "
        "(`streamward broker status`, or `streamward broker start` for an embedded one) and that kafka.bootstrap and "
        "kafka.security_protocol are right (`streamward config show`)"
    )
