"""Which training call is next: a model's in the order of their numbers, and models in turn.

    record ──► take ──► CallQueue ──► turns() ──► next_turn ──► next(key) ──► a call whose turn it is

A model's calls have numbers, and a call waits for those before it, which may come later: a client sends the pieces of
one pass side by side. Samples have no order; one waits until the weights of its sampling session are saved. Everything
about one model, or of one session's samples from the base model, shares its turns.

No clock and no I/O. A call that has a result is never due: it is only remembered where its record is, for a model whose
state has to be computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from plugins.tinker.calls.call_state import ANSWERED, CallState, place_of
from schemas.events import Coordinates, TrainingCall
from streams.observability.trace_context import Context


class WaitingCall(NamedTuple):
    """A call without a result."""

    at: Coordinates
    call: TrainingCall
    trace: Context | None
    refused: str | None = None
    """Why a rule forbids it, by the calls before it."""


@dataclass(slots=True)
class ModelLine:
    """The calls of one model, by their place in its order."""

    places: dict[int, Coordinates] = field(default_factory=dict)
    """Where the record of each is."""
    waiting: dict[int, WaitingCall] = field(default_factory=dict)
    done: int = -1
    """All calls up to this place have results."""
    ended: set[int] = field(default_factory=set)
    """Calls beyond it that have one."""

    def end(self, place: int) -> None:
        """Take note that a call has a result."""
        self.waiting.pop(place, None)
        self.ended.add(place)
        while self.done + 1 in self.ended:
            self.done += 1
            self.ended.remove(self.done)


class CallQueue:
    """The calls of some partitions. `state` has taken each of them before."""

    def __init__(self, state: CallState) -> None:
        self._state = state
        self._lines: dict[str, ModelLine] = {}
        self._others: dict[str, dict[str, WaitingCall]] = {}
        """By key and id: samples, and models to unload."""

    def take(self, waiting: WaitingCall) -> None:
        """Take a call of the log; the first of an id counts."""
        call = waiting.call
        if call.kind not in ANSWERED:
            return
        place, has_result = place_of(call), call.call_id in self._state.results
        if place is not None:
            line = self._lines.setdefault(call.model, ModelLine())
            if place in line.places:
                return
            line.places[place] = waiting.at
            line.waiting[place] = waiting
            if has_result:
                line.end(place)
        elif not has_result:
            self._others.setdefault(call.model, {}).setdefault(call.call_id, waiting)

    def end(self, call: TrainingCall) -> None:
        """Take note that a call has a result."""
        if (place := place_of(call)) is not None:
            self._lines[call.model].end(place)
        elif (others := self._others.get(call.model)) is not None:
            others.pop(call.call_id, None)

    def turns(self) -> list[str]:
        """Return the keys that have a call which is due."""
        return [key for key in {*self._lines, *self._others} if self.next(key) is not None]

    def next(self, key: str) -> WaitingCall | None:
        """Return the call of a key that is due: of several the first in the log."""
        line, due = self._lines.get(key), []
        if line is not None and (head := line.waiting.get(line.done + 1)) is not None:
            due.append(head)
        due += [waiting for waiting in self._others.get(key, {}).values() if self._has_weights(waiting.call)]
        return min(due, key=lambda waiting: waiting.at.offset, default=None)

    def samples(self, key: str, first: WaitingCall) -> list[WaitingCall]:
        """Return the samples of a key that are due and read the same weights as `first`, in the log's order from it."""
        weights = self._weights(first.call)
        samples = (waiting for waiting in self._others.get(key, {}).values() if waiting.call.kind == "sample")
        due = [
            waiting for waiting in samples if self._has_weights(waiting.call) and self._weights(waiting.call) == weights
        ]
        return sorted(due, key=lambda waiting: waiting.at.offset)

    def _weights(self, call: TrainingCall) -> tuple[str | None, str | None]:
        """Return what tells the weights of a sample: the call that saved them, or their folder in the store."""
        sampler = self._state.samplers.get(call.sampling_session or "")
        return (call.sampling_session, None) if sampler is None else (sampler.save, sampler.source)

    def _has_weights(self, call: TrainingCall) -> bool:
        """Return whether the weights that a call samples from are saved, or never will be."""
        sampler = self._state.samplers.get(call.sampling_session or "")
        return sampler is None or sampler.save is None or sampler.save in self._state.results

    def places(self, model: str, begin: int, end: int) -> list[Coordinates]:
        """Return where the calls of a model are from one place to below another."""
        places = self._lines[model].places
        return [places[place] for place in range(begin, end)]

    def first_waiting(self) -> dict[int, int]:
        """Return by partition the offset of the first call that waits."""
        first: dict[int, int] = {}
        for waiting in self._all_waiting():
            first[waiting.at.partition] = min(first.get(waiting.at.partition, waiting.at.offset), waiting.at.offset)
        return first

    def backlog(self) -> int:
        """Return how many calls wait."""
        return sum(1 for _ in self._all_waiting())

    def drop(self, partitions: Iterable[int]) -> list[str]:
        """Forget the calls of these partitions; return the models that had some."""
        gone = set(partitions)
        models = [
            model for model, line in self._lines.items() if any(at.partition in gone for at in line.places.values())
        ]
        for model in models:
            del self._lines[model]
        for key, others in list(self._others.items()):
            if any(waiting.at.partition in gone for waiting in others.values()):
                del self._others[key]
        return models

    def _all_waiting(self) -> Iterator[WaitingCall]:
        for line in list(self._lines.values()):
            yield from list(line.waiting.values())
        for others in list(self._others.values()):
            yield from list(others.values())
