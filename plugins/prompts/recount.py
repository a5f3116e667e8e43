"""Recount a prompt: its versions are 1, 2, 3 and so on, none changes, and aliases point to existing versions.

    created, activated, shared, … of one prompt ──► recount_decisions ──► the events that took effect
    created ──► the next number, and a text that no version has
    the others ──► of versions that there are, and activated and shared of none that was withdrawn
    withdrawn ──► of a version that no alias means

Not covered: whether tasks were rendered with these texts; each task carries its own text.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import PromptEvent
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.recount_decisions import DecisionFact, DecisionRecount, DecisionRules


class NamedVersions(NamedTuple):
    """The versions of a prompt that an event names, and the alias that it moves to them."""

    versions: tuple[int, ...]
    alias: str


class PromptRules(DecisionRules):
    """The rules of one prompt."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        """Digests of the versions, the first of version 1."""
        self._aliases: dict[str, tuple[int, ...]] = {}
        self._withdrawn: set[int] = set()

    def problem(self, event: DecisionFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        texts = self._texts
        if event.kind == "created":
            if event.digest in texts:
                return f"its text is that of version {texts.index(event.digest) + 1}"
            if event.about.versions[0] != len(texts) + 1:
                return f"it is version {event.about.versions[0]}, and the next one is {len(texts) + 1}"
            return None
        missing = [number for number in event.about.versions if not 1 <= number <= len(texts)]
        if missing:
            return f"it names version {missing[0]}, and the prompt has {len(texts)}"
        if event.kind != "reported" and (gone := self._withdrawn & set(event.about.versions)):
            return f"it names version {min(gone)}, which was withdrawn"
        meant = [alias for alias, versions in self._aliases.items() if set(versions) & set(event.about.versions)]
        return f"it withdraws what {meant[0]} means" if event.kind == "withdrawn" and meant else None

    def take(self, event: DecisionFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        if event.kind == "created":
            self._texts += [""] * (
                (event.about.versions[0] or 1) - 1 - len(self._texts)
            )  # those of records that are missing
            self._texts.append(event.digest)
            outcome.counts["prompt versions"] += 1
        elif event.kind == "withdrawn":
            self._withdrawn.update(event.about.versions)
        elif event.kind in ("activated", "shared"):
            self._aliases[event.about.alias] = event.about.versions
            outcome.counts["alias moves"] += 1


class PromptRecount(DecisionRecount):
    """The recount of prompts."""

    labels, key, rules, noun, counted = ("prompts",), "prompt", PromptRules, "prompt", "prompt events"

    def about(self, event: PromptEvent) -> NamedVersions:
        """Return the versions that an event names."""
        versions = tuple(arm.version for arm in event.arms) if event.version is None else (event.version,)
        return NamedVersions(versions, event.alias or "")


RECOUNTS = (PromptRecount,)
