"""Detect that a topic was deleted and recreated under its name: the same offsets then hold other records.

    TopicIds ──► ids of the topics, once and then every LOOK_S ──► another one: LogError, which names the topic
        └──► the metadata of each commit ──► at the next start: of another topic, so the commit counts for nothing

Kafka deletes the commits of a topic with it, so a group that was stopped begins at the first record of the new one. But
running clients (librdkafka, aiokafka) continue in the new topic from the offset that they had reached in the old one,
without an error once the new one has as many, and commit what they skipped.

Not covered: a broker without ids of topics (before Kafka 2.8), and a topic that is recreated before the first answer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck

from schemas import json_text
from streams.errors import LogError
from streams.kafka.client import kept_admin
from streams.kafka.record import TopicPartition
from streams.kafka.retry import ANSWER_S
from streams.settings.model import Kafka

KEY = "topic"
"""Key of the topic's id in the JSON metadata of a commit."""
LOOK_S = 10.0
"""How often a reader asks."""
log = logging.getLogger("streamward.kafka")

NO_ID = str(ck.Uuid(0, 0))


class TopicIds:
    """The ids that the topics with these names had when they were asked for first."""

    def __init__(self, kafka: Kafka, names: Iterable[str]) -> None:
        self.names = sorted(names)
        self._admin = kept_admin(kafka)
        self._ids: dict[str, str] = {}
        self._answers: Mapping[str, Future[Any]] = {}
        self._next_look = 0.0

    def ask(self, timeout_s: float = ANSWER_S) -> None:
        """Take the ids that the topics have now. Raises KafkaException, a transient one in an outage."""
        if not self._admin.has_answered:
            self._admin.client.list_topics(timeout=timeout_s)  # first: see streams/kafka/admin.py
            self._admin.has_answered = True
        ids = {}
        for name, future in self._describe().items():
            try:
                ids[name] = _id_in(future)
            except ck.KafkaException as exc:
                if exc.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        self._ids, self._answers = ids, {}

    def of(self, topic: str) -> str:
        """Return the id of a topic, `` if it has none or none is known."""
        topic_id = self._ids.get(topic, NO_ID)
        return "" if topic_id == NO_ID else topic_id

    def is_of_another(self, tp: TopicPartition, offset: int, metadata: str | None) -> bool:
        """Return whether a commit was made in a deleted topic of the same name, and log it."""
        committed_id = noted_id(metadata or "")
        if offset <= 0 or "" in (committed_id, self.of(tp[0])) or committed_id == self.of(tp[0]):
            return False
        log.warning(
            "%s[%d]: the commit of %d is of a topic of this name that was deleted. This one is read from its first "
            "record",
            *(*tp, offset),
        )
        return True

    def look(self) -> None:
        """Raise LogError if a topic was recreated; asks once in LOOK_S, and does not wait for the answer."""
        if self._answers and all(future.done() for future in self._answers.values()):
            answers, self._answers = self._answers, {}
            for name, future in answers.items():
                if (recreated := self._compare(name, future)) is not None:
                    raise recreated
        if self.names and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            self._answers = self._describe()

    def recreation(self, name: str) -> LogError | None:
        """Return the error if this topic was recreated. Waits for the answer."""
        return self._compare(name, self._describe()[name])

    def _compare(self, name: str, answer: Future[Any]) -> LogError | None:
        if answer.exception() is not None:  # an outage or a missing topic, which is reported elsewhere
            return None
        topic_id = _id_in(answer)
        if self._ids.setdefault(name, topic_id) == topic_id:
            return None
        return LogError(
            f"topic {name} was deleted and recreated while it was read. Start again: it is then read from its first "
            "record"
        )

    def _describe(self) -> Mapping[str, Future[Any]]:
        names = ck.TopicCollection(self.names)
        futures: Mapping[str, Future[Any]] = self._admin.client.describe_topics(names, request_timeout=ANSWER_S)
        return futures


def note(topic_id: str) -> str:
    """Return the metadata of a commit in the topic with this id."""
    return json.dumps({KEY: topic_id}, separators=(",", ":")) if topic_id else ""


def noted_id(metadata: str) -> str:
    """Return the id of the topic in which a commit was made, `` if it does not say."""
    try:
        topic_id = json_text.parse(metadata.rstrip("\0"))[KEY]
    except (ValueError, TypeError, LookupError):
        return ""
    return topic_id if isinstance(topic_id, str) else ""


def _id_in(future: Future[Any]) -> str:
    """Return the id in the answer about a topic. Raises KafkaException."""
    return str(future.result().topic_id)
