"""Choose the adapter version that answers each task.

    adapters ──► fold ──► Serving ─┬─ except those not loadable here ───► unpinned task: primary, or candidate
                                   └─ pinned task: its version, as soon as it is known

Tasks of a candidate that cannot be loaded go to the primary; they were not sampled yet, so the canary does not count
them. A primary that cannot be loaded is replaced by the one before it. A pinned task is answered by its version
whatever its status, since suites also ask rejected versions; only a retired one has no files any more. An outside model
never answers a task with texts that stay here (`serving_here`): the version before it does.

No Kafka, no clock, no weights. Each agent finds out for itself which versions it cannot load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from schemas.events import AdapterEvent, Coordinates, OutsideModel, Task
from streams.adapters import serving
from streams.adapters.serving import Serving, Status
from streams.adapters.versions import AdapterFold, empty, fold
from streams.observability.trace_context import Context

BASE = 0
"""The version that needs no files."""


class VersionRouter:
    """One policy's versions, and which of them answer here."""

    def __init__(self, policy: str) -> None:
        """Start before anything was trained."""
        self.adapters = empty(policy)
        self.unusable: set[int] = set()
        """Versions with adapters that could not be loaded. They are not tried again before a restart."""
        self.unreachable: set[int] = set()
        """Candidates that the store does not return at the moment."""
        self.trained_at: dict[int, Coordinates] = {}
        """Coordinates of the event that made each version."""
        self.announced_in: dict[int, Context] = {}
        """The trace of that event's record, for each version that has one."""

    def take(self, event: AdapterEvent) -> None:
        """Take in an adapter event without its coordinates; see `take_all`."""
        self.adapters = fold(self.adapters, event)

    def take_all(self, events: Iterable[tuple[AdapterEvent, Coordinates]]) -> None:
        """Take in adapter events with their coordinates."""
        after = AdapterFold(self.adapters)
        for event, place in events:
            if after.take(event) and event.kind == "trained":
                self.trained_at[event.version] = place
        self.adapters = after.state()

    @property
    def primary(self) -> int:
        """The primary, or the newest one before it that can be loaded."""
        return self.adapters.primary_without(self.unusable)

    @property
    def candidate(self) -> int | None:
        """The version under canary, if it can be loaded."""
        candidate = self.adapters.serving.candidate
        return None if candidate in self.unusable | self.unreachable else candidate

    @property
    def serving(self) -> Serving:
        """The versions that answer unpinned tasks here."""
        recorded, candidate = self.adapters.serving, self.candidate
        share = recorded.share if candidate is not None else 0.0
        return replace(recorded, primary=self.primary, candidate=candidate, share=share)

    @property
    def serving_here(self) -> Serving:
        """The versions that answer unpinned tasks with texts that stay here: never an outside model."""
        current, versions = self.serving, self.adapters.versions
        outside = {number for number, version in versions.items() if version.outside is not None}
        if current.primary in outside:
            current = replace(current, primary=self.adapters.primary_without(self.unusable | outside))
        return replace(current, candidate=None, share=0.0) if current.candidate in outside else current

    def outside(self, version: int) -> OutsideModel | None:
        """Return the model that answers for a version on another server, if any."""
        known = self.adapters.versions.get(version)
        return None if known is None else known.outside

    @property
    def statuses(self) -> Mapping[int, Status]:
        """The status of every version."""
        return self.adapters.serving.statuses

    def is_retired(self, version: int) -> bool:
        """Whether the files of a version are gone; never true for the base model, which has none."""
        return version != BASE and self.statuses.get(version) == "retired"


def route(serving_now: Serving, task: Task) -> int | None:
    """Return the version that answers `task`; None while its pinned version is unknown."""
    pinned = task.adapter_version
    if pinned is None:
        return serving.answers(serving_now, task.task_id)
    return pinned if pinned in serving_now.statuses else None
