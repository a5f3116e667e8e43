"""Which runs people are shown, in which order, and what the page says of them: data, and not what the judge said."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gateway.page import app
from schemas.events import Coordinates, Event, Message, RunVerdict, derive_id
from streams.improve.curation import curation_view
from streams.improve.curation.curation_state import CurationState
from streams.improve.curation.promotion_guard import RunRuling, event_of
from streams.improve.curation.run_case import run_case
from streams.kafka.topics import LABELS
from streams.settings.model import Archive, RunCuration, Settings, Topics
from streams.tools.views.log_view import LogView
from tests.support.factories import T0, curation_event, trajectory
from tests.support.log.archive_of import archived
from tests.support.runs import chat_turn, finished, judge_of

SECRET = "The judge finds it PERFECT."


class Queue:
    """The state of a log with these verdicts."""

    def __init__(self, **rule: float) -> None:
        self.state = CurationState(Settings(curation=RunCuration.model_validate(rule)))
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


HOSTILE = '<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m \u202e </pre><form action="http://evil.example">'


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    """The page of an archive in which a run waits that says odd things."""
    settings = Settings(
        archive=Archive(store=str(tmp_path / "archive")), topics=Topics(partitions=1, policy_partitions=1)
    )
    question = Message(role="user", content=HOSTILE)
    run = finished(chat_turn(0, messages=(question,)), reason=HOSTILE)
    assert run.run is not None and run.ended is not None
    chat = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
    case = run_case(run, settings)
    ruling = RunRuling(verdict="needs_human", labeller="judge", rationale=SECRET, judge=judge_of(answer=SECRET))
    log: dict[str, list[Event | bytes]] = {label: [] for label in LABELS}
    log["trajectories"] = [trajectory("started", trajectory_id="run-1", task_id="run-1", **chat), run.ended]
    log["turns"] = [run.run.steps[0].turn]
    log["curation"] = [event_of(case, ruling, actor="curate", before=None, now_ms=T0)]
    archived(settings, log, count(T0, 1000))
    return TestClient(app.create_app(LogView(settings, "archive")), base_url="http://127.0.0.1")


def test_what_a_run_says_is_text_on_the_page_and_what_its_judge_says_is_nowhere(page: TestClient) -> None:
    answer = page.get("/curation/queue")
    assert answer.status_code == 200 and "1 run waits" in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text and "{{ 7 * 7 }}" in answer.text
    assert "<script>alert" not in answer.text and "evil.example&#34;&gt;" in answer.text
    assert not re.search("[\x1b\u202e]", answer.text)
    assert SECRET not in answer.text and "judge-1" not in answer.text


def test_a_page_that_only_shows_names_the_command_and_has_no_form(page: TestClient) -> None:
    text = page.get("/curation/queue").text
    assert "streamward improve curate decide run-1 promote" in text and "<form" not in text
    assert page.post("/curation/queue", data={}).status_code == 405
