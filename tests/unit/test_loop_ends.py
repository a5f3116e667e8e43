"""How a run of the loop ends: its last step, a run that teaches nothing, answers that are scored again."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from schemas.events import AdvantagedGroup, LeftOut, Response, Task
from streams.adapters.learning import LearningFigures
from streams.demo.failed_scores import FailedScores
from streams.demo.held_out_answers import HeldOutAnswers
from streams.demo.learning_watch import LearningWatch
from streams.demo.loop_run import LoopRun
from streams.demo.progress import Progress
from streams.demo.up_plan import UpPlan
from streams.settings.model import Batches, Learning, Scoring, Settings
from tests.support.factories import batch, group, response, scoreless, task, trained
from tests.unit.test_progress import Log

SETTINGS = Settings(batches=Batches(groups=2, max_policy_lag=0), learning=Learning(stop_after=3))


def progress_of(*events: Any, settings: Settings = SETTINGS) -> Progress:
    log, progress = Log(), Progress(settings)
    log.write(*events)
    for record in log.records:
        progress.fold(record)
    return progress


def unscored(task_id: str) -> list[Any]:
    """Return a task and its group, none of whose answers has a score: a diagnosis that needs no look into the log."""
    left = (LeftOut(slot=0, reason="score_failed"), LeftOut(slot=1, reason="score_failed"))
    asked = task(task_id=task_id, group_size=2)
    return [asked, group(task_id=task_id, dropped_reason="too_few_scored", responses=(), left_out=left)]


# --- nothing is learnt ------------------------------------------------------------------------------------------------


def test_a_run_that_teaches_nothing_ends_after_so_many_steps_of_its_own() -> None:
    """Those of an earlier run do not count: its cause may be mended."""
    progress = progress_of(*(event for n in range(6) for event in unscored(f"before{n}")))
    watch = LearningWatch(progress)
    assert watch.stop_reason() is None
    for n in range(6):
        progress.learning.take(unscored(f"now{n}")[1])
    assert watch.stop_reason() == "3 steps in a row taught nothing (learning.stop_after)"
    failure = watch.failure(trains=True) or ""
    assert failure.startswith(f"{watch.stop_reason()}. Nothing is learnt: none of the last 4 groups differed in reward")
    assert "No version was better than the one before it" in failure


def test_the_last_tasks_of_an_earlier_run_do_not_end_another() -> None:
    progress = progress_of(*(task(task_id=name) for name in ("earlier", "ours")))
    watch = LearningWatch(progress, progress.leftovers({"ours"}))
    assert watch.leftovers == 1
    for n in range(6):
        progress.learning.take(unscored(str(n))[1])
    assert watch.stop_reason() is None
    progress.learning.take(unscored("more")[1])
    assert watch.stop_reason() is not None


def test_one_warning_is_given_for_a_cause_and_again_once_groups_have_differed() -> None:
    """Those of an earlier run get none: what was wrong may be mended."""
    progress = progress_of(*(event for n in range(4) for event in unscored(f"before{n}")))
    watch = LearningWatch(progress)
    assert list(watch.warnings()) == [] and watch.diagnosis() is None
    for n in range(4):
        progress.learning.take(unscored(str(n))[1])
    assert [line.partition(":")[0] for line in watch.warnings()] == ["warning"]
    progress.learning.take(unscored("more")[1])
    assert list(watch.warnings()) == []
    progress.learning.take(group(task_id="differs"))
    assert list(watch.warnings()) == []
    for n in range(4):
        progress.learning.take(unscored(f"later{n}")[1])
    assert len(list(watch.warnings())) == 1


def test_a_run_that_trained_nothing_says_where_its_tasks_are() -> None:
    watch = LearningWatch(Progress(SETTINGS))
    log = Log()
    log.write(*unscored("a"), task(task_id="b"))
    for record in log.records:
        watch.progress.fold(record)
    assert watch.failure(trains=True) == "nothing was trained: 1 waiting, 1 left out, 1 of them too_few_scored"
    assert (watch.failure(trains=False) or "").startswith("nothing was learnt: none of 1 groups differed in reward")


def test_a_run_that_only_fills_a_step_of_an_earlier_one_has_taught_what_that_step_teaches() -> None:
    for before, fails in ((group(task_id="before"), False), (unscored("before")[1], True)):
        watch = LearningWatch(progress_of(task(task_id="before", group_size=2), before))
        watch.progress.learning.take(unscored("now")[1])
        assert (watch.failure(trains=False) is not None) is fails


def test_a_run_of_which_no_answer_got_a_score_has_failed_also_if_it_trained_on_tasks_of_an_earlier_one() -> None:
    earlier = task(task_id="earlier", group_size=2)
    progress = progress_of(earlier)
    watch = LearningWatch(progress, leftovers=1)
    answer = response(task_id="ours", sampling_id="ours", group_size=1)
    log = Log()
    log.write(group(task_id="earlier"), batch(0, groups_offsets=(0,), max_policy_lag=0), trained(1))
    for record in log.records:
        progress.fold(record)
    assert progress.places["trained"] == 1 and watch.failure(trains=True) is None
    log.write(task(task_id="ours", group_size=1), answer, scoreless(answer))
    for record in log.records[-3:]:
        progress.fold(record)
    failure = watch.failure(trains=True) or ""
    assert failure.startswith("nothing was learnt: no answer of this run has a score. 1 answer has no score: own:own")


def test_the_newest_version_that_was_better_than_the_one_before_is_named_with_the_command_that_goes_back() -> None:
    watch = LearningWatch(Progress(SETTINGS))
    progress = watch.progress
    for n in range(6):
        progress.learning.take(unscored(str(n))[1])
    for version, mean in enumerate((0.1, 0.6, 0.2)):
        progress.learning.versions[version] = LearningFigures(groups=1, answers=10, reward_sum=10 * mean)
    progress.primary = 2
    failure = watch.failure(trains=True) or ""
    assert "Version 1 is the newest that was better than the one before it (0.60): `streamward adapters" in failure


# --- the last step ----------------------------------------------------------------------------------------------------


def run_of(progress: Progress, *tasks: Task) -> LoopRun:
    plan = UpPlan(steps=None, minutes=None, train=tasks)
    unused = cast("Any", None)
    run = LoopRun(plan, SETTINGS, None, progress, LearningWatch(progress), unused, unused, unused, 0.0)
    run.sent, run.all_sent = len(tasks), True
    return run


def test_groups_that_wait_for_a_batch_which_no_task_fills_are_missing_and_keep_the_run_from_its_end() -> None:
    asked = task(task_id="a", group_size=2)
    run = run_of(progress_of(asked, group(task_id="a")), asked)
    assert (run.missing_groups(), run.all_done()) == (1, False)
    run.is_filled = True
    assert run.all_done(), "no task is left to ask"


def test_nothing_is_missing_while_a_task_is_on_its_way() -> None:
    first, second = task(task_id="a", group_size=2), task(task_id="b", group_size=2)
    run = run_of(progress_of(first, second, group(task_id="a")), first, second)
    assert (run.missing_groups(), run.all_done()) == (0, False)


def test_a_task_that_its_scorer_gave_up_on_does_not_keep_the_last_step_from_being_filled() -> None:
    first, second = task(task_id="a", group_size=2), task(task_id="b", group_size=2)
    answers = [response(task_id="b", sampling_id="b", slot=slot, group_size=2) for slot in (0, 1)]
    run = run_of(progress_of(first, second, group(task_id="a"), *answers), first, second)
    assert (run.missing_groups(), run.all_done()) == (0, False), "it may be scored any moment"
    for offset, answer in enumerate(answers):
        log = Log()
        log.write(scoreless(answer, offset))
        run.progress.fold(log.records[0])
    assert (run.missing_groups(), run.all_done()) == (1, False)
    run.is_filled = True
    assert run.all_done()


def test_no_more_tasks_are_sent_than_the_last_steps_take() -> None:
    first, second = task(task_id="a", group_size=2), task(task_id="b", group_size=2)
    run = run_of(progress_of(first, second, group(task_id="a")), first, second)
    assert run.room() == 3, "two batches may wait"
    run.plan = replace(run.plan, steps=2)
    assert run.room() == 2, "of four tasks in two steps one has a group and one is on its way"
    run.plan = replace(run.plan, steps=1)
    assert run.room() == 0
    run = run_of(progress_of(first, second, group(task_id="a"), unscored("b")[1]), first, second)
    run.plan = replace(run.plan, steps=1)
    assert run.room() == 1, "the task that was left out needs another in its place"


# --- held-out answers -------------------------------------------------------------------------------------------------


def test_the_newest_versions_commonest_wrong_answers_are_named_in_any_order_of_the_records() -> None:
    def answered(version: int, slot: int, text: str, reward: float) -> tuple[Response, AdvantagedGroup]:
        name = f"v{version}q{slot}"
        answer = response(task_id=name, sampling_id=name, group_size=1, adapter_version=version, text=text)
        of_group = replace(group(purpose="eval").responses[0], response_id=answer.response_id, reward=reward)
        return answer, group(task_id=name, purpose="eval", adapter_version=version, responses=(of_group,))

    texts = [("2019", 0.0), ("2020 ", 0.5), ("2020", 0.5), ("2021", 1.0), ("2021", 1.0)]
    pairs = [answered(4, slot, text, reward) for slot, (text, reward) in enumerate(texts)]
    pairs += [answered(2, slot, "earlier", 0.0) for slot in range(3)]
    for records in (pairs, pairs[::-1]):
        answers = HeldOutAnswers()
        for answer, held_out in records:
            answers.take_group(held_out)
            answers.take_response(answer)
        assert answers.commonest_wrong() == [("2020", 2)]


# --- answers without a score ------------------------------------------------------------------------------------------


def test_answers_are_scored_again_once_the_file_of_a_scorer_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("")
    command = [sys.executable, "-c", "print('rewards    2'); print('failed     0')"]
    failed = FailedScores(command, os.environ, Scoring(modules="own, ."), tmp_path / "rescore.log")
    assert list(failed.check(2)) == [], "it would only fail again"
    Path("own.py").write_text("# mended")
    assert list(failed.check(0)) == []
    assert list(failed.check(2)) == ["scoring: 2 answers have no score and are scored again"]
    lines: list[str] = []
    while not lines:
        lines = list(failed.check(2))
        time.sleep(0.02)
    assert lines == ["scoring: scored again: rewards 2, failed 0"]
    assert list(failed.check(2)) == []
    failed.try_again()
    assert len(list(failed.check(1))) == 1, "an earlier run left them"
    failed.close()
