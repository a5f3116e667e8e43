"""Dead letters, and the decisions about them.

    dead-letters ──► load ──► Letter, LetterDecision ──► Letters: open, retried or dropped ──► find, matching

A decision about a dead letter is a record, too: a DeadLetter of stage `dlq` about the same source record, with a key
that puts all decisions about one source into one partition. Dead letters of two stages about one source are decided
together. Decisions are numbered; of those with the same number the first in the partition wins, and one with too high a
number is void. So a writer that reads the partition up to its own decision knows whether it is valid.

The records that dead letters are about are in originals.py.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from schemas.events import Coordinates, DeadLetter, derive_id
from schemas.serde import Poison
from streams.errors import NotFoundError, SettingsError
from streams.kafka import admin
from streams.kafka.reader import read
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings

log = logging.getLogger(__name__)

STAGE = "dlq"
"""The stage that writes decisions; a reserved name."""
SHORTEST_ID = 6
"""The fewest characters of an id that name a dead letter, if no other id begins with them."""

State = Literal["open", "retried", "dropped"]
Verdict = Literal["retried", "dropped"]


# --- records of the topic ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter without its payload, and its coordinates."""

    at: Coordinates
    written_ms: int
    """When it was written: the timestamp of its record. `event.created_at` is that of its source."""
    event: DeadLetter
    """Without payload and headers; originals.py fetches them."""
    payload_bytes: int | None = None
    """None for a tombstone."""

    @property
    def source(self) -> Coordinates:
        """The coordinates of the record that could not be used."""
        return source_of(self.event)


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """What was decided about a source record."""

    at: Coordinates
    written_ms: int
    source: Coordinates
    decision_id: str
    verdict: Verdict
    attempt: int
    """1-based. A second attempt finishes what the first began, or decides otherwise."""
    said: str
    """The actor and the reason."""
    partition: int = 0
    """Retried: of the source topic, where the record goes."""
    end: int = 0
    """Retried: where that partition ended before this was decided; the record is there or after it."""


def source_of(event: DeadLetter) -> Coordinates:
    """Return the coordinates of the record that a dead letter is about."""
    return Coordinates(event.source_topic, event.source_partition, event.source_offset)


def decision_id(source: Coordinates, attempt: int) -> str:
    """Return the id of a decision: the same decision twice has one id."""
    return derive_id(STAGE, *source, attempt)


class RedriveTarget(NamedTuple):
    """Where an original goes."""

    partition: int
    end: int
    """Where the partition ended before this was decided."""


def decision(
    letter: Letter, verdict: Verdict, attempt: int, said: str, *, now_ms: int, target: RedriveTarget | None = None
) -> DeadLetter:
    """Return the record that decides about the source of `letter`; a retry needs a target."""
    numbers = {"attempt": attempt} | ({} if target is None else target._asdict())
    try:
        key = None if letter.event.key is None else base64.b64decode(letter.event.key, validate=True)
    except ValueError:
        key = None
    # without a key each would get a partition of its own, and none would be first
    key = str(letter.source).encode() if key is None else key
    return replace(
        letter.event,
        dead_letter_id=decision_id(letter.source, attempt),
        created_at=now_ms,
        stage=STAGE,
        reason=verdict,
        error=f"{letter.source}: {said}",
        key=base64.b64encode(key).decode(),
        payload=None,
        headers={name: base64.b64encode(str(number).encode()).decode() for name, number in numbers.items()},
    )


def parse(record: Record) -> Letter | LetterDecision | Poison:
    """Return what a record of the topic holds. Never raises."""
    event = record.decode(DeadLetter)
    if isinstance(event, Poison):
        return event
    if event.stage == STAGE:
        return _decision(record, event)
    payload_bytes = event.payload_bytes
    if event.payload is not None:
        payload_bytes = len(event.payload) * 3 // 4 - event.payload[-2:].count("=")
    return Letter(record.at, record.timestamp_ms, replace(event, payload=None, headers={}), payload_bytes)


def _decision(record: Record, event: DeadLetter) -> LetterDecision | Poison:
    source = source_of(event)
    try:
        numbers = {name: int(base64.b64decode(value, validate=True)) for name, value in event.headers.items()}
        verdict: dict[str, Verdict] = {"retried": "retried", "dropped": "dropped"}
        found = LetterDecision(
            record.at, record.timestamp_ms, source, event.dead_letter_id, verdict[event.reason], numbers["attempt"],
            event.error.removeprefix(f"{source}: "), numbers.get("partition", 0), numbers.get("end", 0),
        )  # fmt: skip
    except (KeyError, ValueError) as exc:
        return Poison("contradictory", f"no decision of `streamward admin dlq`: {type(exc).__name__}: {exc}")
    if found.decision_id != decision_id(source, found.attempt) or min(found.attempt, found.partition, found.end) < 0:
        return Poison("contradictory", f"its id or a number is not that of decision {found.attempt} about {source}")
    return found


# --- all of them ------------------------------------------------------------------------------------------------------


