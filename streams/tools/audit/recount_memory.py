"""Recount the agents' store: what is deleted was put, no event counts twice, and keys write what is their own.

    put, deleted of one namespace ──► each item: its put before its deletion, no id again ──► findings
    actor: a key ──► the namespaces of its tenant and of its agent

An item may be deleted twice, by two clients at once: the second deletion changes nothing, and is no mistake of the log.

Not covered: whether an event is missing that another of its key has replaced; its offset is then missing, which is
found for every topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

from schemas.events import AccessEvent, Coordinates, MemoryEvent
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest, digest
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.thread_facts import KeyRights, take_key
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


@dataclass(slots=True)
class MemoryStory:
    """The events of one namespace, in the order of its partition."""

    namespace: str
    events: list[MemoryFact] = field(default_factory=list)


def recount_memory(story: MemoryStory, keys: Mapping[str, KeyRights], view: AuditView) -> RecountOutcome:
    """Return what is wrong with one namespace; `keys`: by the actor that they are."""
    outcome = RecountOutcome()
    is_cut = view.is_cut("memory", story.events[0].at.partition)
    first: dict[int, MemoryFact] = {}
    newest: dict[int, MemoryFact] = {}
    """Of each item."""
    for event in story.events:
        rights = keys.get(event.actor)
        problem = None if rights is None else rights.problem(event.actor, story.namespace)
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
    outcome.counts["memory events"] += len(story.events)
    outcome.counts["items"] += sum(event.kind == "put" for event in newest.values())
    return outcome


class MemoryRecount(SubjectRecount):
    """The recount of the store, namespace by namespace."""

    labels, counts = ("memory", "access"), ("items",)

    def __init__(self) -> None:
        self._items: dict[str, MemoryStory] = {}
        self._keys: dict[str, KeyRights] = {}
        """By the actor that they are."""

    def take(self, record: Record, event: MemoryEvent | AccessEvent) -> None:
        """Take in an event of an item, or a key."""
        if isinstance(event, AccessEvent):
            take_key(self._keys, event)
            return
        content, actor = content_digest(event, "traceparent"), intern(event.actor)
        fact = MemoryFact(record.at, event.kind, digest(event.event_id), content, actor, digest(event.key))
        self._items.setdefault(event.namespace, MemoryStory(event.namespace)).events.append(fact)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every namespace; nothing of one policy, since none is of one."""
        outcome = RecountOutcome()
        for items in self._items.values() if policy is None else ():
            outcome.add(recount_memory(items, self._keys, view))
        return outcome
