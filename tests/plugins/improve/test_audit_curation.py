"""The audit recounts verdicts on runs by its own code, and names what is forged, changed or missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plugins.improve.curation.agreement import agreements
from plugins.improve.curation.curation_state import CurationState
from plugins.improve.curation.ended_run import EndedRun, ended_run
from plugins.improve.curation.promotion_guard import GroundedVerdict, event_of, verdict_after_judge
from plugins.improve.curation.verifier import JudgeVerdict
from plugins.improve.settings import Improve
from schemas.conventions import CONVERSATION
from schemas.event_types import Octets
from schemas.events import Coordinates, CurationEvent, Event, GateResult, RunVerdict, TrajectoryEvent, derive_id
from streams.settings.model import Settings
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.audit.report import Report
from tests.plugins.improve.runs import chat_turn, finished, judge_of
from tests.support.factories import T0, group, trajectory
from tests.support.log.whole_run import SETTINGS, TOPICS, Written, ends
from tests.support.talks import TALK, served, talk

RULE = Improve(min_runs=10, window=20, gates="max_turns=3")
RULES = Settings(topics=SETTINGS.topics).model_copy(update={"improve": RULE})


def sealed(event: CurationEvent) -> CurationEvent:
    """Return what a verdict on a person's run is without the key."""
    return replace(event, rationale="", transcript_digest="", subject="p", sealed=Octets(b"1"))


class Curated:
    """A log in which runs end, and gates, a judge and people give their verdicts in turn."""

    def __init__(self, *, seals: bool = False) -> None:
        self.log = Written()
        self._opened = Written() if seals else self.log
        self.state = CurationState(RULES)
        self._ms = T0

    def write(self, event: Event) -> Coordinates:
        self._ms += 1
        record = self._opened.write(event, self._ms)
        if isinstance(event, CurationEvent):
            self.state.take(record)
        if self.log is not self._opened:
            self.log.write(sealed(event) if isinstance(event, CurationEvent) else event, self._ms)
        return record.at

    def ended(self, name: str) -> EndedRun:
        """A run of one turn that has ended, as its curator reads it."""
        run = finished(chat_turn(0, run=name), run=name)
        assert run.ended is not None
        self.write(trajectory("started", trajectory_id=name, task_id=name, sampling_id=None, slot=None,
                              group_size=None, purpose="serve"))  # fmt: skip
        self.write(run.run.steps[0].turn)  # type: ignore[union-attr]
        at = self.write(run.ended)
        return ended_run(replace(run, position=at), RULES)

    def decide(self, case: EndedRun, verdict: RunVerdict, actor: str = "ann") -> CurationEvent:
        return self._write(case, GroundedVerdict(verdict=verdict, labeller="person", rationale="so"), actor)

    def judged(self, case: EndedRun, says: RunVerdict, **of_judge: Any) -> CurationEvent:
        judged = JudgeVerdict(judge_of(verdict=says, **of_judge), "so")
        return self._write(case, verdict_after_judge(case, judged, RULE, self.state.judges()), "curate")

    def _write(self, case: EndedRun, verdict: GroundedVerdict, actor: str) -> CurationEvent:
        self._ms += 1
        before = self.state.fold.effective(case.row.answer_id)
        event = event_of(case, verdict, actor=actor, before=before, now_ms=self._ms)
        self.write(event)
        return event

    def agree(self, count: int = 12) -> None:
        """People and the judge agree about so many runs, of which half are good."""
        for number in range(count):
            case = self.ended(f"agreed-{number}")
            verdict: RunVerdict = "promote" if number % 2 else "reject"
            self.judged(case, verdict)
            self.decide(case, verdict)

    def report(self, *changes: Event) -> Report:
        for event in changes:
            self.write(event)
        return recount(self.log.records, RULES, Reach(ends=ends(self.log.records), settled=True))

    def wrong(self, *changes: Event) -> list[str]:
        return [f"{finding.category}: {finding.what}" for finding in self.report(*changes).wrong]


