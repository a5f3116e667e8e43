"""Curators on a real log: killed, two at once, without their judge; and what people say."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from plugins.improve.curation.curation_log import CurationLog, PersonDecision
from plugins.improve.curation.curator import run_once
from plugins.improve.curation.run_lookup import find_run
from plugins.improve.settings import Improve
from schemas.events import CurationEvent, Message, RunVerdict
from streams.errors import NotFoundError, RefusedError
from streams.kafka import admin
from streams.kafka.history import LogHistory
from streams.scorers import ScoreError
from streams.settings.model import Scoring, Settings
from streams.tools.audit.reading import Audit
from streams.tools.query.finished import FinishedSelection
from streams.tools.views.log_view import LogView
from tests.plugins.improve.runs import chat_turn, events_of_chat
from tests.support.commands import invoke, rows_of
from tests.support.doubles.judge import JudgeServer, judging, raw, says
from tests.support.processes import command, environment, read, spawn, until, write

pytestmark = pytest.mark.kafka
VERDICTS: tuple[RunVerdict, ...] = ("promote", "reject")
SERVED = FinishedSelection(purpose="serve", unfit=True)


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with judging(says({"verdict": "promote", "rationale": "It is right."})) as state:
        yield state


@pytest.fixture
def log(settings: Settings, judge: JudgeServer) -> Settings:
    """Settings of a log in which runs are judged."""
    scoring = Scoring(judge_url=judge.url, judge_model="m", retries=0)
    curation = Improve(min_runs=10, gates="max_turns=3", review_share=0)
    judged = settings.model_copy(update={"scoring": scoring, "improve": curation})
    admin.apply_topics(judged)
    return judged


def write_runs(settings: Settings, names: list[str], *, turns: int = 1, text: str = "11") -> None:
    """Write runs that have ended."""
    reply = Message(role="assistant", content=text)
    calls = {name: [chat_turn(number, run=name, reply=reply) for number in range(turns)] for name in names}
    write(settings, *(event for name in names for event in events_of_chat(name, *calls[name])))


def verdicts(settings: Settings) -> list[CurationEvent]:
    return [event for _, event in read(settings, CurationEvent)]


def curate(settings: Settings, selection: FinishedSelection = SERVED) -> Counter[str]:
    return run_once(settings, selection, stop=threading.Event())


def decide(
    settings: Settings, run: str, verdict: RunVerdict, actor: str = "ann", expect: str | None = None
) -> CurationEvent:
    [event] = decide_each(settings, {run: verdict}, actor, expect)
    return event


def decide_each(
    settings: Settings, verdicts: Mapping[str, RunVerdict], actor: str = "ann", expect: str | None = None
) -> list[CurationEvent]:
    """Write what a person says of runs, who looks at all of them first."""
    view, curated = LogView(settings), CurationLog(settings)
    try:
        with view.snapshot() as snapshot:
            cases = [find_run(snapshot, LogHistory(settings), run) for run in verdicts]
    finally:
        view.close()
    decisions = [PersonDecision(verdict=each, actor=actor, reason="so", expect=expect) for each in verdicts.values()]
    return [curated.decide(case, decision).event for case, decision in zip(cases, decisions, strict=True)]


def wrong(settings: Settings) -> list[str]:
    """What the audit has to say of verdicts."""
    report = Audit(settings).look()
    return [finding.what for finding in report.wrong if finding.at.topic.endswith("curation")]


def test_each_run_gets_one_verdict_and_a_second_look_writes_nothing(log: Settings, judge: JudgeServer) -> None:
    write_runs(log, ["run-0", "run-1", "run-2"])
    write_runs(log, ["long"], turns=4)
    assert curate(log) == Counter(needs_human=3, reject=1, elsewhere=0)
    assert curate(log) == Counter(elsewhere=0)
    by_run = {event.answer_id: event for event in verdicts(log)}
    assert len(verdicts(log)) == len(by_run) == 4
    assert (by_run["long"].labeller, by_run["long"].rationale) == ("gates", "max_turns: 4, expected 3")
    assert by_run["run-0"].judge is not None and by_run["run-0"].judge.verdict == "promote"
    assert len(judge.requests) == 3
    assert wrong(log) == []


def test_verdicts_of_people_make_a_judge_known_and_then_it_promotes_alone(log: Settings, judge: JudgeServer) -> None:
    good, bad = [f"good-{n}" for n in range(6)], [f"bad-{n}" for n in range(6)]
    write_runs(log, good)
    curate(log)
    judge.answers = [says({"verdict": "reject", "rationale": "It is wrong."})]
    write_runs(log, bad, text="12")
    curate(log)
    curated = CurationLog(log)
    assert {placed.event.answer_id for placed in curated.review_queue()} == {*good, *bad}, "rejected ones, too"
    decide_each(log, {**dict.fromkeys(good, "promote"), **dict.fromkeys(bad, "reject")})
    judge.answers = [says({"verdict": "promote", "rationale": "It is right."})]
    write_runs(log, ["new"])
    assert curate(log)["promote"] == 1
    promoted = next(event for event in verdicts(log) if event.answer_id == "new")
    assert promoted.agreement is not None and (promoted.agreement.runs, promoted.agreement.kappa) == (12, 1.0)
    curated = CurationLog(log)
    assert curated.review_queue() == []
    [agreement] = curated.agreements().values()
    assert agreement.doubt(log.of_plugin(Improve)) is None
    assert wrong(log) == []


def test_a_judge_that_collapses_is_stopped_by_the_people_who_look_at_its_runs(
    log: Settings, judge: JudgeServer
) -> None:
    rule = log.of_plugin(Improve).model_copy(update={"window": 12, "review_share": 1.0})
    watched = log.model_copy(update={"improve": rule})
    for verdict in VERDICTS:
        runs = [f"{verdict}-{n}" for n in range(6)]
        judge.answers = [says({"verdict": verdict, "rationale": "So."})]
        write_runs(watched, runs)
        curate(watched)
        decide_each(watched, dict.fromkeys(runs, verdict))
    judge.answers = [says({"verdict": "promote", "rationale": "All is well."})]  # whatever it reads
    outcomes = []
    for n in range(3):
        write_runs(watched, [f"run-{n}"], text=str(n))
        outcomes.append(next(iter(+curate(watched))))
        curated = CurationLog(watched)
        assert [placed.event.answer_id for placed in curated.review_queue()] == [f"run-{n}"]
        decide(watched, f"run-{n}", "reject")
    assert outcomes == ["promote", "needs_human", "needs_human"]
    assert wrong(watched) == []


def test_an_outage_of_the_judge_decides_nothing(log: Settings, judge: JudgeServer) -> None:
    write_runs(log, ["run-0", "run-1"])
    write_runs(log, ["long"], turns=4)
    good = judge.answers
    judge.answers = [raw(b"overloaded", 503)]
    with pytest.raises(ScoreError, match="HTTP 503"):
        curate(log)
    assert [event.answer_id for event in verdicts(log)] == ["long"]
    judge.answers = good
    assert curate(log)["needs_human"] == 2


def test_a_person_decides_once_and_not_about_a_verdict_that_was_not_shown(log: Settings) -> None:
    write_runs(log, ["run-0"])
    curate(log)
    [machine] = verdicts(log)
    said = decide(log, "run-0", "promote", expect=machine.event_id)
    assert (said.supersedes, said.transcript_digest) == (machine.event_id, machine.transcript_digest)
    assert decide(log, "run-0", "promote") == said, "the same again is written once"
    with pytest.raises(RefusedError, match="ann said promote; look at it again"):
        decide(log, "run-0", "reject", actor="bob", expect=machine.event_id)
    other = decide(log, "run-0", "reject", actor="bob")
    curated = CurationLog(log)
    found = curated.of_run("run-0")
    assert found.effective is not None and found.effective.event == other
    assert found.machine is not None and found.machine.event == machine
    assert set(found.by_person) == {"ann", "bob"}
    with pytest.raises(NotFoundError, match="no run 'none'"):
        decide(log, "none", "reject")
    assert wrong(log) == []


@pytest.mark.kills
def test_curators_that_are_killed_and_share_the_runs_judge_each_once(
    log: Settings, judge: JudgeServer, tmp_path: Path
) -> None:
    names = [f"run-{n}" for n in range(60)]
    write_runs(log, names[:30])

    def judged() -> int:
        return len({event.answer_id for event in verdicts(log)})

    def start(out: Any) -> subprocess.Popen[bytes]:
        return spawn(command("improve", "curate", "follow"), env=environment(log), cwd=tmp_path, stdout=out, stderr=out)

    with (tmp_path / "curate.log").open("ab") as out:
        for goal in (1, 10, 20):
            victim = start(out)
            try:
                until(lambda goal=goal: judged() >= goal, f"{goal} verdicts", folder=tmp_path)
            finally:
                victim.kill()
                victim.wait()
        curators = [start(out), start(out)]
        try:
            write_runs(log, names[30:])
            until(lambda: judged() == 60, "60 verdicts", folder=tmp_path)
        finally:
            for curator in curators:
                curator.terminate()
            assert [curator.wait(300) for curator in curators] == [0, 0]
    events = verdicts(log)
    assert sorted({event.answer_id for event in events}) == sorted(names)
    assert len({event.event_id for event in events}) == 60, "a run that two judged at once has one id"
    assert wrong(log) == []


def run_cli(settings: Settings, *arguments: str) -> Result:
    return invoke(settings, *arguments, catch_exceptions=False)


def test_the_commands_judge_show_decide_and_measure(log: Settings, judge: JudgeServer) -> None:
    write_runs(log, ["run-0"])
    write_runs(log, ["long"], turns=4)
    counts = json.loads(run_cli(log, "improve", "curate", "run", "--output", "jsonl").stdout)
    assert counts == {"promote": 0, "reject": 1, "needs_human": 1, "elsewhere": 0}
    [queued] = rows_of(run_cli(log, "improve", "curate", "queue"))
    assert queued["run"] == "run-0" and "verdict" not in queued and "rationale" not in queued
    shown = json.loads(run_cli(log, "improve", "curate", "show", "run").stdout)
    assert shown["verdicts"] == [] and shown["transcript"][0]["role"] == "user"
    decided = json.loads(
        run_cli(log, "improve", "curate", "decide", "run-0", "reject", "--reason", "no", "--actor", "eve").stdout
    )
    assert (decided["verdict"], decided["labeller"], decided["actor"]) == ("reject", "person", "eve")
    assert run_cli(log, "improve", "curate", "queue").stdout == ""
    judged = json.loads(run_cli(log, "improve", "curate", "show", "run-0").stdout)["verdicts"]
    assert [verdict["labeller"] for verdict in judged] == ["person", "judge"], "the judge's comes after one's own"
    [agreement] = rows_of(run_cli(log, "improve", "curate", "agreement"))
    assert (agreement["model"], agreement["runs"], agreement["false_promotions"]) == ("m", 1, 1.0)
    assert agreement["promotes_alone"] is False
    table = run_cli(log, "improve", "curate", "agreement", "--output", "table").stdout
    assert "100.0 %" in table and "expected 10 (improve.min_runs)" in table
