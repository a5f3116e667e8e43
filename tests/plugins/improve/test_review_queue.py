"""Which runs people are shown, in which order, and that a row says nothing of what the judge said."""

from __future__ import annotations

from itertools import count

from plugins.improve.curation import curation_view
from plugins.improve.curation.curation_state import CurationState
from plugins.improve.settings import Improve
from schemas.events import Coordinates, RunVerdict, derive_id
from streams.settings.model import Settings
from tests.plugins.improve.runs import judge_of
from tests.support.factories import T0, curation_event

SECRET = "The judge finds it PERFECT."


class Queue:
    """The state of a log with these verdicts."""

    def __init__(self, **rule: float) -> None:
        self.state = CurationState(Settings().model_copy(update={"improve": Improve.model_validate(rule)}))
        self._count = count()

    def judged(self, run: str, says: RunVerdict, verdict: RunVerdict | None = None) -> None:
        decided = verdict or ("reject" if says == "reject" else "needs_human")
        self._take(run, labeller="judge", actor="curate", verdict=decided, judge=judge_of(verdict=says))

    def decide(self, run: str, verdict: RunVerdict) -> None:
        self._take(run, verdict=verdict)

    def gated(self, run: str, verdict: RunVerdict) -> None:
        self._take(run, labeller="gates", actor="curate", verdict=verdict)

    def _take(self, run: str, **changes: object) -> None:
        number = next(self._count)
        ids = {"task_id": run, "answer_id": run, "event_id": derive_id("verdict", number), "created_at": T0 + number}
        self.state.fold.take(Coordinates("curation", 0, number), curation_event(**ids | changes))

    @property
    def runs(self) -> list[str]:
        return [placed.event.answer_id for placed in self.state.review_queue()]


def test_runs_that_need_a_person_wait_the_oldest_first_and_what_gates_decide_does_not() -> None:
    queue = Queue()
    queue.gated("b", "needs_human")
    queue.gated("a", "needs_human")
    queue.gated("long", "reject")
    assert queue.runs == ["b", "a"]
    queue.decide("b", "reject")
    assert queue.runs == ["a"]


def test_rejected_runs_wait_too_while_the_judge_is_not_known_so_that_agreement_is_of_both() -> None:
    queue = Queue(min_runs=10, review_share=0)
    queue.judged("good", "promote")
    queue.judged("bad", "reject")
    assert queue.runs == ["good", "bad"]
    for number in range(10):
        queue.judged(f"run-{number}", "promote" if number % 2 else "reject")
        queue.decide(f"run-{number}", "promote" if number % 2 else "reject")
    assert queue.runs == ["good"], "which was not promoted, as the judge was not known then"


def test_of_what_a_known_judge_decides_people_are_shown_a_share() -> None:
    shown = {}
    for share in (0.0, 0.2, 1.0):
        queue = Queue(min_runs=10, review_share=share)
        for number in range(10):
            queue.judged(f"run-{number}", "promote" if number % 2 else "reject")
            queue.decide(f"run-{number}", "promote" if number % 2 else "reject")
        for number in range(400):
            queue.judged(f"new-{number}", "reject")
        shown[share] = set(queue.runs)
    assert (len(shown[0.0]), len(shown[1.0])) == (0, 400)
    assert 40 < len(shown[0.2]) < 130 and shown[0.2] < shown[1.0]


def test_a_row_of_the_queue_has_nothing_that_the_judge_said() -> None:
    queue = Queue()
    queue.judged("run", "promote")
    [placed] = queue.state.review_queue()
    row = curation_view.queued_run(placed)
    assert row.keys() & {"verdict", "rationale", "judge", "labeller", "actor"} == set()
    assert row["verdict_id"] == placed.event.event_id
