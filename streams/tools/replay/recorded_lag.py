"""The lag of a group, for an experiment that trains other versions on it.

    adapters[policy]: trained, by record time ──► newest version when the group was complete ──► lag, in its metadata

In the source, the lag of a group in batch s is s less the batches that its version had been trained on. An experiment
has other batches and versions; what remains true is how many batches the sampler was behind the newest version when the
group was complete. This is recorded, and `batches.max_policy_lag` applies to it.

The distance of the experiment's own adapter from the one that sampled is not a count of versions; the trainer's
importance ratios measure it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate

from schemas.conventions import POLICY_LAG
from schemas.events import AdapterEvent, SourceRange
from schemas.serde import Poison
from streams.adapters.versions import AdapterFold, empty
from streams.kafka.history import History
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.advantages.state import EmitGroup
from streams.tools.replay.selection import bounds


class Trained:
    """When each version of a policy was announced."""

    def __init__(self, announced: Iterable[tuple[int, int]], batches: Mapping[int, int] | None = None) -> None:
        """`announced`: (record timestamp, version) of each; `batches`: how many each had taken, if not its number."""
        self._batches = batches or {}
        ordered = sorted(announced)
        self._times = [timestamp_ms for timestamp_ms, _ in ordered]
        self._newest = list(accumulate((version for _, version in ordered), max))

    def newest(self, at_ms: int) -> int:
        """Return the newest version at a time; 0, the base model, if none was trained yet."""
        announced = bisect_right(self._times, at_ms)
        return self._newest[announced - 1] if announced else 0

    def lag(self, version: int, at_ms: int) -> int:
        """Return how many batches `version` was behind at a time; never below 0, even if clocks disagree."""
        newest = self.newest(at_ms)
        return max(0, self._batches.get(newest, newest) - self._batches.get(version, version))

    def note(self, close: EmitGroup) -> EmitGroup:
        """Return a completed group with its lag in its metadata; an unanswered one has none."""
        if close.adapter_version < 0:
            return close
        lag = (POLICY_LAG, str(self.lag(close.adapter_version, close.created_at)))
        rest = tuple(item for item in close.task.metadata if item[0] != POLICY_LAG)
        task = close.task._replace(metadata=tuple(sorted((*rest, lag))))
        return replace(close, task=task)


def read(
    settings: Settings, history: History, policy: str, ranges: Iterable[SourceRange]
) -> tuple[Trained, list[AdapterEvent]]:
    """Return when each version of a policy was announced, and the events. Raises LogError if the log cannot be read."""
    first_events: dict[int, tuple[int, AdapterEvent]] = {}
    after = AdapterFold(empty(policy))
    starts, ends = bounds(ranges, topics(settings.topics)["adapters"].name)
    for record in history.read(starts, ends):
        event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
        if isinstance(event, Poison):
            continue
        if after.take(event) and event.kind == "trained":
            first_events[event.version] = (record.timestamp_ms, event)
    announced = ((timestamp_ms, version) for version, (timestamp_ms, _) in first_events.items())
    batches = {number: version.trained_batches for number, version in after.state().versions.items()}
    return Trained(announced, batches), [event for _, event in first_events.values()]
