"""The audit's recount: each thumb is about an answer that is in the log, and counts once."""

from schemas.event_types import Coordinates, derive_id
from schemas.events import Response
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import RecountSum, SubjectRecount
from streams.tools.audit.view import AuditView
from thumbs.topics import Thumb


class ThumbRecount(SubjectRecount):
    """The recount of thumbs."""

    labels, counts = ("thumbs", "responses"), ("thumbs",)
    sums = (RecountSum("thumbs", ("thumbs",), {"up": "thumbs up", "down": "thumbs down"}),)

    def __init__(self) -> None:
        self._thumbs: dict[str, tuple[Coordinates, Thumb]] = {}
        self._answers: set[str] = set()

    def take(self, record: Record, event: Thumb | Response) -> None:
        """Take in a thumb, or an answer."""
        if isinstance(event, Thumb):
            self._thumbs.setdefault(event.thumb_id, (record.at, event))
        else:
            self._answers.add(event.response_id)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the thumbs; nothing of one policy, since a thumb names none."""
        outcome = RecountOutcome()
        for at, thumb in self._thumbs.values() if policy is None else ():
            if thumb.thumb_id != derive_id(thumb.answer_id, thumb.actor, thumb.created_at):
                outcome.find("contradictory", at, "its id is not that of its answer, actor and time")
            if thumb.answer_id not in self._answers and not view.is_cut("responses", at.partition):
                outcome.find("phantom", at, f"it is about answer {thumb.answer_id}, which is not in the log")
            outcome.counts.update(["thumbs", "thumbs up" if thumb.up else "thumbs down"])
        return outcome


RECOUNTS = (ThumbRecount,)