@pytest.fixture(scope="module")
def promotion() -> CurationEvent:
    """A promotion by a judge that is known to agree with people."""
    log = Curated()
    log.agree()
    event = log.judged(log.ended("run"), "promote")
    assert event.verdict == "promote" and event.agreement is not None and event.agreement.runs == 12
    return event


def agreed() -> Curated:
    log = Curated()
    log.agree()
    log.ended("run")
    return log


def test_a_log_with_verdicts_of_gates_a_judge_and_people_balances(promotion: CurationEvent) -> None:
    log = agreed()
    case = log.ended("gated")
    log._write(case, GroundedVerdict(verdict="needs_human", labeller="gates", rationale="no judge"), "curate")
    log.decide(case, "promote")
    log.decide(case, "reject", actor="bob")
    assert log.wrong(promotion) == []
    assert log.report().plain()["verdicts"] == 28
    measured = agreements(log.state.fold, RULE.window)
    assert [agreement.table.runs for agreement in measured.values()] == [12]


def test_a_verdict_on_a_run_of_a_task_names_its_group() -> None:
    log = Curated()
    at = log.write(group(task_id="t1", policy="default"))
    named = agreed().state  # any verdict of a person will do
    event = next(iter(named.fold)).event
    of_task = replace(
        event, task_id="t1", source_topic=at.topic, source_partition=at.partition, source_offset=at.offset
    )
    assert not any("not the end of run" in what for what in log.wrong(of_task))
    elsewhere = replace(of_task, task_id="t2", event_id="another")
    assert any("is not the end of run" in what for what in log.wrong(elsewhere))


def test_sealed_verdicts_balance_and_what_is_in_clear_in_them_is_recounted(promotion: CurationEvent) -> None:
    log = Curated(seals=True)
    log.agree()
    log.ended("run")
    assert log.wrong(promotion) == []
    forged = replace(promotion, event_id="another", source_offset=0)
    assert log.wrong(forged) == ["contradictory: log.trajectories[0]@0 is not the end of run run"]


def test_the_same_verdict_twice_is_a_repetition(promotion: CurationEvent) -> None:
    log = agreed()
    report = log.report(promotion, promotion)
    assert report.wrong == [] and [finding.accounted for finding in report.of("repeated")] == [True]


