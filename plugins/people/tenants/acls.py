"""Read, add to and remove from the broker's access control lists.

    Kafka ──► every_right ──► AclRight of each        rights ──► give, take ──► Kafka

A broker without an authorizer has no lists, allows everything, and says so when queried.

Not covered: rights on delegation tokens and users, which no principal of this program has or needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import confluent_kafka as ck
from confluent_kafka import admin

from streams.errors import LogError, RefusedError, SettingsError
from streams.kafka.admin import connected
from streams.kafka.client import unreachable
from streams.settings.model import Kafka, Settings

KINDS: Mapping[str, admin.ResourceType] = {
    "topic": admin.ResourceType.TOPIC,
    "group": admin.ResourceType.GROUP,
    "transactional-id": admin.ResourceType.TRANSACTIONAL_ID,
    "cluster": admin.ResourceType.BROKER,
}
"""Resource types, as kafka-acls names them."""
PAUSE_S = 0.05
_KIND_OF = {kind: name for name, kind in KINDS.items()}


class AclRight(NamedTuple):
    """One entry of the lists."""

    principal: str
    """Principal, as the broker names it: User:NAME."""
    kind: str
    """One of KINDS."""
    name: str
    is_prefix: bool
    """Whether it covers all names with this prefix; otherwise it covers this name, or all names if it is *."""
    operation: str
    """As Kafka spells it: READ, WRITE, CREATE, …, ALL."""
    host: str = "*"
    denies: bool = False


NO_RIGHT = AclRight("User:nobody", "topic", "streamward-has-no-such-topic", False, "READ")
"""A principal that was never granted anything."""


def every_right(settings: Settings) -> set[AclRight]:
    """Return all entries of the broker's lists.

    Raises SettingsError if it has no authorizer, RefusedError if it denies access, LogError if it does not answer.
    """
    client = connected(settings)
    rights: set[AclRight] = set()
    for kind in KINDS.values():
        any_binding = admin.AclBindingFilter(
            kind,
            None,
            admin.ResourcePatternType.ANY,
            None,
            None,
            admin.AclOperation.ANY,
            admin.AclPermissionType.ANY,
        )
        future = client.describe_acls(any_binding, request_timeout=settings.kafka.request_timeout_s)
        rights.update(_right(entry) for entry in _answer(settings.kafka, future))
    if not rights:  # librdkafka 2.16 answers a refusal in the same way; deleting nothing tells them apart
        futures = client.delete_acls([_entry(admin.AclBindingFilter, NO_RIGHT)])
        for answer in futures.values():
            _answer(settings.kafka, answer)
    return rights


def give(settings: Settings, rights: Iterable[AclRight]) -> None:
    """Add entries, and return once the broker has them; existing ones stay. Raises as `every_right`."""
    new = set(rights)
    if new:
        entries = [_entry(admin.AclBinding, right) for right in new]
        client = connected(settings)
        futures = client.create_acls(entries, request_timeout=settings.kafka.request_timeout_s)
        for answer in futures.values():
            _answer(settings.kafka, answer)
        _once(settings, lambda rights: new <= rights)


def take(settings: Settings, rights: Iterable[AclRight]) -> None:
    """Remove these entries, and return once they are gone; a missing one is no error. Raises as `every_right`."""
    old = set(rights)
    if old:
        entries = [_entry(admin.AclBindingFilter, right) for right in old]
        client = connected(settings)
        futures = client.delete_acls(entries, request_timeout=settings.kafka.request_timeout_s)
        for answer in futures.values():
            _answer(settings.kafka, answer)
        _once(settings, old.isdisjoint)


def _once(settings: Settings, holds: Callable[[set[AclRight]], bool]) -> None:
    """Return once the broker has the change: the controller answers before the broker has read it."""
    deadline = time.monotonic() + settings.kafka.request_timeout_s
    while not holds(every_right(settings)):
        if time.monotonic() > deadline:
            raise LogError("the rights were changed, but the broker does not list them so yet; run the same again")
        time.sleep(PAUSE_S)


def _entry(form: Any, right: AclRight) -> Any:
    """Return a right as a binding, or as a filter that matches nothing else."""
    return form(
        KINDS[right.kind],
        right.name,
        admin.ResourcePatternType.PREFIXED if right.is_prefix else admin.ResourcePatternType.LITERAL,
        right.principal,
        right.host,
        admin.AclOperation[right.operation],
        admin.AclPermissionType.DENY if right.denies else admin.AclPermissionType.ALLOW,
    )


def _right(entry: admin.AclBinding) -> AclRight:
    return AclRight(
        principal=entry.principal,
        kind=_KIND_OF[entry.restype],
        name=entry.name,
        is_prefix=entry.resource_pattern_type is admin.ResourcePatternType.PREFIXED,
        operation=entry.operation.name,
        host=entry.host,
        denies=entry.permission_type is admin.AclPermissionType.DENY,
    )


def _answer(kafka: Kafka, future: Future[Any]) -> Any:
    """Return what the broker answers. Raises SettingsError, RefusedError, LogError."""
    try:
        return future.result()
    except ck.KafkaException as exc:
        error = exc.args[0]
        if error.code() == ck.KafkaError.SECURITY_DISABLED:
            raise SettingsError(
                f"Kafka at {kafka.bootstrap} has no authorizer, so it divides nobody's topics: whoever reaches it may "
                "do everything. Set authorizer.class.name in the properties of its brokers and controllers "
                "(org.apache.kafka.metadata.authorizer.StandardAuthorizer), with super.users for the operator, and "
                "start them again; without it, tenants can only be divided at the door "
                "(`streamward admin access keys create --tenant`)"
            ) from exc
        if error.code() == ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            principal = "who is not logged in" if kafka.sasl_username is None else f"User:{kafka.sasl_username}"
            raise RefusedError(
                f"Kafka at {kafka.bootstrap} does not let {principal} see or change rights. Use a principal of the "
                "operator, which has Describe and Alter on the cluster (kafka.sasl_username)"
            ) from exc
        if error.retriable() or error.code() < 0:
            raise unreachable(kafka, error.str()) from exc
        raise LogError(f"Kafka at {kafka.bootstrap} refused a change of rights: {error.str()}") from exc
