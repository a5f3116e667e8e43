"""Two tenants with logs of their own on a Kafka with an authorizer: each has its own, and nothing of anybody else's.

    `admin access tenants create` for red and blue ──► each tries everything on red's, blue's and the operator's
                                                        ──► a small run of its own works

Not covered: that a tenant's processes need no more than this; its rights are those of all rows of docs/install.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin
from pydantic import SecretStr

from plugins.people.access.access_log import AccessLog
from plugins.people.tenants import acls, tenant_grants
from plugins.people.tenants.acls import AclRight
from plugins.people.tenants.tenant_rights import rights_of
from schemas.events import Task
from streams.errors import NotFoundError, RefusedError
from streams.kafka import admin as kafka_admin
from streams.settings.model import Kafka, Settings, Topics
from streams.stages.tasks.submit import submit
from tests.support.commands import invoke, rows_of
from tests.support.factories import task
from tests.support.log.secured_node import Right, running_node
from tests.support.processes import read

pytestmark = pytest.mark.kafka
BASE = "tenanted."
PREFIXES = {"operator": BASE, "red": f"{BASE}red.", "blue": f"{BASE}blue."}
TENANTS = ("red", "blue")
TIMEOUT_S = 30.0
DENIED = frozenset(
    {
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
        ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
ABOUT_SOMETHING_ELSE = frozenset(
    {
        ck.KafkaError.TOPIC_ALREADY_EXISTS,
        ck.KafkaError.GROUP_ID_NOT_FOUND,
        ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""What the broker says after it has found somebody to have the right."""
OWN_OPERATIONS = {
    "describe",
    "read",
    "write",
    "create",
    "create another",
    "configs",
    "offsets",
    "commit",
    "transaction",
}
"""What a tenant may do with what is its own."""


class Tenanted(NamedTuple):
    """A node, and settings of everybody who logs in to it: the operator, red, blue, and who has nothing."""

    of: dict[str, Settings]

    def run(self, who: str, *args: str) -> Result:
        return invoke(self.of[who], *args)

    def rows(self, *args: str) -> list[dict[str, Any]]:
        found = self.run("operator", "admin", "access", "tenants", *args, "--output", "jsonl")
        return rows_of(found)

    def listed(self, tenant: str) -> dict[str, Any]:
        return next(row for row in self.rows("list") if row["tenant"] == tenant)


@pytest.fixture(scope="module")
def tenanted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenanted]:
    users = {name: f"password of {name}" for name in ("operator", *TENANTS, "green")}
    operators = [Right(("ALL",), kind, "*") for kind in ("TOPIC", "GROUP")]
    operators.append(Right(("ALTER", "DESCRIBE"), "BROKER", "kafka-cluster"))
    with running_node(tmp_path_factory.mktemp("tenanted"), users, {"operator": operators}) as node:
        found = Tenanted({name: _settings(node.bootstrap["SASL_PLAINTEXT"], name, users[name]) for name in users})
        kafka_admin.apply_topics(found.of["operator"])
        for tenant in TENANTS:
            assert len(found.rows("create", tenant, "--principal", f"User:{tenant}")) == 6
            applied = found.run(tenant, "admin", "topics", "apply")
            assert applied.exit_code == 0, applied.output
        yield found


def _settings(bootstrap: str, name: str, password: str) -> Settings:
    return Settings(
        kafka=Kafka(
            bootstrap=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username=name,
            sasl_password=SecretStr(password),
        ),
        topics=Topics(prefix=PREFIXES.get(name, BASE), partitions=2, policy_partitions=1),
    )


# --- what a tenant may ------------------------------------------------------------------------------------------------


def test_a_tenant_that_made_its_topics_submits_a_task_and_reads_it_and_no_other_sees_it(tenanted: Tenanted) -> None:
    for tenant in TENANTS:
        submit(tenanted.of[tenant], [task(task_id=f"of {tenant}")])
    for tenant in TENANTS:
        assert [found.task_id for _, found in read(tenanted.of[tenant], Task)] == [f"of {tenant}"]
    for who, whose in (("red", "blue"), ("blue", "red"), ("red", "operator"), ("green", "red")):
        of_another = tenanted.of[who].model_copy(update={"topics": tenanted.of[whose].topics})
        with pytest.raises(NotFoundError, match="does not exist"):
            read(of_another, Task)


