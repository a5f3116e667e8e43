"""A member of a consumer group that waits for its broker as long as the settings say, and is told to stop by nobody."""

from __future__ import annotations

import threading

from streams.kafka.consumer import IGNORE_ASSIGNMENT, GroupConsumer, OnAssignment
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings


def member_of(
    settings: Settings, group: str, labels: list[str], on_assignment: OnAssignment = IGNORE_ASSIGNMENT
) -> GroupConsumer:
    """Return a member of `group` that reads the topics with these labels."""
    return GroupConsumer(settings, group, labels, BrokerOutage(settings.kafka, threading.Event()), on_assignment)
