"""A real Schema Registry, Apicurio, beside a real log: registering, the ids of records, and an outage.

    `admin schemas register` ──► Apicurio ◄── streams, scoring, policy, Confluent's own serializers ──► Kafka

Runs with `make test-deploy` only: it fetches 159 MB once, and needs Java 21. Schemas of others were registered before
ours, so that no id is that of lock.json.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

from schemas import ids as numbering, versions
from schemas.events import AdvantagedGroup, DeadLetter, Message, Response, Reward, RewardSource, Sampling, Task
from schemas.serde import decode, encode
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Kafka, Metrics, Policy, Schemas, Settings, Topics
from tests import skips
from tests.chaos.proxy import free_ports
from tests.deploy.test_rendered import containers
from tests.support.commands import invoke, rows_of
from tests.support.deploy.apicurio import Apicurio, NotHere, running as apicurio_running
from tests.support.deploy.container import Host, Process
from tests.support.deploy.rendered_chart import needs_helm
from tests.support.factories import one_of_each, task
from tests.support.log.confluent_events import SUBJECTS, plain, registry_client, where, with_millis
from tests.support.processes import read, records, running, said, until
from tests.support.scrape import get

pytestmark = [pytest.mark.kafka, pytest.mark.registry]

OPT_IN = "TEST_REGISTRY"
OTHERS = 40
LEVEL = "FULL_TRANSITIVE"
LOOP = ("streams", "scoring", "policy")


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """One that knows schemas of others."""
    if os.environ.get(OPT_IN) != "1":
        pytest.skip(skips.ASKED_FOR)
    try:
        with apicurio_running(tmp_path_factory.mktemp("apicurio")) as running_one:
            with registry_client(running_one.url) as client:
                for number in range(OTHERS):
                    record = {"type": "record", "name": f"Other{number}", "fields": []}
                    client.register_schema(f"other-{number}-value", Schema(json.dumps(record), "AVRO"))
            yield running_one
    except NotHere as exc:
        pytest.skip(skips.needs(f"Apicurio and its Java ({exc})"))


@pytest.fixture
def client(apicurio: Apicurio) -> Iterator[SchemaRegistryClient]:
    with registry_client(apicurio.url) as client:
        yield client


@pytest.fixture(autouse=True)
def own_ids_again() -> Iterator[None]:
    yield
    numbering.use(numbering.LOCK_IDS)


@pytest.fixture
def registered(apicurio: Apicurio, settings: Settings) -> Settings:
    """Settings whose topics exist and whose schemas are registered; this process uses the ids of lock.json."""
    with_registry = settings.model_copy(update={"schemas": Schemas(registry_url=apicurio.url)})
    admin.apply_topics(with_registry)
    assert invoke(with_registry, "admin", "schemas", "register").exit_code == 0
    numbering.use(numbering.LOCK_IDS)
    return with_registry


def alone(apicurio: Apicurio, prefix: str) -> Settings:
    """Settings of topics that nobody reads: only their subjects matter."""
    return Settings(
        kafka=Kafka(bootstrap="127.0.0.1:1"), topics=Topics(prefix=prefix), schemas=Schemas(registry_url=apicurio.url)
    )


def everything(client: SchemaRegistryClient) -> dict[str, Any]:
    """Return every subject with its versions, and its level if it has one."""
    found = {subject: (client.get_versions(subject),) for subject in client.get_subjects()}
    return found | {
        topic.name: schema_registry.unless_missing(lambda name=topic.name: client.get_compatibility(f"{name}-value"))  # type: ignore[misc]
        for prefix in ("one.", "bad.")
        for topic in topics(Topics(prefix=prefix)).values()
    }


# --- registering ------------------------------------------------------------------------------------------------------


def test_register_puts_every_version_there_and_each_subject_reads_all_it_has(
    apicurio: Apicurio, client: SchemaRegistryClient
) -> None:
    settings, before = alone(apicurio, "one."), everything(client)
    dry = invoke(settings, "admin", "schemas", "register", "--dry-run", "--output", "jsonl")
    assert dry.exit_code == 0 and everything(client) == before
    for result in ("registered", "there"):
        done = invoke(settings, "admin", "schemas", "register", "--output", "jsonl")
        rows = rows_of(done)
        assert {row["result"] for row in rows} == {result}
    assert len(rows) == len(versions.files().schemas)
    for row in rows:
        (own,) = (each for each in versions.files().versions(row["event"]) if each.version == row["version"])
        there = client.get_version(row["subject"], row["version"])
        assert there.schema_id == row["id"] > OTHERS
        assert numbering.schema_from_text(there.schema.schema_str) == own
        assert client.get_compatibility(row["subject"]) == LEVEL


def test_what_cannot_be_read_is_refused_before_anything_changes(
    apicurio: Apicurio, client: SchemaRegistryClient
) -> None:
    strange = {"type": "record", "name": "Batch", "fields": [{"name": "size", "type": "int"}]}
    client.register_schema("bad.batches-value", Schema(json.dumps(strange), "AVRO"))
    before = everything(client)
    result = invoke(alone(apicurio, "bad."), "admin", "schemas", "register")
    assert result.exit_code == 4
    assert "bad.batches-value: version 1 in the registry" in result.stderr and "Nothing was changed" in result.stderr
    assert everything(client) == before


def test_the_registry_itself_refuses_what_is_not_compatible_from_then_on(
    apicurio: Apicurio, client: SchemaRegistryClient
) -> None:
    assert invoke(alone(apicurio, "kept."), "admin", "schemas", "register").exit_code == 0
    definition = versions.files().newest(Reward).definition
    broken = definition | {"fields": definition["fields"][1:]}
    with pytest.raises(Exception, match="409"):
        client.register_schema("kept.rewards-value", Schema(json.dumps(broken), "AVRO"))


@needs_helm
def test_the_hook_of_the_chart_registers_and_a_schema_that_does_not_fit_ends_it_before_anything_changes(
    apicurio: Apicurio, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    """As tests/deploy/test_rendered.py starts it; 4 is one of the codes after which its Job is not tried again."""
    host = Host(tmp_path, {"registry.test:8080": apicurio.url.split("/")[2]})

    def hook(prefix: str) -> Process:
        values = {
            "kafka": {"bootstrap": "kafka.test:9092"},
            "settings": {"topics": {"prefix": prefix}},
            "schemas": {"registryUrl": "http://registry.test:8080/apis/ccompat/v7"},
        }
        return host.put(containers(values, {})["schemas"][0])

    for result in ("registered", "there"):
        rows = [json.loads(line) for line in hook("chart.").ends().splitlines()]
        assert {row["result"] for row in rows} == {result} and len(rows) == len(versions.files().schemas)
    strange = {"type": "record", "name": "Batch", "fields": [{"name": "size", "type": "int"}]}
    client.register_schema("chart.strange.batches-value", Schema(json.dumps(strange), "AVRO"))
    before = client.get_subjects()
    done = hook("chart.strange.")
    refused = done.execute(*done.container.command)
    assert refused.returncode == 4 and "Nothing was changed" in refused.stderr
    assert client.get_subjects() == before


# --- records ----------------------------------------------------------------------------------------------------------


def test_confluents_deserializer_reads_what_we_write_and_we_read_its_serializer(
    registered: Settings, client: SchemaRegistryClient
) -> None:
    own = [encode(event) for event in one_of_each()]
    schema_registry.wait(registered)
    with Producer(registered) as producer:
        for event in one_of_each():
            producer.send(event)
    lying = {label: list(admin.read_topic(registered, label)) for label in topics(registered.topics)}
    for event, before in zip(one_of_each(), own, strict=True):
        label = topic_of(type(event), registered.topics).label
        payload = next(record.payload for record in lying[label] if record.decode(type(event)) == event)
        assert payload is not None and payload[5:] == before[5:] and payload[:5] != before[:5]
        place = where(event, registered.topics)
        assert with_millis(AvroDeserializer(client, conf=SUBJECTS)(payload, place)) == plain(event)
        rules = {"auto.register.schemas": False, "use.latest.version": True, **SUBJECTS}
        theirs = AvroSerializer(client, versions.files().newest(type(event)).text, conf=rules)(plain(event), place)
        assert decode(theirs, type(event)) == event == decode(before, type(event))


# --- processes --------------------------------------------------------------------------------------------------------


def asked(number: int) -> Task:
    return task(
        task_id=f"t{number}",
        created_at=int(time.time() * 1000),
        messages=(Message(role="user", content=f"{number} 7"),),
        reward_sources=(RewardSource(name="length", settings=json.dumps({"unit": "characters", "limit": 60})),),
        sampling=Sampling(max_tokens=8),
    )


def written_with(settings: Settings, label: str, task_id: str) -> set[int]:
    """Return the schema ids of the records of a task."""
    return {
        int.from_bytes(record.payload[1:5], "big")
        for record in records(settings, label)
        if record.payload and record.key == task_id.encode()
    }


def test_processes_wait_for_a_cold_registry_and_go_on_through_its_outage_once_warm(
    registered: Settings, apicurio: Apicurio, tmp_path: Path
) -> None:
    settings = registered.model_copy(update={"policy": Policy(engine="scripted", script='{"answers": "echo"}')})
    urls = {name: f"http://127.0.0.1:{port}" for name, port in zip(LOOP, free_ports(len(LOOP)), strict=True)}
    with Producer(settings) as producer:  # with the ids of lock.json, as before there was a registry
        producer.send(asked(0))

    def ready(name: str) -> tuple[int, str]:
        return get(f"{urls[name]}/readyz")

    def groups() -> set[str]:
        return {group.task_id for _, group in read(settings, AdvantagedGroup)}

    def answer(number: int) -> None:
        with Producer(settings) as producer:
            producer.send(asked(number))
        until(lambda: f"t{number}" in groups(), f"the group of t{number}", folder=tmp_path)

    with ExitStack() as stack:
        apicurio.pause()
        stack.callback(apicurio.resume)
        for name in LOOP:
            own = settings.model_copy(update={"metrics": Metrics(port=int(urls[name].rpartition(":")[2]))})
            stack.enter_context(running(own, tmp_path, name))
        for name in LOOP:
            until(lambda name=name: "does not answer" in ready(name)[1], f"{name} to wait", folder=tmp_path)  # type: ignore[misc]
            status, why = ready(name)
            assert status == 503 and "schema_registry: the Schema Registry at" in why
            assert get(f"{urls[name]}/healthz")[0] == 200
        assert groups() == set()

        apicurio.resume()
        schema_registry.wait(settings)  # this process reads what they write, and asks now
        until(lambda: "t0" in groups(), "the group of t0", folder=tmp_path)
        answer(1)
        until(lambda: all(ready(name)[0] == 200 for name in LOOP), "all to be ready", folder=tmp_path)

        apicurio.pause()
        answer(2)
        assert all(ready(name)[0] == 200 for name in LOOP)
        waited = said(tmp_path)
        assert waited.count("Waiting") == len(LOOP), waited

        with Producer(settings) as producer:  # nobody has met this id: what it means waits for the registry
            frame = b"\0" + (10**6).to_bytes(4, "big")
            producer.send_bytes(topics(settings.topics)["tasks"].name, b"odd", frame + b"?")
        until(lambda: "schema_registry" in ready("streams")[1], "streams to wait", folder=tmp_path)
        assert get(f"{urls['streams']}/healthz")[0] == 200
        assert not records(settings, "dead-letters")
        apicurio.resume()
        until(lambda: bool(records(settings, "dead-letters")), "a dead letter", folder=tmp_path)
        answer(3)
        until(lambda: all(ready(name)[0] == 200 for name in LOOP), "all to be ready", folder=tmp_path)

    assert written_with(settings, "tasks", "t0") == {versions.files().newest(Task).id}
    ids = {type_: numbering.current().id_of(versions.files().newest(type_)) for type_ in (Task, Response, Reward)}
    for number in (1, 2, 3):
        assert written_with(settings, "tasks", f"t{number}") == {ids[Task]}
        assert written_with(settings, "responses", f"t{number}") == {ids[Response]}
        assert written_with(settings, "rewards", f"t{number}") == {ids[Reward]}
    assert {letter.reason for _, letter in read(settings, DeadLetter)} == {"unknown_schema"}


def test_a_command_reads_a_log_of_both_numberings(registered: Settings, tmp_path: Path) -> None:
    with Producer(registered) as producer:
        producer.send(asked(0))
    schema_registry.wait(registered)
    with Producer(registered) as producer:
        producer.send(asked(1))
    found = invoke(registered, "query", "SELECT task_id, _schema_id FROM tasks ORDER BY 1", "--output", "jsonl")
    rows = rows_of(found)
    assert rows == [
        {"task_id": "t0", "_schema_id": versions.files().newest(Task).id},
        {"task_id": "t1", "_schema_id": numbering.current().id_of(versions.files().newest(Task))},
    ]
