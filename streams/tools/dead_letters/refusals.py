"""Which adapter versions an agent has refused to load.

    dead-letters [of the policy's partition]: stage policy, about a `trained` event, open ──► Refusal, by version

An agent that cannot load a version writes a dead letter about the event that announced it, and answers with the version
before it. The log records this nowhere else: the version stays primary, since another agent may serve it. Once the
adapter is repaired and the agent restarted, `streamward admin dlq drop` closes the dead letter and so ends the
refusal, until an agent refuses the version again.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas import serde
from schemas.events import AdapterEvent, Coordinates
from streams.adapters.versions import AdapterState
from streams.errors import EventError
from streams.kafka import admin
from streams.kafka.reader import read
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.dead_letters.letters import Letter, LetterDecision, Matching, parse
from streams.tools.dead_letters.originals import originals


class Refusal(NamedTuple):
    """A version that an agent refused."""

    version: int
    reason: str
    """bad_adapter, bad_signature or wrong_base."""
    error: str
    at: int
    """When an agent last refused it, milliseconds since the epoch."""
    letter: str
    """Id of the dead letter."""
    answers: int
    """The version that answers in its place there."""


class Refusals:
    """The refusals of one policy's versions; each `look` reads what is new."""

    def __init__(self, settings: Settings, policy: str) -> None:
        self._settings, self._policy = settings, policy
        named = topics(settings.topics)
        partition = partition_of(policy, named["dead-letters"].partitions)  # the key of a dead letter is its source's
        self._tp = (named["dead-letters"].name, partition)
        self._wanted = Matching(stage="policy", topic=named["adapters"].name)
        self._next = 0
        self._open: dict[Coordinates, Letter] = {}
        """By the event that announced the version; the newest."""
        self._versions: dict[Coordinates, int | None] = {}

    def look(self, state: AdapterState) -> list[Refusal]:
        """Return the refusals that are open, by version. Raises LogError if the broker does not answer."""
        low, high = admin.offsets(self._settings, ["dead-letters"])[self._tp]
        for record in read(self._settings, {self._tp: max(low, self._next)}, {self._tp: high}):
            found = parse(record)
            if isinstance(found, LetterDecision):
                self._open.pop(found.source, None)
            elif isinstance(found, Letter) and self._wanted.wants(found):
                self._open[found.source] = found
        self._next = high
        self._learn([letter for source, letter in self._open.items() if source not in self._versions])
        by_version = {self._versions[source]: letter for source, letter in self._open.items()}
        of_state = {version: letter for version, letter in by_version.items() if version is not None}
        answers = state.primary_without(of_state)
        return [
            Refusal(
                version,
                letter.event.reason,
                letter.event.error,
                letter.written_ms,
                letter.event.dead_letter_id,
                answers,
            )
            for version, letter in sorted(of_state.items())
        ]

    def _learn(self, letters: list[Letter]) -> None:
        """Find out which version of this policy each of these is about."""
        for letter, original in originals(self._settings, letters):
            event = None if isinstance(original, EventError) else serde.decode(original.payload, AdapterEvent)
            is_ours = isinstance(event, AdapterEvent) and event.policy == self._policy
            self._versions[letter.source] = event.version if is_ours else None  # type: ignore[union-attr]
