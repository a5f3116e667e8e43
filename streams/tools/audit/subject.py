"""The interface of recounts by subject: jobs, threads, queues, or the records of a plugin.

    records of its topics ──► take ──► its own facts ─┐
    AuditView: the loop's facts, how far was read ────┴──► report ──► findings, counts, what is in flight

Recounts meet only at topics, as stages do: one that needs the records of another subject reads their topic, too. It
imports none of the code that wrote the records, so that both would have to make the same mistake to agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.view import AuditView

F = TypeVar("F")


class RecountSum(NamedTuple):
    """A sum that must come out, over the counts of an outcome."""

    what: str
    total: tuple[str, ...]
    """The counts that are added up."""
    parts: Mapping[str, str]
    """The counts that must add up to the same, by what they are called."""
    shown_with: str = ""
    """The sum is shown only where there is such a count; empty: always."""


class SubjectRecount:
    """The recount of one subject."""

    labels: ClassVar[tuple[str, ...]]
    """Topics that it reads, by label."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Topics of other plugins, which it reads where those are loaded."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Its counts that a report lists first, with those of tasks."""
    sums: ClassVar[tuple[RecountSum, ...]] = ()

    def take(self, record: Record, event: Any) -> None:
        """Take in the next record of one of its topics, where its key belongs, with the event in it.

        Keep of it only what the report needs: all that was taken stays in memory.
        """
        raise NotImplementedError

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with what was taken; with `policy` only of what is about that policy.

        It is called again when more was taken.
        """
        raise NotImplementedError

    def policies(self) -> Collection[str]:
        """Return the policies that its records are about."""
        return ()


@dataclass(slots=True)
class KeyFacts(Generic[F]):
    """The facts about one key, in the order of its partition."""

    key: str
    policy: str | None
    """The policy that they are about; None: they are about none, or several."""
    events: list[F] = field(default_factory=list)


class KeyedRecount(SubjectRecount, Generic[F]):
    """The recount of a subject with independent keys."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyFacts[F]] = {}

    def keep(self, key: str, fact: F, policy: str | None = None) -> None:
        """Keep a fact about a key."""
        self.keys.setdefault(key, KeyFacts(key, policy)).events.append(fact)

    def recount(self, facts: KeyFacts[F], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one key."""
        raise NotImplementedError

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every key; with `policy` with those that are about it."""
        outcome = RecountOutcome()
        for facts in self.keys.values():
            if policy in (None, facts.policy):
                outcome.add(self.recount(facts, view))
        return outcome

    def policies(self) -> set[str]:
        """Return the policies of the keys."""
        return {facts.policy for facts in self.keys.values() if facts.policy is not None}
