"""Topics, partitions and offsets of the cluster; and creating the topics that are missing.

    settings ──► apply_topics ──► the topics, in the shape of streams/kafka/topics.py
             ──► describe, offsets, configs, check_topics ──► what exists now
             ──► read_topic ──► every record between a topic's offsets

Topics are created and checked before any process starts: a Faust worker without its output topic waits for ever.
An existing topic is never changed: added partitions would move keys, so a wrong count is refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin

from streams.errors import LogError, NotFoundError
from streams.kafka.client import forget_admins, kept_admin, unreachable
from streams.kafka.group_protocol import set_sessions
from streams.kafka.reader import no_answer, open_transaction, read
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import ANSWER_S, BrokerOutage, BrokerUnreachable
from streams.kafka.topics import LABELS, topics, wrong_partitions
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.kafka.transactions import OpenTransaction

log = logging.getLogger("streamward.kafka")

T = TypeVar("T")


def offsets(settings: Settings, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Return (first offset, end) of every partition of these topics. The end is the last stable offset.

    While a transaction is open, its first record ends the partition: our readers get nothing after it. Logs one
    warning. Raises NotFoundError for a topic that does not exist, LogError if the broker does not answer.
    """
    client, counts = _connect(settings, labels := [*labels], not_empty=True)
    partitions = _partitions(settings, labels, counts)
    low = _list_offsets(settings, client, partitions, admin.OffsetSpec.earliest())
    high, open_ends = _ends(settings, client, partitions)
    for tp, end in sorted(open_ends.items()):
        warn_of_unread(tp, end)
    return {tp: (low[tp], high[tp]) for tp in partitions}


@lru_cache(maxsize=1024)
def warn_of_unread(tp: TopicPartition, end: int) -> None:
    """Log that a partition is read only up to an open transaction, once for each transaction."""
    log.warning("%s", open_transaction(tp, end))


def open_transactions(settings: Settings, labels: Iterable[str]) -> list[OpenTransaction]:
    """Return the transactions that keep readers of these topics waiting, the first of each partition, in order.

    Raises as `offsets`.
    """
    client, counts = _connect(settings, labels := [*labels], not_empty=True)
    _, ends = _ends(settings, client, _partitions(settings, labels, counts))
    if not ends:
        return []
    from streams.kafka import transactions  # with aiokafka, which takes a tenth of a second to import

    transactions_or_none = (transactions.open_transaction(settings.kafka, tp, end) for tp, end in sorted(ends.items()))
    return [transaction for transaction in transactions_or_none if transaction is not None]


