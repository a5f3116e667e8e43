"""The position of each consumer group of this deployment, and how to accept a loss.

    groups, their commits, the topics' offsets ──► positions ──► ok, cut by retention, or beyond the end
                                                       └──► skip: commit the first offset, where records were cut

A reader never jumps over what retention has cut (streams/kafka/consumer.py): it stops, and a person decides. `skip` is
that decision, for one group whose members have all stopped. A commit's metadata is kept.

Not covered: commits beyond the end of a recreated log; and the trainer, which reads from the offsets in its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import confluent_kafka as ck
from confluent_kafka import admin

from streams.errors import LogError, NotFoundError, RefusedError
from streams.kafka import admin as kafka_admin
from streams.kafka.client import admin_client, consumer, unreachable
from streams.kafka.group_names import COMMITTING
from streams.kafka.record import TopicPartition
from streams.kafka.retry import TICK_S, TRANSIENT
from streams.kafka.topic_ids import noted_id
from streams.kafka.topics import topics
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Position:
    """The commit of a group in one partition, and the offsets of the partition."""

    group: str
    """Without topics.prefix."""
    topic: str
    partition: int
    committed: int
    first: int
    next: int
    metadata: str | None = None
    """Of the commit; kept by `skip`."""
    recreated: bool = False
    """Whether it was committed in a topic of this name that was deleted: it counts for nothing."""

    @property
    def lag(self) -> int:
        """Records that the group has not committed."""
        return max(0, self.next - (self.first if self.recreated else max(self.committed, self.first)))

    @property
    def gone(self) -> int:
        """Records that retention has cut before the group committed them."""
        return 0 if self.recreated else max(0, self.first - self.committed)

    @property
    def state(self) -> str:
        """`ok`, `cut` with the number, `recreated`, or `beyond the end`."""
        if self.recreated:
            return "recreated"
        if self.gone:
            return f"cut: {self.gone} records gone"
        return "beyond the end" if self.committed > self.next else "ok"


def positions(settings: Settings) -> list[Position]:
    """Return the position of every group of this deployment in every partition that it has committed, in order.

    Raises NotFoundError if the topics do not exist, LogError if the broker does not answer.
    """
    bounds = kafka_admin.offsets(settings, topics(settings.topics))
    ids = kafka_admin.topic_ids(settings, {topic for topic, _ in bounds})
    prefix = settings.topics.prefix
    result = [
        _position(name.removeprefix(prefix), commit, bounds, ids)
        for name in _groups(settings, admin_client(settings.kafka))
        for commit in commits(settings, name, bounds)
    ]
    return sorted(result, key=lambda position: (position.group, position.topic, position.partition))


def commits(settings: Settings, group: str, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
    """Return the commits that a group, with its full name, has in these partitions.

    A consumer asks that never joins. An AdminClient must not: librdkafka (2.16) ends its process, by a null pointer
    (librdkafka's rd_kafka_handle_OffsetFetch), when the broker is not the group's coordinator yet, or any more.
    Raises LogError if the broker does not answer.
    """
    timeout_s = settings.kafka.request_timeout_s
    deadline = time.monotonic() + timeout_s
    tps = [ck.TopicPartition(*tp) for tp in partitions]
    asking = consumer(settings.kafka, {"group.id": group, "enable.auto.commit": False})
    try:
        while True:
            try:
                return [commit for commit in asking.committed(tps, timeout=timeout_s) if commit.offset >= 0]
            except ck.KafkaException as exc:
                if exc.args[0].code() not in TRANSIENT or time.monotonic() > deadline:
                    raise unreachable(settings.kafka, exc.args[0].str()) from exc
                time.sleep(TICK_S)
            except UnicodeDecodeError as exc:  # librdkafka reads metadata that ends without NUL beyond its end
                raise LogError(f"group {group}: the metadata of a commit could not be read ({exc}); try again") from exc
    finally:
        asking.close()


def skip(settings: Settings, group: str, *, dry_run: bool = False) -> list[Position]:
    """Commit the first offset in each partition of `group` that was cut; return the positions before that.

    `group` may carry topics.prefix or not. Raises NotFoundError for an unknown group, RefusedError while it has members
    or if it is a trainer's, LogError if the broker does not answer or refuses.
    """
    group = group.removeprefix(settings.topics.prefix)
    if group.startswith("trainer-"):
        raise RefusedError(
            f"group {group}: the trainer reads from where its checkpoint says, and a step without its batch or groups "
            "would be a different one. Restore them or the checkpoints, or continue training under another policy.name"
        )
    all_positions = positions(settings)
    if group not in {position.group for position in all_positions}:
        names = ", ".join(sorted({position.group for position in all_positions})) or "there are none"
        raise NotFoundError(f"no group {group!r} has commits here; groups: {names}")
    _refuse_members(settings, group)
    cut = [position for position in all_positions if position.group == group and position.gone]
    if cut and not dry_run:
        _commit(settings, group, cut)
    return cut


def _is_ours(name: str, prefix: str) -> bool:
    bare_name = name.removeprefix(prefix)
    return name.startswith(prefix) and any(
        bare_name == g or (g.endswith("-") and bare_name.startswith(g)) for g in COMMITTING
    )


def _position(
    group: str, tp: ck.TopicPartition, bounds: Mapping[TopicPartition, tuple[int, int]], ids: Mapping[str, str]
) -> Position:
    first, end = bounds[tp.topic, tp.partition]
    recreated = noted_id(tp.metadata or "") not in ("", ids[tp.topic])
    return Position(group, tp.topic, tp.partition, tp.offset, first, end, tp.metadata or None, recreated)


def members(settings: Settings) -> dict[str, list[str]]:
    """Return the members of every group of this deployment, each as "client id at host".

    Groups are named without topics.prefix. A killed process still counts for kafka.session_timeout_s. Raises
    LogError if the broker does not answer.
    """
    client, timeout_s = admin_client(settings.kafka), settings.kafka.request_timeout_s
    names = _groups(settings, client)
    if not names:
        return {}
    futures = client.describe_consumer_groups(names, request_timeout=timeout_s)
    try:
        described = {name.removeprefix(settings.topics.prefix): futures[name].result().members for name in names}
    except ck.KafkaException as exc:
        raise unreachable(settings.kafka, exc.args[0].str()) from exc
    return {
        name: sorted(f"{member.client_id} at {member.host}" for member in group_members)
        for name, group_members in described.items()
    }


def _groups(settings: Settings, client: admin.AdminClient) -> list[str]:
    """Return the full names of this deployment's groups. Raises LogError if the broker does not answer."""
    try:
        listed = client.list_consumer_groups(request_timeout=settings.kafka.request_timeout_s).result().valid
    except ck.KafkaException as exc:
        raise unreachable(settings.kafka, exc.args[0].str()) from exc
    return sorted(group.group_id for group in listed if _is_ours(group.group_id, settings.topics.prefix))


def _refuse_members(settings: Settings, group: str) -> None:
    present, name = members(settings).get(group), settings.topics.prefix + group
    if present:
        hosts = ", ".join(dict.fromkeys(present))
        raise RefusedError(
            f"group {name} has {len(present)} members ({hosts}), which would continue from their own positions. Stop "
            f"them first; one that was killed counts for {settings.kafka.session_timeout_s:g} s more"
        )


def _commit(settings: Settings, group: str, cut: list[Position]) -> None:
    client = admin_client(settings.kafka)
    name = settings.topics.prefix + group
    offsets = [
        ck.TopicPartition(position.topic, position.partition, position.first, metadata=position.metadata or "")
        for position in cut
    ]
    futures = client.alter_consumer_group_offsets(
        [ck.ConsumerGroupTopicPartitions(name, offsets)], request_timeout=settings.kafka.request_timeout_s
    )
    try:
        errors = [tp.error for tp in futures[name].result().topic_partitions if tp.error is not None]
    except ck.KafkaException as exc:
        errors = [exc.args[0]]
    if errors:
        raise LogError(f"group {name}: the skip was not committed: {errors[0].str()}. Try again")
