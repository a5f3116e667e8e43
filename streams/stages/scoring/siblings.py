"""Decide which failed scores are final, and which can be given later.

    outcomes of one sampling ──► all there, or none came for SIBLINGS_WAIT_S ──► settled: its group can do without them,
                                                                                 or needs them
A group with too few scored responses teaches nothing. A reward with an error would close it at once; without one it
stays open until its deadline, and the score can still be given once the scorer is repaired. So a failed score is only
final where the group has advantages.min_group scored responses without it, or could never have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from schemas.events import Response, RewardSource, Task
from streams.kafka.tracked import TakenRecord
from streams.scorers import ScoreOutcome
from streams.settings.model import Advantages
from streams.stages.scoring.whole_groups import Group

SIBLINGS_WAIT_S = 5.0
"""How long a failed score waits for slots of its sampling that were not read, e.g. since another agent scored them."""


@dataclass(slots=True, eq=False)
class Item:
    """One response in work."""

    taken: TakenRecord
    response: Response
    task: Task | None = None
    sources_left: int = 0
    group: Group | None = None
    """Set for the response that completes its group, if that is scored as a whole."""
    ranked: list[ScoreOutcome] = field(default_factory=list)
    """The outcome for each response of the group."""
    failed: list[tuple[RewardSource, ScoreOutcome]] = field(default_factory=list)
    """Failed scores that are neither final nor given up yet."""
    is_scored: bool = True
    """False once a failed score is final."""
    has_value: bool = False
    """Whether a source has given a value, and has not abstained."""
    waits_until: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def partition(self) -> int:
        """Partition number in `responses` and in `tasks`."""
        return self.taken.record.at.partition


@dataclass(slots=True)
class SamplingScores:
    """The known state of one sampling."""

    group_size: int
    slots: set[int] = field(default_factory=set)
    items: list[Item] = field(default_factory=list)
    changed: float = 0.0


class Siblings:
    """The samplings in progress."""

    def __init__(self, rule: Advantages, owns: Callable[[TakenRecord], bool]) -> None:
        self._rule, self._owns = rule, owns
        self._samplings: dict[str, SamplingScores] = {}

    def can_wait(self, task: Task) -> bool:
        """Whether the group of this task stays open for a score that is missing, and could be whole with it."""
        has_deadline = task.deadline_at is not None or self._rule.deadline_s > 0
        return task.purpose == "train" and task.group_size >= self._rule.min_group and has_deadline

    def add(self, item: Item) -> None:
        """Add a response that starts being scored; a failed one has no scores."""
        response = item.response
        sampling = self._samplings.setdefault(response.sampling_id, SamplingScores(response.group_size))
        sampling.slots.add(response.slot)
        if response.error is None:
            sampling.items.append(item)
        sampling.changed = time.monotonic()

    def failed(self) -> list[Item]:
        """Return the responses with a failed score that is not settled."""
        return [item for sampling in self._samplings.values() for item in sampling.items if item.failed]

    def settled(self, now: float) -> Iterator[tuple[Item, bool]]:
        """Yield each response whose failed scores are settled, and whether they are final."""
        for sampling_id, sampling in list(self._samplings.items()):
            sampling.items = [item for item in sampling.items if self._owns(item.taken) or not item.sources_left]
            if any(item.sources_left for item in sampling.items):
                sampling.changed = now
                continue
            if len(sampling.slots) < sampling.group_size and now < sampling.changed + SIBLINGS_WAIT_S:
                continue
            del self._samplings[sampling_id]
            scored = sum(item.is_scored and item.has_value and not item.failed for item in sampling.items)
            is_whole = len(sampling.slots) == sampling.group_size
            possible = scored + sum(bool(item.failed) for item in sampling.items) if is_whole else sampling.group_size
            for item in sampling.items:
                if item.failed and self._owns(item.taken):
                    yield item, not scored < self._rule.min_group <= possible