@pytest.mark.parametrize("whose", PREFIXES)
@pytest.mark.parametrize("who", TENANTS)
def test_the_broker_lets_a_tenant_do_what_is_its_own_and_nothing_with_what_is_not(
    tenanted: Tenanted, who: str, whose: str
) -> None:
    found = {name: attempt(_config(tenanted.of[who]), PREFIXES[whose]) for name, attempt in ATTEMPTS.items()}
    expected = {name: who == whose and name in OWN_OPERATIONS for name in ATTEMPTS}
    assert {name: found[name] for name in ATTEMPTS if found[name] != expected[name]} == {}, "cells that are not so"


def _config(settings: Settings) -> dict[str, Any]:
    kafka = settings.kafka
    assert kafka.sasl_password is not None
    return {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": kafka.sasl_username,
        "sasl.password": kafka.sasl_password.get_secret_value(),
        "log_level": 0,  # that much is refused is meant
    }


def _allowed(error: BaseException | ck.KafkaError | None) -> bool:
    """Return whether the broker let somebody do something; an error about anything but rights fails the test."""
    if isinstance(error, ck.KafkaException):
        error = error.args[0]
    if error is None:
        return True
    if isinstance(error, ck.KafkaError) and error.code() == ck.KafkaError._NOENT:
        return False
    assert isinstance(error, ck.KafkaError) and error.code() in {*DENIED, *ABOUT_SOMETHING_ELSE}, error
    return error.code() not in DENIED


def _answers(config: dict[str, Any], ask: Callable[[admin.AdminClient], dict[Any, Future[Any]]]) -> bool:
    client = admin.AdminClient(config)  # kept until the answer is there: it takes what is under way with it
    [future] = ask(client).values()
    return _allowed(future.exception(TIMEOUT_S))


def _described(config: dict[str, Any], prefix: str) -> bool:
    wanted = ck.TopicCollection([f"{prefix}tasks"])
    return _answers(config, lambda client: client.describe_topics(wanted))


