"""The node that all tests share, what makes their topics their own, and how it gets rid of what they leave there.

Thousands of topics cost a node two thirds of its time: every process that starts asks for the list of all.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from streams.kafka import admin
from streams.settings.model import Kafka, Settings, Topics

ANSWER_S = 60.0
"""For the node to answer, also on a busy machine."""


def of_this_worker() -> str:
    """Return what all topics of this worker's tests begin with. Not a constant: a worker is a fork, and named later."""
    return f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'gw0')}-"


def own_prefix() -> str:
    """Return what the names of topics begin with that no other test has. They go with the file that made them."""
    return f"{of_this_worker()}{uuid.uuid4().hex[:8]}."


def own_topics(bootstrap: str, topics: Mapping[str, Any] = MappingProxyType({}), **sections: Any) -> Settings:
    """Return settings whose topics have a prefix of their own and exist; `topics` and `sections` change the others."""
    own = Topics(**{"prefix": own_prefix(), "partitions": 2, "policy_partitions": 2, **topics})
    settings = Settings(kafka=Kafka(bootstrap=bootstrap), topics=own, **sections)
    admin.apply_topics(settings)
    return settings


class SharedNode:
    """A running node, and one client of it that stays."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def delete_topics(self, prefix: str) -> None:
        """Delete all topics whose names begin with `prefix`."""
        names = [name for name in self._client.list_topics(timeout=ANSWER_S).topics if name.startswith(prefix)]
        for deleted in self._client.delete_topics(names, request_timeout=ANSWER_S).values() if names else ():
            try:
                deleted.result()
            except KafkaException as exc:  # the list may still have what was deleted a moment ago
                if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
