"""Choose the tasks that are answered together.

waiting tasks ──► choose: one version, urgent first, room to train on them ──► SamplingBatch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from schemas.events import Coordinates, Task
from streams.observability.trace_context import Context


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that was read but is not answered yet."""

    task: Task
    at: Coordinates
    deadline_ms: int | None
    """Deadline in ms since the epoch, after which answers do not count; None: no limit."""
    arrival: int = 0
    """Its position in the order in which this agent read tasks of all partitions."""
    trace: Context | None = None

    @property
    def urgent(self) -> bool:
        """Whether it is answered as soon as possible, regardless of the trainer."""
        return self.task.purpose != "train"


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Tasks that are answered together, by one version."""

    version: int
    tasks: tuple[WaitingTask, ...]


def choose(
    waiting: Iterable[WaitingTask],
    *,
    version_for: Callable[[Task], int | None],
    room: Callable[[int], int],
    limit: int,
) -> SamplingBatch | None:
    """Return the next round of at most `limit` tasks, or None if nothing may start.

    The first task that may start decides version and length: the tasks of a round share both, since a round takes as
    long as its longest answer. `eval` and `serve` go before `train`, each in order of arrival, so every version and
    length gets its turn. `version_for` gives a task's version; while that is None the task waits. At most
    `room(version)` train tasks start.
    """
    first: tuple[int, int] | None = None
    chosen: list[WaitingTask] = []
    places: dict[int, int] = {}
    for candidate in sorted(waiting, key=lambda task: (not task.urgent, task.arrival)):
        length = candidate.task.sampling.max_tokens
        if first is not None and length != first[1]:
            continue
        version = version_for(candidate.task)
        if version is None or (first is not None and version != first[0]):
            continue
        if not candidate.urgent:
            left = places[version] if version in places else room(version)
            places[version] = left - 1
            if left < 1:
                continue
        first = (version, length)
        chosen.append(candidate)
        if len(chosen) == limit:
            break
    return None if first is None else SamplingBatch(first[0], tuple(chosen))
