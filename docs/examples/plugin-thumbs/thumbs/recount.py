"""The audit's recount: each thumb counts once, and is about an answer that is in the log."""

from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import RecountSum, SubjectRecount
from thumbs.topics import Thumb


class ThumbRecount(SubjectRecount):
    labels, counts = ("thumbs", "responses"), ("thumbs",)
    sums = (RecountSum("thumbs", ("thumbs",), {"up": "thumbs up", "down": "thumbs down"}),)

    def __init__(self):
        self._thumbs, self._answers = {}, set()

    def take(self, record, event):
        """Take in a thumb, or an answer."""
        if isinstance(event, Thumb):
            self._thumbs.setdefault(event.thumb_id, (record.at, event))
        else:
            self._answers.add(event.response_id)

    def report(self, view, policy):
        """Return what is wrong with the thumbs; nothing of one policy, since a thumb names none."""
        outcome = RecountOutcome()
        for at, thumb in self._thumbs.values() if policy is None else ():
            if thumb.answer_id not in self._answers and not view.is_cut("responses", at.partition):
                outcome.find("phantom", at, f"it is about answer {thumb.answer_id}, which is not in the log")
            outcome.counts.update(["thumbs", "thumbs up" if thumb.up else "thumbs down"])
        return outcome


RECOUNTS = (ThumbRecount,)
