"""Self-play on a real log: schedulers that are doubled, killed and away; figures; and POST /run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plugins.improve.selfplay.catalogue import Catalogue, catalogue_of
from plugins.improve.selfplay.curriculum import CELL
from plugins.improve.selfplay.selfplay_runner import GRACE_MS
from plugins.improve.triggers.retrain_reducer import tick_event
from plugins.improve.triggers.tick_schedule import TickSchedule
from plugins.improve.triggers.trigger_log import TriggerLog
from schemas.events import Task, TriggerEvent, derive_id
from streams.settings.model import Settings
from streams.tools.audit.reading import Audit
from streamward import SelfPlayRunner
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0, group, member, trigger_event
from tests.support.processes import read, write

pytestmark = pytest.mark.kafka
HOUR_MS = 3_600_000
HOURLY = TickSchedule(HOUR_MS)
QUESTIONS = [{"question": f"{n} + {n} =", "expected": 2 * n} for n in range(6)]


def catalogue(**changes: Any) -> Catalogue:
    scenario = {"name": "sums", "category": "easy", "questions": QUESTIONS}
    return catalogue_of({"name": "arithmetic", "scenarios": [scenario]} | changes)


def asked(settings: Settings) -> Counter[str]:
    return Counter(task.task_id for _, task in read(settings, Task))


def test_two_schedulers_at_once_ask_every_question_once_an_hour(made: Settings) -> None:
    with TriggerLog(made) as one, TriggerLog(made) as other:
        runners = [SelfPlayRunner(made, catalogue(), log) for log in (one, other)]
        for minute in range(0, 180, 10):
            for runner in runners:
                runner.step(HOURLY, T0 + minute * 60_000)
    assert len(asked(made)) == 3 * len(QUESTIONS)
    assert set(asked(made).values()) == {1}
    ticks = [event.due_at for _, event in read(made, TriggerEvent) if event.kind == "ticked"]
    assert set(ticks) == {T0 // HOUR_MS * HOUR_MS + hour * HOUR_MS for hour in range(3)}


def test_after_three_missed_hours_a_catalogue_is_asked_once(made: Settings) -> None:
    with TriggerLog(made) as log:
        SelfPlayRunner(made, catalogue(), log).step(HOURLY, T0)
        for _ in range(3):
            SelfPlayRunner(made, catalogue(), log).step(HOURLY, T0 + 4 * HOUR_MS)
        SelfPlayRunner(made, catalogue(), log).step(HOURLY, T0 + HOUR_MS)  # the clock jumps back
    assert len(asked(made)) == 2 * len(QUESTIONS) and set(asked(made).values()) == {1}


def test_a_run_whose_process_was_killed_before_it_asked_is_asked_by_the_next(made: Settings) -> None:
    of = catalogue()
    with TriggerLog(made) as log:
        about = {"rule": of.rule, "rule_digest": of.digest, "job_id": None}
        ids = {"event_id": derive_id(of.rule, "crossed", 1)}
        crossed = {"signal": "schedule", "action": "selfplay", "due_at": T0, "created_at": T0}
        tick = tick_event(log.state(of.rule), HOURLY, T0, policy="default", tenant=None, digest=of.digest)
        assert tick is not None and log.append(tick)
        assert log.append(trigger_event("crossed", 1, **about, **ids, **crossed))
        assert not asked(made)
        following = SelfPlayRunner(made, catalogue(), log)
        following.step(HOURLY, T0 + GRACE_MS)
        following.step(HOURLY, T0 + GRACE_MS + 1)
    assert len(asked(made)) == len(QUESTIONS) and set(asked(made).values()) == {1}


def test_a_curriculum_asks_by_the_success_that_the_log_has_and_its_event_says_which(made: Settings) -> None:
    part = {"cells": {"digits": [1, 2]}, "floor": 0.05, "most_of_one": 0.9}
    drawn = {"name": "drawn", "generator": "sums", "count": 40, "curriculum": part}
    of = catalogue(purpose="train", group_size=4, scenarios=[drawn])
    with TriggerLog(made) as log:
        SelfPlayRunner(made, of, log).step(HOURLY, T0)
        first = [task for _, task in read(made, Task)]
        answers = [
            group(
                task_id=task.task_id,
                metadata=dict(task.metadata),
                responses=tuple(
                    member(slot, reward=value, components={"exact": value}, response_id=f"{task.task_id}-{slot}")
                    for slot, value in enumerate([1.0, 1.0, 1.0, 1.0] if "digits=1" in task.metadata[CELL] else [1, 0])
                ),
            )
            for task in first
        ]
        write(made, *answers)
        SelfPlayRunner(made, of, log).step(HOURLY, T0 + HOUR_MS)
        crossing = log.state(of.rule).crossing
    assert crossing is not None
    asked = sum(task.metadata["selfplay_run"] == crossing.event_id for _, task in read(made, Task))
    assert crossing.evidence == {"drawn/digits=1": 1.0, "drawn/digits=2": 0.5, "tasks": asked}
    assert [part.next for part in crossing.ranges] == [len(first)]
    second = [task for _, task in read(made, Task) if task.metadata["selfplay_run"] == crossing.event_id]
    cells = Counter(task.metadata[CELL] for task in second)
    assert cells["digits=2"] > 4 * cells["digits=1"]


def test_the_commands_ask_once_show_figures_and_the_audit_counts_the_run(made: Settings, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    file.write_text(json.dumps({"name": "arithmetic", "scenarios": [{"name": "s", "questions": QUESTIONS}]}), "utf-8")
    (ran,) = rows_of(invoke(made, "improve", "selfplay", "run", str(file)))
    assert ran["questions"] == len(QUESTIONS)
    about: dict[str, Any] = {"purpose": "serve", "scenario": "s", "group_size": 1, "reward_mean": 1.0}
    for _, task in read(made, Task):
        right = member(0, reward=1.0, components={"exact": 1.0}, response_id=task.task_id)
        write(made, group(task_id=task.task_id, metadata=dict(task.metadata), responses=(right,), **about))
    (row,) = rows_of(invoke(made, "improve", "selfplay", "show", "arithmetic"))
    assert (row["category"], row["answers"], row["success"]) == ("default", len(QUESTIONS), 1.0)
    report = Audit(made).look()
    assert report.counts["crossings without a job"] == 1
    assert report.counts["self-play tasks"] == len(QUESTIONS)
    assert [finding for finding in report.wrong if "triggers" in finding.at.topic] == []
