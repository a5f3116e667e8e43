"""A topic of decisions about named things; each thing's state is the fold of its events.

    topic ──► a thread that follows ──► the state of each name
    decide: state ──► event ──► topic ──► own fold has passed it ──► the state after it; another came first: once more

If two events are based on the same state, the first in the partition takes effect and the second changes nothing:
compare and swap by the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from schemas.events import Coordinates, Event, problems
from schemas.serde import Poison
from streams.errors import EventError, RefusedError
from streams.kafka.admin import read_topic
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import key_field, topics
from streams.settings.model import Settings

TRIES = 20
"""A decision is given up after other processes have written so many events first."""


class Decided(Protocol):
    """A state that knows which events took effect."""

    @property
    def effective(self) -> Mapping[str, Coordinates]:
        """Coordinates of each event that took effect, by its id."""


E = TypeVar("E", bound=Event)
S = TypeVar("S")
D = TypeVar("D", bound=Decided)


@dataclass(frozen=True, slots=True)
class RegistryShape(Generic[E, S]):
    """The topic of a registry, and how its records become states."""

    label: str
    noun: str
    """What messages call one of its things."""
    event: type[E]
    empty: Callable[[str], S]
    """State of a name without events."""
    refusal: Callable[[S, E], str | None]
    """Returns why an event does not change a thing in this state; None if it takes effect."""
    fold: Callable[[S, E, Coordinates], S]
    is_there: Callable[[S], bool] = lambda _: True
    """Whether a name in this state exists; of others only the events do, as of one that was removed."""

    def take(self, states: dict[str, S], event: E, at: Coordinates) -> None:
        """Fold an event into the state of the name that it is about."""
        name: str = getattr(event, key_field(self.event))
        before = states[name] if name in states else self.empty(name)
        states[name] = self.fold(before, event, at)

    def read(self, settings: Settings) -> dict[str, S]:
        """Return the states of what exists in this log now, by name; records that are not events of the topic are
        skipped. Raises NotFoundError if the topic does not exist, LogError.
        """
        partitions, states = topics(settings.topics)[self.label].partitions, dict[str, S]()
        for record in read_topic(settings, self.label):
            event = record.decode_placed(self.event, partitions)
            if not isinstance(event, Poison):
                self.take(states, event, record.at)
        return self.existing(states)

    def existing(self, states: Mapping[str, S]) -> dict[str, S]:
        """Return the states of what exists, in the order of names."""
        return {name: state for name, state in sorted(states.items()) if self.is_there(state)}


class FollowedStates(FollowedTopic, Generic[E, S]):
    """The states, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, shape: RegistryShape[E, S], outage: BrokerOutage | None = None) -> None:
        """Raises NotFoundError if the topic does not exist, LogError if the broker does not answer."""
        super().__init__(settings, shape.label, outage=outage)
        self._shape = shape
        self._states: dict[str, S] = {}

    @property
    def states(self) -> Mapping[str, S]:
        """The state of everything that exists, by name. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return self._shape.existing(self._states)

    def state(self, name: str) -> S:
        """Return a state after the records that were read. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return self._states[name] if name in self._states else self._shape.empty(name)

    def _take(self, record: Record) -> None:
        if (event := self._decoded(record, self._shape.event)) is not None:
            self._shape.take(self._states, event, record.at)


class Registry(FollowedStates[E, D]):
    """States that are changed by compare and swap."""

    SHAPE: ClassVar[RegistryShape[Any, Any]]
    """Of a subclass: the registry that it is."""

    def append(self, event: E) -> bool:
        """Write an event; return whether this record of it took effect. Raises EventError, which says what is wrong."""
        name: str = getattr(event, key_field(self._shape.event))
        if problem := next(problems(event), None):
            raise EventError(f"{self._shape.noun} {name[:140]}: {problem}")
        place = self._write(event)
        return place in self.state(name).effective.values()

    def decide(self, name: str, make: Callable[[D], E | None]) -> tuple[D, bool]:
        """Return the state after the event that `make` returns for the present one, and whether it was written.

        If it returns None, nothing is written. If another event came first, `make` is called again. Raises its errors,
        EventError for a malformed event, RefusedError for one against the rules or after too many conflicts, LogError.
        """
        for _ in range(TRIES):
            state = self.state(name)
            if (event := make(state)) is None:
                return state, False
            if (problem := self._shape.refusal(state, event)) is not None:
                raise RefusedError(f"{self._shape.noun} {name}: {problem}")
            if self.append(event):
                return self.state(name), True
        raise RefusedError(f"{self._shape.noun} {name}: others wrote first {TRIES} times; try again")