HARMS: dict[str, tuple[dict[str, Any], str]] = {
    "its id": ({"event_id": "forged"}, "phantom: its id is not that of its run"),
    "its actor": ({"actor": "bob"}, "phantom: its id is not that of its run"),
    "its source": ({"source_offset": 0, "source_topic": TOPICS["tasks"].name}, "phantom: it is about log.tasks"),
    "its run": ({"source_offset": 0}, "contradictory: log.trajectories[0]@0 is not the end of run run"),
    "what it supersedes": ({"supersedes": "unknown"}, "lost: it supersedes unknown, which is not before it"),
    "its gate": (
        {"gates": (GateResult(gate="max_turns", value=9.0, bound=3.0, passed=True),)},
        "contradictory: gate max_turns is passed with 9.0 and the bound 3",
    ),
    "a figure that it has not": (
        {"gates": (GateResult(gate="min_score", value=None, bound=0.0, passed=True),)},
        "contradictory: gate min_score is passed with None",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_verdict_that_was_changed_is_named(harm: str, promotion: CurationEvent) -> None:
    changes, expected = HARMS[harm]
    wrong = agreed().wrong(replace(promotion, **changes))
    assert any(what.startswith(expected) for what in wrong), wrong


def claim(promotion: CurationEvent, **changes: Any) -> CurationEvent:
    assert promotion.agreement is not None
    return replace(promotion, agreement=replace(promotion.agreement, **changes))


CLAIMS: dict[str, dict[str, Any]] = {
    "more runs than there are": {"runs": 13},
    "a higher kappa": {"kappa": 0.99999},
    "a higher lower end": {"low": 0.99},
    "none of the runs": {"counted": (0, 0)},
    "another window": {"window": 4},
    "runs from after it": {"counted": (10_000, 10_000)},
}


@pytest.mark.parametrize("what", CLAIMS)
def test_a_promotion_by_a_judge_before_the_agreement_that_it_needs_is_named(
    what: str, promotion: CurationEvent
) -> None:
    wrong = agreed().wrong(claim(promotion, **CLAIMS[what]))
    assert any("agrees with people in" in text or "come after it" in text for text in wrong), wrong


def test_a_promotion_whose_evidence_was_dropped_from_the_log_is_named(promotion: CurationEvent) -> None:
    log = Curated()
    log.agree(11)
    log.ended("agreed-11")
    log.ended("run")
    assert any("and in 11 with" in what for what in log.wrong(promotion))


def test_a_promotion_by_another_judge_at_the_same_url_is_named(promotion: CurationEvent) -> None:
    assert promotion.judge is not None
    changed = replace(promotion, judge=replace(promotion.judge, model="judge-2"))
    assert any("and in 0 with" in what for what in agreed().wrong(changed))


def test_a_promotion_by_a_version_of_the_policy_that_it_judges_is_named(promotion: CurationEvent) -> None:
    assert promotion.judge is not None
    changed = replace(promotion, judge=replace(promotion.judge, policy="default", version=1))
    assert any("a version of default promotes a run of default" in what for what in agreed().wrong(changed))


def on_conversation(runs: tuple[str, ...] = ("run0", "run1"), answer_id: str = TALK) -> list[str]:
    """Return what the audit finds of a person's verdict on these runs of a conversation of two."""
    log = Curated()
    places = [log.write(event) for run in talk("one", "two") for event in run]
    end = places[-1] if runs[-1] == "run1" else places[2]
    row = replace(ended_run(finished(), RULES).row, answer_id=answer_id, task_id=TALK)
    case = replace(ended_run(finished(), RULES), row=row, finished=replace(finished(), position=end))
    verdict = GroundedVerdict(verdict="promote", labeller="person", rationale="so")
    event = event_of(case, verdict, actor="ann", before=None, now_ms=T0)
    return [what for what in log.wrong(replace(event, runs=runs)) if "conversation is not" not in what]


def test_a_verdict_on_a_conversation_names_each_run_of_it_in_order_up_to_the_end_that_it_names() -> None:
    assert on_conversation() == on_conversation(("run0",)) == on_conversation(("run1",), "run1") == []
    assert on_conversation(("run1",)) == ["contradictory: it leaves out run run0 of its conversation"]
    assert on_conversation(("run1", "run0")) == [
        f"contradictory: its runs are not those of conversation {TALK} in order"
    ]


@pytest.mark.parametrize("left_out", [False, True])
def test_a_verdict_on_a_thread_of_tasks_is_about_all_of_them_and_the_group_of_the_last(left_out: bool) -> None:
    log, runs = Curated(), served("one", "two")
    end = [log.write(event) for run in runs for event in run][-1]
    name = next(event.metadata[CONVERSATION] for event in runs[0] if isinstance(event, TrajectoryEvent))
    row = replace(ended_run(finished(), RULES).row, answer_id=name, task_id=name)
    case = replace(ended_run(finished(), RULES), row=row, finished=replace(finished(), position=end))
    verdict = GroundedVerdict(verdict="promote", labeller="person", rationale="so")
    event = event_of(case, verdict, actor="ann", before=None, now_ms=T0)
    ids = [derive_id(f"s{place}", 0) for place in range(2)]
    told = [what for what in log.wrong(replace(event, runs=tuple(ids[left_out:]))) if "run" in what]
    assert told == [f"contradictory: it leaves out run {ids[0]} of its conversation"][: int(left_out)]
