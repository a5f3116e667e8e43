"""Recount a prompt: its versions are 1, 2, 3 and so on, none changes, and an alias means what there is.

    created, activated, shared, … of one prompt ──► recount_decisions ──► the events that took effect
    created ──► the next number, and a text that no version has
    the others ──► of versions that there are, and activated and shared of none that was withdrawn
    withdrawn ──► of a version that no alias means

Not covered: whether tasks were rendered with these texts; each task carries its own, and its reader renders it again.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import Coordinates, PromptEvent, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.recount_decisions import DecisionRecount


class PromptFact(NamedTuple):
    """An event of a prompt."""

    at: Coordinates
    kind: str
    sequence: int
    has_own_id: bool
    content: int
    digest: str
    """Of the text of one that was created; empty of others."""
    versions: tuple[int, ...]
    """That it names."""
    alias: str = ""
    """That it moves."""


class PromptRules:
    """The rules of one prompt."""

    noun, counted = "prompt", "prompt events"

    def __init__(self) -> None:
        self._texts: list[str] = []
        """Digests of the versions, the first of version 1."""
        self._aliases: dict[str, tuple[int, ...]] = {}
        self._withdrawn: set[int] = set()

    def problem(self, event: PromptFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        texts = self._texts
        if event.kind == "created":
            if event.digest in texts:
                return f"its text is that of version {texts.index(event.digest) + 1}"
            if event.versions[0] != len(texts) + 1:
                return f"it is version {event.versions[0]}, and the next one is {len(texts) + 1}"
            return None
        missing = [number for number in event.versions if not 1 <= number <= len(texts)]
        if missing:
            return f"it names version {missing[0]}, and the prompt has {len(texts)}"
        if event.kind != "reported" and (gone := self._withdrawn & set(event.versions)):
            return f"it names version {min(gone)}, which was withdrawn"
        meant = [alias for alias, versions in self._aliases.items() if set(versions) & set(event.versions)]
        return f"it withdraws what {meant[0]} means" if event.kind == "withdrawn" and meant else None

    def take(self, event: PromptFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        if event.kind == "created":
            self._texts += [""] * ((event.versions[0] or 1) - 1 - len(self._texts))  # those of records that are missing
            self._texts.append(event.digest)
            outcome.counts["prompt versions"] += 1
        elif event.kind == "withdrawn":
            self._withdrawn.update(event.versions)
        elif event.kind in ("activated", "shared"):
            self._aliases[event.alias] = event.versions
            outcome.counts["alias moves"] += 1


class PromptRecount(DecisionRecount):
    """The recount of prompts."""

    labels, key, rules = ("prompts",), "prompt", PromptRules

    @staticmethod
    def fact(record: Record, event: PromptEvent) -> PromptFact:
        """Return what is kept of an event."""
        own_id = derive_id(event.prompt, event.kind, event.sequence)
        versions = tuple(arm.version for arm in event.arms) if event.version is None else (event.version,)
        return PromptFact(
            at=record.at,
            kind=event.kind,
            sequence=event.sequence,
            has_own_id=event.event_id == own_id,
            content=content_digest(event, "created_at", "traceparent"),
            digest=event.digest or "",
            versions=versions,
            alias=event.alias or "",
        )
