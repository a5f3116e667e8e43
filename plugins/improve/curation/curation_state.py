"""Fold of the verdicts in the log: judged runs, agreement of judges with people, and the review queue.

    curation, from its first record ──► VerdictFold ──► agreements ──► MeasuredJudges, for rulings
                                            └──► review queue: runs that wait for a person

The queue has the runs that need a person. Until a judge is known to agree with people, it also has all runs that the
judge decided, including rejected ones: agreement is measured from both. Later it has a share of them, so that a judge
that gets worse is noticed. The order is by time, so it does not reveal why a run is there.
"""

from __future__ import annotations

from plugins.improve.curation.agreement import Agreement, JudgeIdentity, agreements
from plugins.improve.curation.promotion_guard import MeasuredJudges
from plugins.improve.curation.verdicts import PlacedVerdict, VerdictFold
from plugins.improve.settings import Improve
from schemas.events import CurationEvent
from schemas.serde import Poison
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings

ID_DIGITS = 8
"""Hexadecimal digits of an event's id that decide whether people are shown its run."""


class CurationState:
    """The fold of `curation`."""

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.of_plugin(Improve)
        self._partitions = topics(settings.topics)["curation"].partitions
        self._next = [0] * self._partitions
        self.fold = VerdictFold()

    def take(self, record: Record) -> PlacedVerdict | None:
        """Add a record, and return its verdict; None if it has none."""
        event = record.decode_placed(CurationEvent, self._partitions)
        if record.at.partition < self._partitions:
            self._next[record.at.partition] = record.at.offset + 1
        if isinstance(event, Poison):
            return None
        self.fold.take(record.at, event)
        return PlacedVerdict(record.at, event)

    def agreements(self) -> dict[JudgeIdentity, Agreement]:
        """Return the agreement of every judge with people."""
        return agreements(self.fold, self._rule.window)

    def judges(self) -> MeasuredJudges:
        """Return how well judges agree with people now."""
        return MeasuredJudges(of_judge=lambda judge: self.agreements().get(judge), counted=tuple(self._next))

    def review_queue(self) -> list[PlacedVerdict]:
        """Return the machine verdicts that wait for a person, the oldest first."""
        by_judge = self.agreements()
        waiting = [
            machine
            for answer_id in self.fold.answer_ids
            for person, machine in [self.fold.pair(answer_id)]
            if person is None and machine is not None and self._is_shown(machine.event, by_judge)
        ]
        return sorted(waiting, key=lambda placed: (placed.event.created_at, placed.event.event_id))

    def _is_shown(self, event: CurationEvent, by_judge: dict[JudgeIdentity, Agreement]) -> bool:
        """Return whether people are shown the run of a verdict."""
        if event.verdict == "needs_human":
            return True
        if event.judge is None:
            return False
        agreement = by_judge.get(JudgeIdentity.of(event.judge)) or Agreement.none(event.judge)
        if agreement.doubt(self._rule) is not None:
            return True
        return int(event.event_id[:ID_DIGITS], 16) < self._rule.review_share * (1 << 4 * ID_DIGITS)
