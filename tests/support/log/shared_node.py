"""The node that all tests share, and how it gets rid of what they leave there.

Thousands of topics cost a node two thirds of its time: every command asks for the list of all.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_S = 60.0
"""For the node to answer, also on a busy machine."""


class SharedNode:
    """A running node, and one client of it that stays."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def delete_topics(self, prefix: str) -> None:
        """Delete all topics whose names begin with `prefix`, but not Kafka's own."""
        there = self._client.list_topics(timeout=ANSWER_S).topics
        names = [name for name in there if name.startswith(prefix) and not name.startswith("__")]
        for deleted in self._client.delete_topics(names, request_timeout=ANSWER_S).values() if names else ():
            try:
                deleted.result()
            except KafkaException as exc:  # the list may still have what was deleted a moment ago
                if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
