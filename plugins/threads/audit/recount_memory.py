"""Recount the agents' store: deleted items were put before, no event counts twice, keys write only their own items, and
what runs leave follows from their agents' rules, once for each.

    put, deleted of one namespace ──► each item: its put before its deletion, no id again ──► findings
    of a rule: put, skipped, failed ──► its run, and the call that made the item
    actor: a key ──► the namespaces of its tenant and of its agent

An item may be deleted twice, by two clients at once: the second deletion changes nothing, and is not a finding.

Not covered: a missing event that a later one of its key replaced; the missing offset is found, as in every topic.
"""

from __future__ import annotations

from collections import Counter
from sys import intern
from typing import NamedTuple

from plugins.threads.audit.remembered import RememberedRuns, RuleFact, rule_fact
from plugins.threads.audit.thread_facts import KeyRights, take_key
from schemas.events import AccessEvent, Coordinates, MemoryEvent, ThreadEvent, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest, digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

KINDS = {
    "put": "runs remembered",
    "skipped": "runs with nothing to remember",
    "failed": "runs whose memory failed",
    "open": "runs still to remember",
}


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
    of_rule: RuleFact | None


class MemoryRecount(KeyedRecount[MemoryFact]):
    """The recount of the store, namespace by namespace."""

    labels, optional, counts = ("memory", "threads", "turns"), ("access",), ("items",)
    sums = (
        RecountSum(
            "runs to remember",
            ("runs to remember",),
            {"remembered": KINDS["put"], "skipped": KINDS["skipped"], "failed": KINDS["failed"], "open": KINDS["open"]},
            shown_with="runs to remember",
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._runs = RememberedRuns()
        self._actors: dict[str, KeyRights] = {}
        """Keys, by the actor that they are."""

    def take(self, record: Record, event: MemoryEvent | AccessEvent | ThreadEvent | Turn) -> None:
        """Take in an event of an item, a key, or what a run and its call say."""
        if isinstance(event, AccessEvent):
            take_key(self._actors, event)
            return
        if not isinstance(event, MemoryEvent):
            self._runs.take(event)
            return
        content = content_digest(event, "traceparent", *(() if event.rule is None else ("created_at",)))
        ids = digest(event.event_id), content, intern(event.actor), digest(event.key)
        fact = MemoryFact(record.at, event.kind, *ids, rule_fact(event))
        self.keep(event.namespace, fact)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the store, and how many runs have left something in it."""
        outcome = super().report(view, policy)
        if policy is None and (due := [*self._runs.due()]):
            done = {
                event.of_rule.run_id: event.kind
                for facts in self.keys.values()
                for event in facts.events
                if event.of_rule is not None
            }
            counts = Counter(done.get(run_id, "open") for run_id in due)
            outcome.counts["runs to remember"] = len(due)
            for kind, name in KINDS.items():
                outcome.counts[name] = counts[kind]
        return outcome

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
            if event.of_rule is not None and not view.is_cut("threads"):
                problem = self._runs.problem(event.of_rule, facts.key, has_turns=not view.is_cut("turns"))
                if problem is not None:
                    outcome.find("contradictory", event.at, problem)
            if earlier.content != event.content:
                outcome.find("contradictory", event.at, f"it has the id of {earlier.at}, and is another")
            elif earlier is not event and (before is earlier or event.of_rule is not None):
                outcome.find("repeated", event.at, f"it repeats {earlier.at}", accounted=True)
                continue
            elif earlier is not event:
                outcome.find("doubled", event.at, f"it repeats {earlier.at}, and takes effect again")
            if event.kind == "deleted" and before is None and not is_cut:
                outcome.find("lost", event.at, "it deletes an item whose put is not before it")
            elif event.kind == "deleted" and before is not None and before.kind == "deleted":
                outcome.counts["memory events without effect"] += 1
            if event.kind in ("put", "deleted"):
                newest[event.key] = event
        outcome.counts["memory events"] += len(facts.events)
        outcome.counts["items"] += sum(event.kind == "put" for event in newest.values())
        return outcome
