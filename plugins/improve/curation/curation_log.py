"""Follow the verdicts in the log, and write those of people.

curation ──► a thread that follows ──► CurationState
promote, reject ──► event with the verdict that it supersedes ──► curation ──► own fold has passed it ──► answer
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plugins.improve.curation.agreement import Agreement, JudgeIdentity
from plugins.improve.curation.curation_state import CurationState
from plugins.improve.curation.ended_run import EndedRun
from plugins.improve.curation.promotion_guard import GroundedVerdict, event_of
from plugins.improve.curation.verdicts import PlacedVerdict
from schemas.events import RATIONALE_CHARACTERS, Coordinates, CurationEvent, RunVerdict
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.history import History
from streams.kafka.producer import Producer
from streams.kafka.record import TopicPartition
from streams.scorers.verdict import storable
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.archive.history import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonDecision:
    """What a person says of a run."""

    verdict: RunVerdict
    actor: str
    reason: str
    expect: str | None = None
    """Id of the verdict that counted when the run was shown; None: whichever does."""


class RecordedVerdicts(NamedTuple):
    """The verdicts on one run."""

    effective: PlacedVerdict | None
    """The verdict that counts."""
    machine: PlacedVerdict | None
    by_person: Mapping[str, PlacedVerdict]
    """The newest of each person; several verdicts: they disagree."""


class CurationLog:
    """Every verdict. Any thread may call its methods, which raise NotFoundError without the topic, and LogError."""

    def __init__(self, settings: Settings, source: Source = "auto") -> None:
        self.settings = settings
        self._source: Source = source
        self._history: History | None = None
        self._state = CurationState(settings)
        self._next: dict[TopicPartition, int] = {}
        self._reading = threading.Lock()

    def of_run(self, answer_id: str) -> RecordedVerdicts:
        """Return the verdicts on a run."""
        with self._state_now() as state:
            fold = state.fold
            return RecordedVerdicts(fold.effective(answer_id), fold.pair(answer_id)[1], dict(fold.by_person(answer_id)))

    def full_id(self, beginning: str) -> str:
        """Return the id of the run with a verdict that begins so; without one, what was named.

        Raises RefusedError if several begin so.
        """
        with self._state_now() as state:
            answer_ids = state.fold.answer_ids
            if beginning in answer_ids:
                return beginning
            matches = sorted(answer_id for answer_id in answer_ids if beginning and answer_id.startswith(beginning))
        if len(matches) > 1:
            raise RefusedError(f"{len(matches)} runs begin with {beginning!r}, e.g. {matches[0]}; give more of the id")
        return matches[0] if matches else beginning

    def review_queue(self) -> list[PlacedVerdict]:
        """Return the machine verdicts that wait for a person, the oldest first."""
        with self._state_now() as state:
            return state.review_queue()

    def agreements(self) -> dict[JudgeIdentity, Agreement]:
        """Return the agreement of every judge with people."""
        with self._state_now() as state:
            return state.agreements()

    def newest_of(self, actor: str) -> tuple[PlacedVerdict | None, PlacedVerdict | None]:
        """Return the newest verdict of a person, and the newest of a machine on the same run."""
        with self._state_now() as state:
            newest = state.fold.newest_of(actor)
            return newest, None if newest is None else state.fold.pair(newest.event.answer_id)[1]

    def effective(self) -> list[PlacedVerdict]:
        """Return the verdict that counts of every run that has one."""
        with self._state_now() as state:
            return list(state.fold)

    def decide(self, run: EndedRun, decision: PersonDecision) -> PlacedVerdict:
        """Write a person's verdict on a run, and return it. The same one again is written once.

        Raises RefusedError if another verdict counts than the one that was shown, LogError without a broker.
        """
        before = self.of_run(run.row.answer_id).effective
        if before is not None and _is_repeated(before, run, decision):
            return before
        counts = "" if before is None else before.event.event_id
        if decision.expect is not None and decision.expect != counts:
            newer = "no verdict counts" if before is None else f"{before.event.actor} said {before.event.verdict}"
            raise RefusedError(f"run {run.row.answer_id}: nothing was written: meanwhile {newer}; look at it again")
        verdict = GroundedVerdict(
            verdict=decision.verdict, labeller="person", rationale=storable(decision.reason)[:RATIONALE_CHARACTERS]
        )
        event = event_of(run, verdict, actor=decision.actor, before=before, now_ms=times.now_ms())
        placed = PlacedVerdict(self._write(event), event)
        counting = self.of_run(event.answer_id).by_person.get(event.actor)
        if counting != placed:  # the same person, at the same moment
            raise RefusedError(f"{placed.at}: another verdict of {event.actor} came first; look at the run again")
        return placed

    @contextmanager
    def _state_now(self) -> Iterator[CurationState]:
        """Yield the fold of what is in the log now."""
        with self._reading:
            if self._history is None:
                from streams.tools.archive import history  # needs deltalake, which a server without an archive has not

                self._history = history.of(self.settings, self._source)
            bounds = self._bounds(self._history)
            starts = {tp: self._next.get(tp, low) for tp, (low, _) in bounds.items()}
            ends = {tp: end for tp, (_, end) in bounds.items()}
            for record in self._history.read(starts, ends) if starts != ends else ():
                self._state.take(record)
            self._next = ends
            yield self._state

    def _bounds(self, records: History) -> dict[TopicPartition, tuple[int, int]]:
        try:
            return records.bounds(["curation"])
        except NotFoundError:
            if self._source != "archive":
                raise
            return {}  # it was archived before there were verdicts

    def _write(self, event: CurationEvent) -> Coordinates:
        places: list[Coordinates] = []
        with Producer(self.settings, linger_ms=0) as producer:
            producer.send(event, on_ack=places.append)
            producer.flush()
        return places[0]


def _is_repeated(before: PlacedVerdict, run: EndedRun, decision: PersonDecision) -> bool:
    """Return whether a decision is the one that counts already."""
    event = before.event
    return (
        (event.labeller, event.actor, event.verdict) == ("person", decision.actor, decision.verdict)
        and event.rubric_digest == run.rubric.digest
        and event.transcript_digest == run.transcript.digest
    )
