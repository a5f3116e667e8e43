"""All rules as the log has them.

triggers ──► a thread that follows ──► RuleState of each
event ──► triggers ──► own fold has passed it ──► did it take effect?
"""

from __future__ import annotations

import logging

from schemas.events import TriggerEvent
from schemas.serde import Poison
from streams.improve.triggers.rule_state import RuleState, fold
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record, cut
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

log = logging.getLogger("streamward.triggers")


class TriggerLog(FollowedTopic):
    """Every rule, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, "triggers", outage=outage)
        self._partitions = settings.topics.policy_partitions
        self._states: dict[str, RuleState] = {}
        self._events: dict[str, list[TriggerEvent]] = {}

    def state(self, rule: str) -> RuleState:
        """Return a rule after the records that were read. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return self._states.get(rule) or RuleState(rule=rule)

    def events(self, rule: str | None = None) -> list[TriggerEvent]:
        """Return the events that took effect, of one rule or of all, the oldest first."""
        with self._changed:
            names = self._events if rule is None else [rule]
            events = [event for name in names for event in self._events.get(name, ())]
        return sorted(events, key=lambda event: (event.created_at, event.rule, event.sequence))

    def append(self, event: TriggerEvent) -> bool:
        """Write an event; return whether this record of it took effect. Raises LogError."""
        place = self._write(event)
        return self.state(event.rule).effective.get(event.event_id) == place

    def _take(self, record: Record) -> None:
        event = record.decode_placed(TriggerEvent, self._partitions)
        if isinstance(event, Poison):
            log.warning("skipped: %s", cut(event.error), extra=record.log_extra)
            return
        before = self._states.get(event.rule) or RuleState(rule=event.rule)
        after = fold(before, event, record.at)
        self._states[event.rule] = after
        if after.sequence > before.sequence:
            self._events.setdefault(event.rule, []).append(event)