class Matching(NamedTuple):
    """Which dead letters are wanted; None means any."""

    reason: str | None = None
    stage: str | None = None
    topic: str | None = None
    """Full name of the source topic."""
    since_ms: int | None = None
    """Written at this time or later."""

    def wants(self, letter: Letter) -> bool:
        """Return whether this dead letter is one of them."""
        return (
            self.reason in (None, letter.event.reason)
            and self.stage in (None, letter.event.stage)
            and self.topic in (None, letter.event.source_topic)
            and (self.since_ms is None or letter.written_ms >= self.since_ms)
        )


@dataclass
class Letters:
    """Every dead letter and decision read so far, in whatever order and however often they were read."""

    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """How far the topic was read."""
    _first: dict[str, Letter] = field(default_factory=dict)
    _ids: dict[Coordinates, str] = field(default_factory=dict)
    _decisions: dict[Coordinates, dict[Coordinates, LetterDecision]] = field(default_factory=dict)

    def take(self, found: Letter | LetterDecision) -> None:
        """Add what a record holds. A dead letter that a stage wrote twice, after a restart, counts once."""
        if isinstance(found, LetterDecision):
            self._decisions.setdefault(found.source, {})[found.at] = found
            return
        letter_id = found.event.dead_letter_id
        self._ids[found.at] = letter_id
        known = self._first.get(letter_id)
        if known is None or (found.written_ms, found.at) < (known.written_ms, known.at):
            self._first[letter_id] = found

    def decisions(self, source: Coordinates) -> list[LetterDecision]:
        """Return the valid decisions about a source record, in order; the last one is in force."""
        holding: list[LetterDecision] = []
        for at in sorted(self._decisions.get(source, {})):
            found = self._decisions[source][at]
            if found.attempt == len(holding) + 1:
                holding.append(found)
        return holding

    def state(self, letter: Letter) -> State:
        """Return what was decided about the source of a dead letter."""
        holding = self.decisions(letter.source)
        return holding[-1].verdict if holding else "open"

    def matching(self, wanted: Matching = Matching(), *states: State) -> list[Letter]:  # noqa: B008 - immutable
        """Return the dead letters that are wanted, in one of these states or in any, oldest first."""
        found = (letter for letter in self._first.values() if wanted.wants(letter))
        some = [letter for letter in found if not states or self.state(letter) in states]
        return sorted(some, key=lambda letter: (letter.written_ms, letter.at))

    def find(self, text: str, *, prefix: str = "") -> list[Letter]:
        """Return the dead letter with this id, id prefix or coordinates; or all about the record at these coordinates.

        `prefix`: of the deployment's topics; coordinates may have a topic's label. Raises NotFoundError, SettingsError
        if `text` names several or is too short to name one.
        """
        if (place := re.fullmatch(r"(.+)\[(\d+)\]@(\d+)", text)) is not None:
            topic, partition, offset = place.groups()
            named = {Coordinates(name, int(partition), int(offset)) for name in (topic, prefix + topic)}
            ids = {self._ids[at] for at in named & self._ids.keys()}
            ids |= {letter.event.dead_letter_id for letter in self._first.values() if letter.source in named}
        elif len(text) < SHORTEST_ID:
            raise SettingsError(
                f"{text!r} is too short to name a dead letter; give {SHORTEST_ID} characters of its id or more, or "
                "coordinates as topic[partition]@offset"
            )
        else:
            ids = {letter_id for letter_id in self._first if letter_id.startswith(text.lower())}
            if len(ids) > 1:
                some = ", ".join(sorted(ids)[:5])
                raise SettingsError(f"{text} is the beginning of {len(ids)} ids ({some}); give more characters")
        if not ids:
            raise NotFoundError(
                f"there is no dead letter {text}, and none about a record there; `streamward admin dlq list --all` "
                "shows every one"
            )
        return sorted((self._first[letter_id] for letter_id in ids), key=lambda letter: letter.at)


# --- reading ----------------------------------------------------------------------------------------------------------


def load(settings: Settings) -> Letters:
    """Return all dead letters and decisions up to the present end of the topic; unreadable ones are logged.

    Raises NotFoundError if the topic does not exist, LogError if the broker does not answer.
    """
    bounds = admin.offsets(settings, ["dead-letters"])
    letters = Letters({tp: low for tp, (low, _) in bounds.items()})
    go_on(settings, letters, {tp: high for tp, (_, high) in bounds.items()})
    return letters


def go_on(settings: Settings, letters: Letters, ends: Mapping[TopicPartition, int]) -> None:
    """Read more, to below `ends`. Raises LogError if the broker does not answer."""
    ahead = {tp: end for tp, end in ends.items() if end > letters.next_offsets[tp]}
    for record in read(settings, {tp: letters.next_offsets[tp] for tp in ahead}, ahead):
        found = parse(record)
        if isinstance(found, Poison):
            log.warning("skipped, not a dead letter: %s", found.error, extra=record.log_extra)
        else:
            letters.take(found)
    letters.next_offsets.update(ahead)


def topic_named(settings: Settings, letters: Letters, text: str) -> str:
    """Return the full name of a source topic, given by its label or as the dead letters have it.

    Raises NotFoundError with the known topics.
    """
    known = {label: topic.name for label, topic in topics(settings.topics).items()}
    names = {*known.values(), *(letter.event.source_topic for letter in letters.matching())}
    name = known.get(text, text)
    if name not in names:
        raise NotFoundError(f"no dead letter is about a topic {text!r}; there are {', '.join(known)}")
    return name
