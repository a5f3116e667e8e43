"""Follow the verdicts on runs, for the rules that remember after one.

curation, where the plugin `improve` is loaded ──► a thread that follows ──► each verdict, oldest first
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.events import CurationEvent
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings

LABEL = "curation"


def has_verdicts(settings: Settings) -> bool:
    """Return whether a loaded plugin gives verdicts."""
    return LABEL in topics(settings.topics)


class VerdictLog(FollowedTopic):
    """Every verdict that decides, followed. Use as a context manager."""

    def __init__(self, settings: Settings, on_verdict: Callable[[CurationEvent], None]) -> None:
        """`on_verdict` gets each, in the thread that follows.

        Raises NotFoundError without the topic, LogError if the broker does not answer.
        """
        super().__init__(settings, LABEL)
        self._on_verdict = on_verdict

    def _take(self, record: Record) -> None:
        event = self._decoded(record, CurationEvent)
        if event is not None and event.verdict != "needs_human":
            self._on_verdict(event)
