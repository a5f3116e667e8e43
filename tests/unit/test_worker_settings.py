"""The Faust app as built from settings, without a broker."""

from __future__ import annotations

import logging
import ssl
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from faust.auth import SASLCredentials, SSLCredentials
from faust.events import Event
from faust.streams import _current_event
from hypothesis import given, strategies as st

from streams.errors import SettingsError
from streams.kafka.record import partition_of
from streams.observability.logging import RateLimit
from streams.settings.model import Kafka, Settings, Topics
from streams.worker.faust import faust_app as apps


def build(**kafka: Any) -> apps.App:
    return apps.build_app(
        Settings(kafka=Kafka(**kafka), topics=Topics(prefix="p.", max_record_bytes=2048)),
        worker_name="worker-1",
    )


def test_settings_that_lose_events_otherwise_are_set() -> None:
    conf = build(bootstrap="a:1,b:2", session_timeout_s=8).conf
    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert conf.id == "p.streams"
    assert conf.broker_session_timeout == 8
    assert conf.consumer_auto_offset_reset == "earliest"
    assert (
        conf.consumer_max_fetch_size <= 64 * 1024
    )  # or one topic waits for minutes behind what others have read ahead
    assert conf.producer_linger == 0
    assert conf.producer_acks == -1
    assert conf.producer_max_request_size > 2048
    assert conf.table_standby_replicas == 0
    assert not conf.topic_allow_declare
    assert not conf.web_enabled
    assert not conf.autodiscover


@given(key=st.text(min_size=1), partitions=st.integers(1, 64))
def test_keys_land_where_librdkafka_and_java_put_them(key: str, partitions: int) -> None:
    # producer_partitioner=None means aiokafka's DefaultPartitioner
    assert DefaultPartitioner()(key.encode(), list(range(partitions)), []) == partition_of(key, partitions)


def test_sasl_over_tls_reaches_faust_without_the_password_in_its_repr() -> None:
    app = build(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password="hush")
    credentials = app.conf.broker_credentials
    assert isinstance(credentials, SASLCredentials)
    assert (credentials.mechanism.value, credentials.username, credentials.password) == ("SCRAM-SHA-512", "u", "hush")
    assert isinstance(credentials.ssl_context, ssl.SSLContext)
    assert credentials.protocol.value == "SASL_SSL"
    assert "hush" not in repr(credentials)


def test_tls_checks_the_name_and_the_certificate_of_the_broker() -> None:
    credentials = build(security_protocol="SSL").conf.broker_credentials
    assert isinstance(credentials, SSLCredentials)
    assert credentials.context.check_hostname and credentials.context.verify_mode == ssl.CERT_REQUIRED


def test_tls_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"kafka.ssl_ca_location=.*nowhere.pem"):
        build(security_protocol="SSL", ssl_ca_location=tmp_path / "nowhere.pem")


def test_settings_that_do_not_reach_faust_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    build(client={"socket.keepalive.enable": "true"})
    assert "socket.keepalive.enable" in caplog.text


async def test_event_of_an_earlier_generation_cannot_write_to_a_table() -> None:
    # It waited for an acknowledgement while its partition went to another worker and came back with newer state.
    app = build()
    table = apps.table(app, "groups", 4)
    table.data[b"k"] = b"newer"
    message = SimpleNamespace(topic="t", partition=0, offset=9, generation_id=3, headers=None)
    event = Event(app, b"k", b"v", None, message)
    _current_event.set(weakref.ref(event))
    app.consumer_generation_id = 4
    table[b"k"] = b"old"
    del table[b"k"]
    assert table.data[b"k"] == b"newer"


def test_log_lines_of_one_kind_are_passed_once_a_period_and_then_counted() -> None:
    now = [0.0]
    limit = RateLimit(clock=lambda: now[0])

    def passes(text: str, *args: object) -> str | None:
        record = logging.LogRecord("aiokafka.conn", logging.WARNING, "", 0, text, args, None)
        return f"{record.getMessage()} {getattr(record, 'held_back', 0)}" if limit.passes(record) else None

    assert passes("node %s is away", 1) == "node 1 is away 0"
    assert [passes("node %s is away", node) for node in (1, 2)] == [None, None]
    assert passes("something else") == "something else 0"
    now[0] = 31
    assert passes("node %s is away", 3) == "node 3 is away 2"