def _ends(
    settings: Settings, client: admin.AdminClient, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the last stable offset of each partition, and the same for only the partitions with an open
    transaction."""
    latest, uncommitted = admin.OffsetSpec.latest(), ck.IsolationLevel.READ_UNCOMMITTED
    high_watermarks = _list_offsets(settings, client, partitions, latest, uncommitted)
    ends = _list_offsets(settings, client, partitions, latest)  # later: a transaction that ended meanwhile is not open
    return ends, {tp: end for tp, end in ends.items() if end < high_watermarks[tp]}


def offsets_at(settings: Settings, labels: Iterable[str], timestamp_ms: int) -> dict[TopicPartition, int]:
    """Return per partition the first offset whose record has this timestamp or a later one, or -1 if none has.

    Raises as `offsets`.
    """
    client, counts = _connect(settings, labels := [*labels], not_empty=True)
    partitions = _partitions(settings, labels, counts)
    return _list_offsets(settings, client, partitions, admin.OffsetSpec.for_timestamp(timestamp_ms))


def _partitions(settings: Settings, labels: Iterable[str], counts: Mapping[str, int]) -> list[TopicPartition]:
    partitions: list[TopicPartition] = []
    for label in labels:
        topic = topics(settings.topics)[label]
        if topic.name not in counts:
            raise NotFoundError(f"topic {topic.name} does not exist; create it with `streamward admin topics apply`")
        partitions += [(topic.name, partition) for partition in range(counts[topic.name])]
    return partitions


def _list_offsets(
    settings: Settings,
    client: admin.AdminClient,
    partitions: list[TopicPartition],
    spec: admin.OffsetSpec,
    isolation: ck.IsolationLevel = ck.IsolationLevel.READ_COMMITTED,
    *,
    leaders_s: float = 0.0,
) -> dict[TopicPartition, int]:
    """`leaders_s`: for how long leaders may be missing, if longer than kafka.request_timeout_s."""
    deadline = time.monotonic() + max(settings.kafka.request_timeout_s, leaders_s)
    while True:
        futures = client.list_offsets(
            {ck.TopicPartition(*tp): spec for tp in partitions},
            isolation_level=isolation,
            request_timeout=settings.kafka.request_timeout_s,
        )
        try:
            found = {(tp.topic, tp.partition): future.result().offset for tp, future in futures.items()}
            if ck.OFFSET_INVALID in found.values():
                raise no_answer()
            return found
        except ck.KafkaException as exc:
            error = exc.args[0]
            if error.code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise unreachable(settings.kafka, error.str()) from exc
            time.sleep(0.1)
            client = _look_again(settings, client)


def _look_again(settings: Settings, client: admin.AdminClient) -> admin.AdminClient:
    """Return a client that has asked for the leaders: otherwise it would ask with the old epoch again.

    It is another one if no node is known: a lone node that is fenced is in no metadata, and librdkafka (2.10 to 2.16)
    then leaves it and has no other node to ask.
    """
    with contextlib.suppress(ck.KafkaException):
        if client.list_topics(timeout=ANSWER_S).brokers:
            return client
    forget_admins()
    return _connect(settings)[0]


_NO_LEADER_YET = {
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.OFFSET_NOT_AVAILABLE,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._NOENT,  # librdkafka's error for metadata without a single leader
}
"""Brief errors about a topic that was just created, or from a broker that has just started or been fenced."""


def topic_ids(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Return the id of each of these topics: a recreated one has another.

    Raises LogError if a topic does not exist, or the broker does not answer.
    """
    if not (names := [*names]):
        return {}
    client = connected(settings)  # futures end only while it lives
    futures = client.describe_topics(ck.TopicCollection(names), request_timeout=settings.kafka.request_timeout_s)
    try:
        return {name: str(future.result().topic_id) for name, future in futures.items()}
    except ck.KafkaException as exc:
        raise unreachable(settings.kafka, exc.args[0].str()) from exc


def configs(settings: Settings, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return, per topic, the settings that were set on it. Raises LogError if the broker does not answer."""
    resources = [admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name) for name in names]
    if not resources:
        return {}
    client = connected(settings)  # futures end only while it lives
    futures = client.describe_configs(resources, request_timeout=settings.kafka.request_timeout_s)
    topic_source = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value  # the entries carry the bare number
    try:
        return {
            resource.name: {key: entry.value for key, entry in future.result().items() if entry.source == topic_source}
            for resource, future in futures.items()
        }
    except ck.KafkaException as exc:
        raise unreachable(settings.kafka, exc.args[0].str()) from exc


def read_topic(
    settings: Settings, label: str, *, partition: int | None = None, outage: BrokerOutage | None = None
) -> Iterator[Record]:
    """Yield every record of a topic, or of one of its partitions, up to its present end. Raises as `read`."""
    bounds = offsets(settings, [label])
    if partition is not None:
        bounds = {tp: bound for tp, bound in bounds.items() if tp[1] == partition}
    starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
    yield from read(settings, starts, ends, outage=outage)


def describe(settings: Settings) -> dict[str, int]:
    """Return the partition count of every topic on the cluster. Raises LogError if it does not answer."""
    return _connect(settings)[1]


REFUSED_S = 1.0
"""How long a command tries a broker whose port refuses connections: nothing listens there."""
CREATED_S = 60.0
"""How long new topics may take to be listed and to have leaders; a busy node takes longer than for an answer."""
EMPTY_S = 2.0
"""How long to doubt a cluster that reports no topic at all: a broker that has just started does too."""


def connected(settings: Settings) -> admin.AdminClient:
    """Return a client that the cluster has answered. Raises LogError if it does not."""
    return _connect(settings, LABELS[:1])[0]


def outlast(settings: Settings, outage: BrokerOutage, step: Callable[[], T]) -> T:
    """Return what `step` returns. If the broker does not answer it, wait until it answers again, and repeat the step.

    For steps that may be repeated: the ids of what they write follow from what they read. Raises as
    `BrokerOutage.silent`, and any other error of `step`.
    """
    while True:
        try:
            return step()
        except BrokerUnreachable as exc:
            log.debug("tried again once the broker answers: %s", exc)
            outage.ask(lambda: connected(settings), "to a request")


def _connect(
    settings: Settings, labels: Iterable[str] = (), *, not_empty: bool = False, patient: bool = False
) -> tuple[admin.AdminClient, dict[str, int]]:
    """Return a client, and the partition count of every topic, or only of these; with `not_empty` an empty answer is
    retried.

    A refused connection is retried for REFUSED_S, or with `patient` for as long as an unanswered one. A client that had
    answered before, and does not within REFUSED_S, is replaced.

    A new one asks for all topics first, which saves seconds: librdkafka 2.16 drops requests while it replaces the
    connection to the bootstrap address by one to the broker, and resends them one to three seconds later.
    """
    kept = kept_admin(settings.kafka)
    if kept.has_answered:
        with contextlib.suppress(ck.KafkaException):
            counts = _counts_of(kept.client, [topics(settings.topics)[label].name for label in labels], REFUSED_S)
            if counts or not not_empty:
                return kept.client, counts
        forget_admins()
        kept = kept_admin(settings.kafka)
    client, errors = kept.client, kept.errors
    deadline = time.monotonic() + EMPTY_S
    whole_s = settings.kafka.request_timeout_s
    waited_s = whole_s if patient else min(REFUSED_S, whole_s)
    try:
        try:
            counts = _counts_of(client, (), waited_s)
        except ck.KafkaException:
            client.poll(0)  # calls error_cb
            if waited_s == whole_s or _is_refused(errors):
                raise
            waited_s = whole_s
            counts = _counts_of(client, (), whole_s - REFUSED_S)
        while not_empty and not counts and time.monotonic() < deadline:
            time.sleep(0.1)
            counts = _counts_of(client, (), whole_s)
    except ck.KafkaException as exc:
        client.poll(0)  # calls error_cb with the reason: refused, no such host, wrong password
        forget_admins()
        cause = next((error for error in errors if error.code() != ck.KafkaError._ALL_BROKERS_DOWN), exc.args[0])
        raise unreachable(settings.kafka, cause.str(), within_s=waited_s) from exc
    kept.has_answered = True
    return client, counts


def _counts_of(client: admin.AdminClient, names: Collection[str], timeout_s: float) -> dict[str, int]:
    """Return the partition count of the existing ones of these topics, or of all topics. Raises KafkaException."""
    if not names:
        listed = client.list_topics(timeout=timeout_s).topics
        return {name: len(metadata.partitions) for name, metadata in listed.items()}
    counts = {}
    for name, future in client.describe_topics(ck.TopicCollection([*names]), request_timeout=timeout_s).items():
        try:
            counts[name] = len(future.result().partitions)
        except ck.KafkaException as exc:
            if exc.args[0].code() not in _NOT_SHOWN:
                raise
    return counts


_NOT_SHOWN = {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED}


def _is_refused(errors: Collection[ck.KafkaError]) -> bool:
    """Return whether every broker is down, all of them because they refused the connection."""
    down = ck.KafkaError._ALL_BROKERS_DOWN
    reasons = [error.str() for error in errors if error.code() != down]
    return len(reasons) < len(errors) and all("Connection refused" in reason for reason in reasons)


def apply_topics(settings: Settings) -> dict[str, str]:
    """Create the missing topics, and return for each whether it was created or unchanged.

    Raises LogError if the broker refuses, SettingsError if one exists with another partition count.
    """
    client, existing = _connect(settings, LABELS)
    missing = [topic for topic in topics(settings.topics).values() if topic.name not in existing]
    new = [
        admin.NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=settings.topics.replication,
            config=topic.config,
        )
        for topic in missing
    ]
    if new:
        existing |= _create(settings, client, new)
    _check(settings, LABELS, existing)
    if settings.kafka.group_protocol == "consumer" and (refusal := set_sessions(settings, client)):
        log.warning("kafka.session_timeout_s was not written into the groups, which keep the broker's: %s", refusal)
    return {topic.name: "created" if topic in missing else "unchanged" for topic in topics(settings.topics).values()}


def create(settings: Settings, new: list[admin.NewTopic]) -> None:
    """Create topics, and return once each can be written and read; a topic created meanwhile is left as it is.

    Raises LogError if the broker refuses.
    """
    if new:
        _create(settings, connected(settings), new)


def _create(settings: Settings, client: admin.AdminClient, new: list[admin.NewTopic]) -> dict[str, int]:
    """Create topics, and return their partition counts once they have their leaders."""
    for name, future in client.create_topics(new, request_timeout=settings.kafka.request_timeout_s).items():
        try:
            future.result()
        except ck.KafkaException as exc:
            if exc.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                raise LogError(f"topic {name} was not created: {exc.args[0].str()}") from exc
    names = {topic.topic for topic in new}
    counts = _once_listed(settings, client, names, CREATED_S)
    if unlisted := sorted(names - counts.keys()):
        raise LogError(f"topics {', '.join(unlisted)} were created, but the broker does not list them yet; try again")
    # until each leader answers: one that refuses a producer's first batch and takes its second says of the first,
    # sent again, that it is a duplicate; the client reports it as written, and it is lost
    partitions = [(topic.topic, partition) for topic in new for partition in range(counts[topic.topic])]
    _list_offsets(settings, client, partitions, admin.OffsetSpec.latest(), leaders_s=CREATED_S)
    return counts


def _once_listed(settings: Settings, client: admin.AdminClient, names: set[str], most_s: float = 0.0) -> dict[str, int]:
    """Return the partition counts of topics once all are listed, or `most_s` or kafka.request_timeout_s have passed.

    Raises LogError if the broker does not answer.
    """
    timeout_s = settings.kafka.request_timeout_s
    deadline = time.monotonic() + max(timeout_s, most_s)
    while True:
        try:
            counts = _counts_of(client, names, timeout_s)
        except ck.KafkaException as exc:
            raise unreachable(settings.kafka, exc.args[0].str()) from exc
        if names <= counts.keys() or time.monotonic() > deadline:
            return counts
        time.sleep(0.05)


def check_topics(settings: Settings, labels: Iterable[str] = LABELS, *, patient: bool = False) -> None:
    """Return if each of these topics exists with the partitions it should have.

    A process is `patient`: it may start before its broker, and before a topic that was just created is in the metadata
    of the node that answers. Raises NotFoundError for a missing topic, SettingsError for a wrong partition count,
    LogError without an answer.
    """
    client, existing = _connect(settings, labels := [*labels], patient=patient)
    names = {topics(settings.topics)[label].name for label in labels}
    if patient and (unlisted := sorted(names - existing.keys())):
        timeout_s = settings.kafka.request_timeout_s
        log.info("the broker does not list %s: waiting, %g s at most", ", ".join(unlisted), timeout_s)
        existing = _once_listed(settings, client, names)
    _check(settings, labels, existing)


def _check(settings: Settings, labels: Iterable[str], existing: Mapping[str, int]) -> None:
    for topic in (topics(settings.topics)[label] for label in labels):
        if topic.name not in existing:
            raise NotFoundError(f"topic {topic.name} does not exist; create it with `streamward admin topics apply`")
        if existing[topic.name] != topic.partitions:
            raise wrong_partitions(topic, f"{existing[topic.name]} partitions")
