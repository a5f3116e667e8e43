"""How members of a consumer group agree on their partitions: among themselves, or by the broker (KIP-848).

    kafka.group_protocol=classic  ──► each member's session, assignor range; a change takes all partitions from all
    kafka.group_protocol=consumer ──► the broker's assignor; members keep what stays; the group's session

A group of one topic uses the broker's `uniform`, which moves few partitions. With several topics the same numbers must
go to one member: only `range` does that, and on Kafka 4.3.1 it moves as many as the classic one
(`python -m tests.benchmarks group_changes`).

With `consumer` the broker decides when a silent member is replaced: `streamward admin topics apply` writes
kafka.session_timeout_s into the groups, within the bounds that the broker sets.

Not covered: groups of one place (streams/kafka/idle_member.py) and workers of driver faust, which stay classic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import confluent_kafka as ck
from confluent_kafka import admin

from streams.errors import LogError
from streams.kafka.client import kept_admin
from streams.kafka.group_names import SCORING, STREAMS, GroupScope
from streams.kafka.retry import ANSWER_S
from streams.settings.model import Kafka, Settings

log = logging.getLogger("streamward.kafka")

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
PROTOCOLS = "group.coordinator.rebalance.protocols"
"""Setting of a broker that says which protocols it speaks; those before 3.7 do not have it."""
TOO_OLD = "the broker does not speak the group protocol `consumer`, which Kafka has from 4.0 on"
HEARTBEATS = 8
"""Per session: a planned change waits for one of the old owner and one of the new."""


def is_by_broker(kafka: Kafka) -> bool:
    """Return whether the broker assigns the partitions; with a warning, not if it is too old for that."""
    if kafka.group_protocol == "classic":
        return False
    try:
        is_too_old = "consumer" not in protocols_of(kept_admin(kafka).client, ANSWER_S)
    except LogError:  # it does not answer, or does not tell: the client finds out
        return True
    if is_too_old:
        log.warning("kafka.group_protocol: %s; the members assign the partitions themselves", TOO_OLD)
    return not is_too_old


def member_config(kafka: Kafka, topics: int, *, by_broker: bool) -> dict[str, object]:
    """Return the settings of a member's client, which reads so many topics."""
    if by_broker:
        return {"group.protocol": "consumer", "group.remote.assignor": "range" if topics > 1 else "uniform"}
    return {
        "session.timeout.ms": int(kafka.session_timeout_s * 1000),
        "heartbeat.interval.ms": int(kafka.session_timeout_s * 250),
        "partition.assignment.strategy": "range",
    }


def group_config(kafka: Kafka) -> dict[str, str]:
    """Return what kafka.session_timeout_s comes to in the settings of a group."""
    session_ms = int(kafka.session_timeout_s * 1000)
    return {SESSION: str(session_ms), HEARTBEAT: str(session_ms // HEARTBEATS)}


def own_groups(settings: Settings) -> list[str]:
    """Return the groups that the settings name: of streams, scoring, the policy and its trainer."""
    scopes = [
        GroupScope(stage=stage, fleet=settings.fleet, policy=settings.policy.name) for stage in ("policy", "trainer")
    ]
    return [settings.topics.prefix + name for name in (STREAMS, SCORING, *(scope.group for scope in scopes))]


def set_sessions(settings: Settings, client: admin.AdminClient) -> str:
    """Write the session into the settings of our groups; return why the broker refused, or an empty text."""
    wanted = group_config(settings.kafka).items()
    for group in own_groups(settings):
        entries = [admin.ConfigEntry(*entry, incremental_operation=admin.AlterConfigOpType.SET) for entry in wanted]
        resource = admin.ConfigResource(admin.ResourceType.GROUP, group, incremental_configs=entries)
        try:
            for future in client.incremental_alter_configs([resource]).values():
                future.result(settings.kafka.request_timeout_s)
        except ck.KafkaException as exc:
            return str(exc.args[0].str())
    return ""


def problems(settings: Settings, client: admin.AdminClient) -> Iterable[str]:
    """Yield what keeps the broker from kafka.group_protocol=consumer as the settings have it. Raises LogError."""
    limit_s = settings.kafka.request_timeout_s
    if "consumer" not in protocols_of(client, limit_s):
        yield TOO_OLD
        return
    wanted = group_config(settings.kafka)[SESSION]
    groups = own_groups(settings)
    for group, config in zip(groups, _configs(client, admin.ResourceType.GROUP, groups, limit_s), strict=True):
        if config.get(SESSION) != wanted:
            yield f"group {group}: a member that was killed is replaced after {config.get(SESSION)} ms, not {wanted} ms"


def protocols_of(client: admin.AdminClient, limit_s: float) -> list[str]:
    """Return the protocols of groups that a broker speaks. Raises LogError."""
    try:
        node = client.describe_cluster(request_timeout=limit_s).result(limit_s).nodes[0].id
    except ck.KafkaException as exc:
        raise LogError(f"the nodes of the cluster cannot be listed: {exc.args[0].str()}") from exc
    (broker,) = _configs(client, admin.ResourceType.BROKER, [str(node)], limit_s)
    return broker.get(PROTOCOLS, "").split(",")


def _configs(
    client: admin.AdminClient, kind: admin.ResourceType, names: list[str], limit_s: float
) -> list[Mapping[str, str]]:
    resources = [admin.ConfigResource(kind, name) for name in names]
    answers = client.describe_configs(resources, request_timeout=limit_s)
    try:
        return [{name: entry.value for name, entry in answers[each].result(limit_s).items()} for each in resources]
    except ck.KafkaException as exc:
        raise LogError(f"the settings of {', '.join(names)} cannot be read: {exc.args[0].str()}") from exc
