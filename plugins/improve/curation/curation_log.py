"""Follow the verdicts in the log, and write those of people.

curation ──► a thread that follows ──► CurationState
promote, reject ──► event with the verdict that it supersedes ──► curation ──► own fold has passed it ──► answer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plugins.improve.curation.agreement import Agreement, JudgeIdentity
from plugins.improve.curation.curation_state import CurationState
from plugins.improve.curation.ended_run import EndedRun
from plugins.improve.curation.promotion_guard import GroundedVerdict, event_of
from plugins.improve.curation.verdicts import PlacedVerdict
from plugins.improve.folded_topic import FoldedTopic
from schemas.events import RATIONALE_CHARACTERS, RunVerdict
from streams.errors import RefusedError
from streams.kafka import times
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
        self._verdicts = FoldedTopic(settings, "curation", CurationState(settings), source)

    def of_run(self, answer_id: str) -> RecordedVerdicts:
        """Return the verdicts on a run."""
        with self._verdicts.now() as state:
            fold = state.fold
            return RecordedVerdicts(fold.effective(answer_id), fold.pair(answer_id)[1], dict(fold.by_person(answer_id)))

    def full_id(self, beginning: str) -> str:
        """Return the id of the run with a verdict that begins so; without one, what was named.

        Raises RefusedError if several begin so.
        """
        with self._verdicts.now() as state:
            answer_ids = state.fold.answer_ids
            if beginning in answer_ids:
                return beginning
            matches = sorted(answer_id for answer_id in answer_ids if beginning and answer_id.startswith(beginning))
        if len(matches) > 1:
            raise RefusedError(f"{len(matches)} runs begin with {beginning!r}, e.g. {matches[0]}; give more of the id")
        return matches[0] if matches else beginning

    def review_queue(self, tenant: str | None = None) -> list[PlacedVerdict]:
        """Return the machine verdicts that wait for a person, the oldest first; None: those of every tenant."""
        with self._verdicts.now() as state:
            return [placed for placed in state.review_queue() if tenant in (None, placed.event.tenant)]

    def agreements(self) -> dict[JudgeIdentity, Agreement]:
        """Return the agreement of every judge with people."""
        with self._verdicts.now() as state:
            return state.agreements()

    def newest_of(self, actor: str) -> tuple[PlacedVerdict | None, PlacedVerdict | None]:
        """Return the newest verdict of a person, and the newest of a machine on the same run."""
        with self._verdicts.now() as state:
            newest = state.fold.newest_of(actor)
            return newest, None if newest is None else state.fold.pair(newest.event.answer_id)[1]

    def effective(self) -> list[PlacedVerdict]:
        """Return the verdict that counts of every run that has one."""
        with self._verdicts.now() as state:
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
        [place] = self._verdicts.write(event)
        placed = PlacedVerdict(place, event)
        counting = self.of_run(event.answer_id).by_person.get(event.actor)
        if counting != placed:  # the same person, at the same moment
            raise RefusedError(f"{placed.at}: another verdict of {event.actor} came first; look at the run again")
        return placed


def _is_repeated(before: PlacedVerdict, run: EndedRun, decision: PersonDecision) -> bool:
    """Return whether a decision is the one that counts already."""
    event = before.event
    return (
        (event.labeller, event.actor, event.verdict) == ("person", decision.actor, decision.verdict)
        and event.rubric_digest == run.rubric.digest
        and event.transcript_digest == run.transcript.digest
    )
