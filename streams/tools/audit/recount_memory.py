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

from streams.tools.audit.facts import AuditFinding, AuditView, Category
from streams.tools.audit.story import TaskOutcome
from streams.tools.audit.thread_facts import KeyRights, MemoryFact


@dataclass(slots=True)
class MemoryStory:
    """The events of one namespace, in the order of its partition."""

    namespace: str
    events: list[MemoryFact] = field(default_factory=list)


def recount_memory(story: MemoryStory, keys: Mapping[str, KeyRights], view: AuditView) -> TaskOutcome:
    """Return what is wrong with one namespace; `keys`: by the actor that they are."""
    outcome = TaskOutcome()
    is_cut = view.reach.cut(view.names["memory"], story.events[0].at.partition)
    first: dict[int, MemoryFact] = {}
    newest: dict[int, MemoryFact] = {}
    """Of each item."""

    def find(category: Category, event: MemoryFact, problem: str, accounted: bool = False) -> None:
        outcome.findings.append(AuditFinding(category, event.at, problem, accounted))

    for event in story.events:
        rights = keys.get(event.actor)
        problem = None if rights is None else rights.problem(event.actor, story.namespace)
        if problem is not None:
            find("contradictory", event, problem)
        earlier, before = first.setdefault(event.identity, event), newest.get(event.key)
        if earlier.content != event.content:
            find("contradictory", event, f"it has the id of {earlier.at}, and is another")
        elif earlier is not event and before is earlier:
            find("repeated", event, f"it repeats {earlier.at}", accounted=True)
            continue
        elif earlier is not event:
            find("doubled", event, f"it repeats {earlier.at}, and takes effect again")
        if event.kind == "deleted" and before is None and not is_cut:
            find("lost", event, "it deletes an item whose put is not before it")
        elif event.kind == "deleted" and before is not None and before.kind == "deleted":
            outcome.counts["memory events without effect"] += 1
        newest[event.key] = event
    outcome.counts["memory events"] += len(story.events)
    outcome.counts["items"] += sum(event.kind == "put" for event in newest.values())
    return outcome
