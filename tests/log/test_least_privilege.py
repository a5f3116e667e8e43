"""Each principal of docs/install.md on a Kafka with an authorizer: it may do what its row says, and nothing else.

    the table ──► a node, a user per principal with its row as rights ──► each tries everything ──► a row of cells

A principal makes its attempts in batches, once, and a test names every cell of its row that is wrong. Topics and
settings are only validated, and records deleted up to offset 0, so nobody's attempt changes what the next one finds.

Not covered: that the processes need no more than this; tests/deploy/test_rendered.py runs them all with these rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from streams.kafka.topics import LABELS
from tests.support.log.principals import PRINCIPALS, rights, row_of
from tests.support.log.secured_node import Right, running_node

pytestmark = pytest.mark.kafka

PREFIX, ANOTHER = "privileged.", "another."
OWN = tuple(f"{PREFIX}{label}" for label in (*LABELS, "streams-advantages-changelog"))
"""The topics of a deployment; the last is a table's."""
TOPICS = (*OWN, f"{ANOTHER}tasks", f"{ANOTHER}adapters")
"""Those, and some of a deployment beside it."""
OPERATIONS = ("read", "write", "create", "alter", "delete")
GROUPS = (f"{PREFIX}streams", f"{ANOTHER}streams")
TIMEOUT_S = 30.0
DENIED = frozenset(
    {
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
        ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
Allowed = dict[tuple[str, str], bool]
"""Whether an operation was allowed, by (operation, name of the topic or group)."""


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Allowed]]:
    """Return what a principal was allowed of everything there is."""
    users = {name: f"password of {name}" for name in (*PRINCIPALS, "owner")}
    granted = {name: rights(name, PREFIX) for name in PRINCIPALS}
    granted["owner"] = [Right(("ALL",), kind, "*") for kind in ("TOPIC", "GROUP")]
    done: dict[str, Allowed] = {}
    with running_node(tmp_path_factory.mktemp("privileged"), users, granted) as node:

        def config(name: str) -> dict[str, Any]:
            return {
                "bootstrap.servers": node.bootstrap["SASL_PLAINTEXT"],
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": users[name],
                "log_level": 0,  # that much is refused is meant
            }

        def tried(name: str) -> Allowed:
            if name not in done:
                done[name] = {**read(config(name)), **written(config(name)), **administered(config(name))}
                done[name] |= committed(config(name))
            return done[name]

        owner = admin.AdminClient(config("owner"))
        for made in owner.create_topics([admin.NewTopic(name, 1, 1) for name in TOPICS]).values():
            made.result()
        assert all(written(config("owner")).values())
        yield tried


def allowed(error: ck.KafkaError | None) -> bool:
    """Return whether the broker let somebody do something; an error about anything but rights fails the test."""
    if error is not None and error.code() not in {*DENIED, ck.KafkaError.TOPIC_ALREADY_EXISTS}:
        raise ck.KafkaException(error)
    return error is None or error.code() not in DENIED


def read(config: Mapping[str, Any]) -> Allowed:
    """Read the first record of every topic that is shown; one that is not shown cannot be read."""
    consumer = ck.Consumer({**config, "group.id": GROUPS[0], "enable.auto.commit": False})
    try:
        shown = consumer.list_topics(timeout=TIMEOUT_S).topics
        found: Allowed = {("read", name): False for name in TOPICS if name not in shown}
        consumer.assign([ck.TopicPartition(name, 0, 0) for name in TOPICS if name in shown])
        while len(found) < len(TOPICS):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no answer about {set(TOPICS) - {name for _, name in found}}"
            if message.topic() is not None:  # else it is about the group, which nobody joins here
                found["read", message.topic()] = allowed(message.error())
    finally:
        consumer.close()
    return found


def written(config: Mapping[str, Any]) -> Allowed:
    """Write one record to every topic."""
    errors: dict[str, ck.KafkaError | None] = {}
    producer = ck.Producer(dict(config))
    for name in TOPICS:
        producer.produce(name, b"x", on_delivery=lambda error, _, name=name: errors.update({name: error}))  # type: ignore[misc]
    assert producer.flush(TIMEOUT_S) == 0
    return {("write", name): allowed(error) for name, error in errors.items()}


def administered(config: Mapping[str, Any]) -> Allowed:
    """Create every topic and change its settings, without effect, and delete the records below its first; grant."""
    client = admin.AdminClient(dict(config))
    new = [admin.NewTopic(name, 1, 1) for name in TOPICS]
    entry = admin.ConfigEntry("retention.ms", "1", incremental_operation=admin.AlterConfigOpType.SET)
    resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name, incremental_configs=[entry]) for name in TOPICS]
    starts = [ck.TopicPartition(name, 0, 0) for name in TOPICS]
    created = client.create_topics(new, validate_only=True)
    altered = client.incremental_alter_configs(resources, validate_only=True)
    deleted = client.delete_records(starts)
    return {
        **{("create", name): answer(future) for name, future in created.items()},
        **{("alter", resource.name): answer(future) for resource, future in altered.items()},
        **{("delete", start.topic): answer(future) for start, future in deleted.items()},
        ("grant", ""): any(answer(future) for future in client.create_acls([more(config)]).values()),
    }


def more(config: Mapping[str, Any]) -> admin.AclBinding:
    """Return a right that nobody has: to do anything with every topic."""
    pattern, allow = admin.ResourcePatternType.LITERAL, admin.AclPermissionType.ALLOW
    who = f"User:{config['sasl.username']}"
    return admin.AclBinding(admin.ResourceType.TOPIC, "*", pattern, who, "*", admin.AclOperation.ALL, allow)


def answer(future: Future[Any]) -> bool:
    """Return whether what was asked of the broker was allowed."""
    error = future.exception(TIMEOUT_S)
    return allowed(error.args[0] if isinstance(error, ck.KafkaException) else None)


def committed(config: Mapping[str, Any]) -> Allowed:
    """Commit an offset for groups of both deployments."""
    client, at = admin.AdminClient(dict(config)), ck.TopicPartition(OWN[0], 0, 1)
    return {
        ("commit", group): answer(future)
        for name in GROUPS
        for group, future in client.alter_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(name, [at])]).items()
    }


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_a_principal_may_do_with_a_topic_what_its_row_says_and_no_more(
    attempts: Callable[[str], Allowed], principal: str
) -> None:
    row = row_of(principal)
    documented = {"read": row.reads, "write": row.writes, "create": row.creates}
    expected = {
        (operation, topic): any(fnmatchcase(topic, f"{PREFIX}{names}") for names in documented.get(operation, ()))
        for operation in OPERATIONS
        for topic in TOPICS
    }
    found = attempts(principal)
    assert {cell: found[cell] for cell in expected if found[cell] != expected[cell]} == {}, "cells that are not so"


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_who_reads_topics_commits_for_groups_of_its_own_deployment_alone(
    attempts: Callable[[str], Allowed], principal: str
) -> None:
    found = {group: attempts(principal)["commit", group] for group in GROUPS}
    assert found == {GROUPS[0]: bool(row_of(principal).reads), GROUPS[1]: False}


@pytest.mark.parametrize("principal", PRINCIPALS)
def test_no_principal_gives_itself_a_right(attempts: Callable[[str], Allowed], principal: str) -> None:
    assert not attempts(principal)["grant", ""]
