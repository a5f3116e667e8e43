"""Recount the agents' store: deleted items were put before, no event counts twice, and keys write only their own items.

    put, deleted of one namespace ──► each item: its put before its deletion, no id again ──► findings
    actor: a key ──► the namespaces of its tenant and of its agent

An item may be deleted twice, by two clients at once: the second deletion changes nothing, and is not a finding.

Not covered: a missing event that a later one of its key replaced; the missing offset is found, as in every topic.
"""

from __future__ import annotations

from sys import intern
from typing import NamedTuple

from plugins.threads.audit.thread_facts import KeyRights, take_key
from schemas.events import AccessEvent, Coordinates, MemoryEvent
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest, digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts
from streams.tools.audit.view import AuditView


class MemoryFact(NamedTuple):
    """An event of an item of the store."""

    at: Coordinates
    kind: str
    identity: int
    """A digest of its id."""
    content: int
    actor: str
    key: int
    """A digest of the item's."""


class MemoryRecount(KeyedRecount[MemoryFact]):
    """The recount of the store, namespace by namespace."""

    labels, optional, counts = ("memory",), ("access",), ("items",)

    def __init__(self) -> None:
        super().__init__()
        self._actors: dict[str, KeyRights] = {}
        """Keys, by the actor that they are."""

    def take(self, record: Record, event: MemoryEvent | AccessEvent) -> None:
        """Take in an event of an item, or a key."""
        if isinstance(event, AccessEvent):
            take_key(self._actors, event)
            return
        content, actor = content_digest(event, "traceparent"), intern(event.actor)
        fact = MemoryFact(record.at, event.kind, digest(event.event_id), content, actor, digest(event.key))
        self.keep(event.namespace, fact)

    def recount(self, facts: KeyFacts[MemoryFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one namespace."""
        outcome = RecountOutcome()
        is_cut = view.is_cut("memory", facts.events[0].at.partition)
        first: dict[int, MemoryFact] = {}
        newest: dict[int, MemoryFact] = {}
        """Of each item."""
        for event in facts.events:
            rights = self._actors.get(event.actor)
            problem = None if rights is None else rights.problem(event.actor, facts.key)
            if problem is not None:
                outcome.find("contradictory", event.at, problem)
            earlier, before = first.setdefault(event.identity, event), newest.get(event.key)
            if earlier.content != event.content:
                outcome.find("contradictory", event.at, f"it has the id of {earlier.at}, and is another")
            elif earlier is not event and before is earlier:
                outcome.find("repeated", event.at, f"it repeats {earlier.at}", accounted=True)
                continue
            elif earlier is not event:
                outcome.find("doubled", event.at, f"it repeats {earlier.at}, and takes effect again")
            if event.kind == "deleted" and before is None and not is_cut:
                outcome.find("lost", event.at, "it deletes an item whose put is not before it")
            elif event.kind == "deleted" and before is not None and before.kind == "deleted":
                outcome.counts["memory events without effect"] += 1
            newest[event.key] = event
        outcome.counts["memory events"] += len(facts.events)
        outcome.counts["items"] += sum(event.kind == "put" for event in newest.values())
        return outcome
