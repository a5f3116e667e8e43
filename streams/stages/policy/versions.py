"""Which adapter version answers each task, as an agent follows it.

    adapters ──► fold ──► Serving ─┬─ less what cannot be loaded here ──► unpinned task: primary, or candidate
                                   └─ pinned task: its version, as soon as it is known

A candidate that cannot be loaded gives its tasks back to the primary: they were not sampled yet, so its canary sees
nothing of it. A primary that cannot be loaded is stood in for by the one before it. A pin is taken at its word whatever
became of the version, as suites ask those that were rejected too; only one that is retired has no files any more.

The pure half: no Kafka, no clock, no weights.

Not covered: what other agents could load. Each finds out for itself, and says so in dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from schemas.events import AdapterEvent, Task
from streams.adapters import serving, versions as adapters
from streams.adapters.serving import Serving, Status

BASE = 0
"""The version that needs no files."""


class VersionRouter:
    """One policy's versions and who of them answers here."""

    def __init__(self, policy: str) -> None:
        """Begin before anything was trained."""
        self.adapters = adapters.empty(policy)
        self.useless: set[int] = set()
        """Versions whose adapter could not be loaded. They are not tried again."""
        self.away: set[int] = set()
        """Candidates that cannot be fetched at the moment."""

    def take(self, event: AdapterEvent) -> None:
        """Take in an adapter event; see `adapters.fold`."""
        self.adapters = adapters.fold(self.adapters, event)

    @property
    def primary(self) -> int:
        """The version in force: the primary, or the one before it that could be loaded."""
        return next((version for version in reversed(self.adapters.primaries) if self._can_serve(version)), BASE)

    @property
    def candidate(self) -> int | None:
        """The version whose canary is under way, if it can be loaded."""
        candidate = self.adapters.serving.candidate
        return None if candidate is None or candidate in self.away or not self._can_serve(candidate) else candidate

    @property
    def serving(self) -> Serving:
        """Who answers unpinned tasks here."""
        told, candidate = self.adapters.serving, self.candidate
        share = told.share if candidate is not None else 0.0
        return replace(told, primary=self.primary, candidate=candidate, share=share)

    @property
    def statuses(self) -> Mapping[int, Status]:
        """What has become of every version."""
        return self.adapters.serving.statuses

    def is_retired(self, version: int) -> bool:
        """Whether the files of a version are gone. The base model has none, so it is never gone."""
        return version != BASE and self.statuses.get(version) == "retired"

    def _can_serve(self, version: int) -> bool:
        return version not in self.useless and not self.is_retired(version)


def route(serving_now: Serving, task: Task) -> int | None:
    """Return the version that answers `task`; None as long as nobody heard of the one it is pinned to."""
    pinned = task.adapter_version
    if pinned is None:
        return serving.answers(serving_now, task.task_id)
    return pinned if pinned in serving_now.statuses else None
