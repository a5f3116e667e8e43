"""Any Confluent-compatible consumer reads the topics: Confluent's own client, over HTTP, on records of ours."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError

from schemas import versions
from schemas.events import AdapterEvent, Event, Response, Reward
from schemas.serde import decode, encode
from streams.errors import SettingsError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.registry import server as schema_server
from streams.settings.model import Settings, Topics
from tests.support.factories import one_of_each, response, reward
from tests.support.log.confluent_events import plain, registry_client, where, with_millis


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with schema_server.serve() as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with registry_client(url) as client:
        yield client


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_confluents_deserializer_reads_every_event(client: SchemaRegistryClient, event: Event) -> None:
    assert with_millis(AvroDeserializer(client)(encode(event), where(event, Topics()))) == plain(event)


def test_confluents_serializer_writes_what_we_read(client: SchemaRegistryClient) -> None:
    # with `use.latest.version` it asks for the schema and registers nothing
    event = response()
    settings = {"auto.register.schemas": False, "use.latest.version": True}
    write = AvroSerializer(client, versions.files().newest(Response).text, conf=settings)
    payload = write(plain(event), where(event, Topics()))
    assert payload == encode(event)
    assert decode(payload, Response) == event


def test_confluents_serializer_finds_the_id_of_the_schema_it_is_given(client: SchemaRegistryClient) -> None:
    # without `use.latest.version` it asks by POST which version of the subject its schema is
    event = response()
    definition = versions.files().newest(Response).definition
    reordered = json.dumps(dict(reversed(definition.items())), indent=1)
    write = AvroSerializer(client, reordered, conf={"auto.register.schemas": False})
    assert write(plain(event), where(event, Topics())) == encode(event)
    newest = versions.files().newest(AdapterEvent)
    found = client.lookup_schema("streamward.adapters-value", Schema(newest.text, "AVRO"))
    assert (found.version, found.schema_id) == (newest.version, newest.id)


@pytest.mark.parametrize(
    ("subject", "schema", "status", "code", "says"),
    [
        ("nobody-value", '"string"', 404, 40401, "subject nobody-value does not exist"),
        ("streamward.tasks-value", '"string"', 404, 40403, "the schema is no version of streamward.tasks-value"),
        ("streamward.tasks-value", "no schema", 422, 42201, "holds no Avro schema"),
    ],
)
def test_a_schema_that_is_not_there_has_confluents_error_code(
    client: SchemaRegistryClient, subject: str, schema: str, status: int, code: int, says: str
) -> None:
    with pytest.raises(SchemaRegistryError, match=says) as refused:
        client.lookup_schema(subject, Schema(schema, "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (status, code)


def test_a_service_that_tries_to_register_is_told_that_none_does(client: SchemaRegistryClient) -> None:
    with pytest.raises(SchemaRegistryError, match="read only: services never register schemas") as refused:
        client.register_schema("streamward.tasks-value", Schema('"string"', "AVRO"))
    assert refused.value.http_status_code == 403


def test_the_subjects_are_the_topics_of_this_deployment() -> None:
    with (
        schema_server.serve(Settings(topics=Topics(prefix="lab."))) as url,
        registry_client(url) as client,
    ):
        assert "lab.rewards-value" in client.get_subjects()
        newest = versions.files().newest(Reward)
        assert client.get_versions("lab.rewards-value") == [*range(1, newest.version + 1)]
        assert client.get_latest_version("lab.rewards-value").schema_id == newest.id


@pytest.mark.parametrize(
    ("path", "status", "code", "says"),
    [
        ("/schemas/ids/4242", 404, 40403, "schema id 4242 is not in lock.json (known: 1001 to "),
        ("/schemas/ids/one", 404, 40403, "schema id one is not in lock.json"),
        ("/subjects/nobody-value/versions/1", 404, 40401, "subject nobody-value does not exist"),
        ("/subjects/streamward.tasks-value/versions/9", 404, 40402, "version 9 of streamward.tasks-value"),
        ("/else", 404, 404, "/else is not served here; see /subjects"),
    ],
)
def test_what_is_not_there_has_confluents_error_code(url: str, path: str, status: int, code: int, says: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + path, timeout=300)  # noqa: S310 - our own server
    with refused.value as answer:
        body = json.load(answer)
    assert (answer.code, body["error_code"]) == (status, code)
    assert says in body["message"]


def test_a_port_that_is_taken_is_named(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with (
        pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be served: .*choose another --port"),
        schema_server.serve(port=port),
    ):
        pass


@pytest.mark.kafka
def test_a_record_that_went_through_the_broker_is_read_by_confluents_client(
    settings: Settings, client: SchemaRegistryClient
) -> None:
    admin.apply_topics(settings)
    event = reward()
    with Producer(settings) as producer:
        producer.send(event)
    (record,) = admin.read_topic(settings, "rewards")
    assert with_millis(AvroDeserializer(client)(record.payload, where(event, Topics()))) == plain(event)
