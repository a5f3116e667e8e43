"""Follow all rules in the log.

triggers ──► a thread that follows ──► RuleState of each
event ──► triggers ──► own fold has passed it ──► did it take effect?
"""

from __future__ import annotations

from plugins.improve.triggers.rule_state import RuleState, fold, refusal
from schemas.events import TriggerEvent
from streams.kafka.named_states import Registry, RegistryShape
from streams.kafka.record import Record
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

TRIGGERS = RegistryShape("triggers", "rule", TriggerEvent, lambda name: RuleState(rule=name), refusal, fold)


class TriggerLog(Registry[TriggerEvent, RuleState]):
    """Every rule, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, TRIGGERS, outage)
        self._events: dict[str, list[TriggerEvent]] = {}

    def events(self, rule: str | None = None) -> list[TriggerEvent]:
        """Return the events that took effect, of one rule or of all, the oldest first."""
        with self._changed:
            names = self._events if rule is None else [rule]
            events = [event for name in names for event in self._events.get(name, ())]
        return sorted(events, key=lambda event: (event.created_at, event.rule, event.sequence))

    def _take(self, record: Record) -> None:
        if (event := self._decoded(record, TriggerEvent)) is None:
            return
        before = self._states.get(event.rule)
        self._shape.take(self._states, event, record.at)
        if self._states[event.rule].sequence > (0 if before is None else before.sequence):
            self._events.setdefault(event.rule, []).append(event)