def _read(config: dict[str, Any], prefix: str) -> bool:
    """Read from the end on, of a topic that may be hidden: a group of the reader's own is no obstacle."""
    consumer = ck.Consumer({**config, "group.id": f"{prefix}reader", "enable.partition.eof": True})
    try:
        consumer.assign([ck.TopicPartition(f"{prefix}tasks", 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        return error is None or error.code() == ck.KafkaError._PARTITION_EOF or _allowed(error)
    finally:
        consumer.close()


def _written(config: dict[str, Any], prefix: str) -> bool:
    errors: list[ck.KafkaError | None] = []
    producer = ck.Producer(config)
    producer.produce(f"{prefix}tasks", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return _allowed(errors[0])


def _created(config: dict[str, Any], prefix: str, label: str = "tasks") -> bool:
    new = admin.NewTopic(f"{prefix}{label}", 1, 1)
    return _answers(config, lambda client: client.create_topics([new], validate_only=True))


def _configs(config: dict[str, Any], prefix: str) -> bool:
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, f"{prefix}tasks")
    return _answers(config, lambda client: client.describe_configs([resource]))


def _altered(config: dict[str, Any], prefix: str) -> bool:
    entry = admin.ConfigEntry("retention.ms", "1", incremental_operation=admin.AlterConfigOpType.SET)
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, f"{prefix}tasks", incremental_configs=[entry])
    return _answers(config, lambda client: client.incremental_alter_configs([resource], validate_only=True))


def _widened(config: dict[str, Any], prefix: str) -> bool:
    more = admin.NewPartitions(f"{prefix}tasks", 9)
    return _answers(config, lambda client: client.create_partitions([more], validate_only=True))


def _emptied(config: dict[str, Any], prefix: str) -> bool:
    """Delete no record. librdkafka first asks for the leader, and a topic that is hidden has none."""
    return _answers(config, lambda client: client.delete_records([ck.TopicPartition(f"{prefix}tasks", 0, 0)]))


def _deleted(config: dict[str, Any], prefix: str) -> bool:
    return _answers(config, lambda client: client.delete_topics([f"{prefix}tasks"]))


def _offsets(config: dict[str, Any], prefix: str) -> bool:
    group = ck.ConsumerGroupTopicPartitions(f"{prefix}streams")
    return _answers(config, lambda client: client.list_consumer_group_offsets([group]))


def _committed(config: dict[str, Any], prefix: str) -> bool:
    """Commit for a group; of a topic that whoever tries may read, so that the group alone decides."""
    own = PREFIXES[config["sasl.username"]]
    place = ck.ConsumerGroupTopicPartitions(f"{prefix}streams", [ck.TopicPartition(f"{own}tasks", 0, 1)])
    return _answers(config, lambda client: client.alter_consumer_group_offsets([place]))


def _group_deleted(config: dict[str, Any], prefix: str) -> bool:
    return _answers(config, lambda client: client.delete_consumer_groups([f"{prefix}streams"]))


def _transaction(config: dict[str, Any], prefix: str) -> bool:
    producer = ck.Producer({**config, "transactional.id": f"{prefix}writer"})
    try:
        producer.init_transactions(TIMEOUT_S)
    except ck.KafkaException as exc:
        return _allowed(exc)
    return True


def _granted(config: dict[str, Any], prefix: str) -> bool:
    more = admin.AclBinding(
        admin.ResourceType.TOPIC,
        prefix,
        admin.ResourcePatternType.PREFIXED,
        f"User:{config['sasl.username']}",
        "*",
        admin.AclOperation.ALL,
        admin.AclPermissionType.ALLOW,
    )
    return _answers(config, lambda client: client.create_acls([more]))


ATTEMPTS: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "describe": _described,
    "read": _read,
    "write": _written,
    "create": _created,
    "create another": lambda config, prefix: _created(config, prefix, "anything"),
    "configs": _configs,
    "alter": _altered,
    "more partitions": _widened,
    "delete records": _emptied,
    "delete": _deleted,
    "offsets": _offsets,
    "commit": _committed,
    "delete group": _group_deleted,
    "transaction": _transaction,
    "give a right": _granted,
}


# --- the commands -----------------------------------------------------------------------------------------------------


def test_a_plan_changes_nothing_and_the_same_again_changes_nothing_either(tenanted: Tenanted) -> None:
    planned = tenanted.rows("create", "green", "--principal", "User:green", "--dry-run")
    assert {(row["names"], row["result"]) for row in planned} == {(f"{BASE}green.*", "would be created")}
    assert [row["tenant"] for row in tenanted.rows("list")] == ["blue", "red"]
    assert {row["result"] for row in tenanted.rows("create", "red", "--principal", "User:red")} == {"unchanged"}
    assert {row["status"] for row in tenanted.rows("list")} == {"enforced"}
    assert tenanted.listed("red")["reached_by"] == ["User:operator"]


def test_what_differs_at_the_broker_is_listed_and_mended(tenanted: Tenanted) -> None:
    operator, own = tenanted.of["operator"], rights_of(PREFIXES["red"], ["User:red"])
    foreign = AclRight("User:blue", "topic", f"{PREFIXES['red']}tasks", False, "READ")
    acls.give(operator, [foreign])
    acls.take(operator, own[:1])
    found = tenanted.listed("red")
    assert found["status"] == "differs"
    assert found["differences"] == [
        f"CREATE on topic {PREFIXES['red']}* for User:red is missing",
        f"READ on topic {PREFIXES['red']}tasks for User:blue is not recorded",
    ]
    assert tenanted.listed("blue")["differences"] == [
        f"READ on topic {PREFIXES['red']}tasks for User:blue is more than a tenant gets"
    ]
    shown = {(row["principal"], row["operation"], row["result"]) for row in tenanted.rows("show", "red")}
    assert {("User:red", "CREATE", "missing"), ("User:blue", "READ", "not recorded")} < shown

    mended = tenanted.rows("create", "red", "--principal", "User:red")
    assert [row["operation"] for row in mended if row["result"] == "created"] == ["CREATE"]
    acls.take(operator, [foreign])
    assert {row["status"] for row in tenanted.rows("list")} == {"enforced"}


def test_a_tenant_loses_its_rights_and_nothing_else(tenanted: Tenanted) -> None:
    assert len(tenanted.rows("create", "green", "--principal", "User:green", "--principal", "User:green2")) == 12
    green = tenanted.of["green"].model_copy(update={"topics": Topics(prefix=f"{BASE}green.", partitions=2)})
    kafka_admin.create(green, [admin.NewTopic(f"{BASE}green.tasks", 2, 1)])
    submit(green, [task(task_id="kept")])
    asked = tenanted.run("operator", "admin", "access", "tenants", "remove", "green")
    assert asked.exit_code == 2 and "give --yes" in asked.output
    assert {row["result"] for row in tenanted.rows("remove", "green", "--dry-run")} == {"would be removed"}
    assert len(tenanted.rows("remove", "green", "--principal", "User:green2", "--yes")) == 6
    assert tenanted.listed("green")["principals"] == ["User:green"]
    assert len(tenanted.rows("remove", "green", "--yes")) == 6
    with pytest.raises(NotFoundError):
        read(green, Task)
    as_operator = green.model_copy(update={"kafka": tenanted.of["operator"].kafka})
    assert [found.task_id for _, found in read(as_operator, Task)] == ["kept"]
    again = tenanted.run("operator", "admin", "access", "tenants", "remove", "green", "--yes")
    assert again.exit_code == 3 and "has no principals" in again.output


def test_of_two_who_change_a_tenant_at_once_the_second_is_refused_and_gives_nothing(tenanted: Tenanted) -> None:
    operator = tenanted.of["operator"]
    with AccessLog(operator) as log:
        first, second = (
            tenant_grants.plan_to_create(log, operator, "grey", [name]) for name in ("User:grey", "User:other")
        )
        tenant_grants.carry_out(log, operator, first, actor="ann", reason="")
        with pytest.raises(RefusedError, match="changed by another writer"):
            tenant_grants.carry_out(log, operator, second, actor="bob", reason="")
        assert "User:other" not in {right.principal for right in acls.every_right(operator)}
        gone = tenant_grants.plan_to_remove(log, operator, "grey")
        tenant_grants.carry_out(log, operator, gone, actor="ann", reason="")
        assert not set(gone.takes) & acls.every_right(operator) and len(gone.takes) == 6


@pytest.mark.parametrize(
    ("who", "args", "code", "said"),
    [
        ("operator", ("create", "acme.west", "--principal", "User:a"), 2, "is no name of a tenant"),
        ("operator", ("create", "acme", "--principal", "acme"), 2, "expected User: and the name"),
        ("operator", ("create", "acme", "--principal", "User:red"), 4, "is a principal of tenant red"),
        ("operator", ("show", "acme"), 3, "has no log of its own"),
        ("red", ("list",), 4, "does not let User:red see or change rights"),
    ],
)
def test_what_cannot_be_is_said(tenanted: Tenanted, who: str, args: tuple[str, ...], code: int, said: str) -> None:
    found = tenanted.run(who, "admin", "access", "tenants", *args)
    assert (found.exit_code, said in found.output) == (code, True), found.output


def test_a_kafka_without_an_authorizer_says_so_and_what_to_do(made: Settings) -> None:
    found = invoke(made, "admin", "access", "tenants", "create", "red", "--principal", "User:red")
    assert found.exit_code == 2 and "has no authorizer" in found.output, found.output
    assert "authorizer.class.name" in found.output
    with AccessLog(made) as log:
        assert log.tenant_logs == {}
