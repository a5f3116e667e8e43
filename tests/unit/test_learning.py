"""What groups taught, and why nothing is learnt: each cause as the scripted engine brings it about."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, LeftOut, Message, Response, RewardSource, Sampling, Task
from streams.adapters.learning import LearningHistory
from streams.advantage_formulas import advantages
from streams.engines.protocol import SamplingRequest
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.evaluation.diagnosis import CAUSES, WAYS_OUT, Diagnosis, SampleAnswer, diagnose, symptoms_of
from streams.scorers.registry import load
from streams.tools.sample_answers import sample_of
from tests.support import factories
from tests.support.factories import group, member

STEP = 4
SIZE = 4
COLOURS = ("red", "blue", "green", "pink", "white", "black", "grey", "brown")
NUMBERS = ("1", "2", "3", "4", "5", "6", "7", "8")


def question(
    answer: str, *, max_tokens: int = 64, text: str = "What colour is a hat that is {}?", **changes: Any
) -> Task:
    return factories.task(
        task_id=answer,
        group_size=SIZE,
        messages=(Message(role="user", content=text.format(answer)),),
        verifier=json.dumps({"answer": answer}),
        sampling=Sampling(max_tokens=max_tokens),
        reward_sources=(RewardSource(name="exact"),),
        **changes,
    )


class Run:
    """Tasks answered by a script and scored with `exact`, and what is said of them."""

    def __init__(self, script: dict[str, Any], answers: Sequence[str] = COLOURS, **task: Any) -> None:
        self.engine = ScriptedEngine(json.dumps(script))
        self.history, self.answers, self.errors = LearningHistory(STEP), list[SampleAnswer](), list[str]()
        for answer in answers:
            self.answer(question(answer, **task))

    def answer(self, task: Task, version: int = 0) -> None:
        self.engine.served_version = version
        (completions,) = self.engine.sample([SamplingRequest(sampling_id=task.task_id, task=task)])
        responses = [
            factories.response(
                task_id=task.task_id, slot=one.slot, text=one.text, finish_reason=one.finish_reason, error=one.error,
                completion_token_ids=one.completion_token_ids, logprobs=one.logprobs,
                loss_mask=(True,) * len(one.completion_token_ids), group_size=SIZE,
            )
            for one in completions
        ]  # fmt: skip
        self.errors += [response.error for response in responses if response.error is not None]
        good = [response for response in responses if response.error is None]
        self.answers += [sample_of(task, response.text) for response in good]
        self.history.take(grouped(task, good, version))

    @property
    def diagnosis(self) -> Diagnosis:
        symptoms = symptoms_of(self.history, answers=self.answers, errors=self.errors, primary=9)
        assert symptoms is not None
        return diagnose(symptoms)


def grouped(task: Task, responses: list[Response], version: int) -> AdvantagedGroup:
    rewards = [load("exact")(task, response, {}).value for response in responses]
    mean = sum(rewards) / max(len(rewards), 1)
    members = tuple(
        member(
            response.slot, reward=reward, advantage=reward - mean, finish_reason=response.finish_reason,
            response_id=response.response_id, completion_token_ids=response.completion_token_ids,
            logprobs=response.logprobs, loss_mask=response.loss_mask,
        )
        for response, reward in zip(responses, rewards, strict=True)
    )  # fmt: skip
    slots = {response.slot for response in responses}
    left = tuple(LeftOut(slot=slot, reason="response_failed") for slot in range(SIZE) if slot not in slots)
    dropped = None if len(members) > 1 else "too_few_scored" if members else "unscored"
    return group(
        task_id=task.task_id, adapter_version=version, group_size=SIZE, sampling=task.sampling, left_out=left,
        responses=members if dropped is None else (), dropped_reason=dropped,
    )  # fmt: skip


ECHO = {"answers": "echo"}
RUNS: dict[str, Callable[[], Run]] = {
    "too_long": lambda: Run({"context_tokens": 8}),
    "unanswered": lambda: Run({"fail_rate": 1.0}),
    "one_text": lambda: Run({"answers": "nothing"}),
    "no_end": lambda: Run(ECHO | {"padding": 4000}, max_tokens=256),
    "too_few_tokens": lambda: Run({}, max_tokens=1),
    "not_alone": lambda: Run(ECHO),
    "all_zero": lambda: Run({"answers": "wrong"}, NUMBERS),
    "all_one": lambda: Run({}),
}


@pytest.mark.parametrize("cause", RUNS)
def test_each_cause_is_found_in_what_the_scripted_engine_answers(cause: str) -> None:
    assert RUNS[cause]().diagnosis.cause == cause


def test_every_cause_has_words_and_a_way_out_on_the_page_for_operators_too() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = [f"| {CAUSES[cause]} | {WAYS_OUT[cause]} |" for cause in CAUSES]
    assert "\n".join(rows) in page and CAUSES.keys() == WAYS_OUT.keys()


def test_a_diagnosis_shows_answers_and_what_was_expected() -> None:
    assert str(Run({"answers": "wrong"}, NUMBERS).diagnosis).startswith(
        "nothing is learnt: none of the last 8 groups differed in reward, since no answer is right: '"
    )
    echo = Run(ECHO).diagnosis
    assert "'What colour is a hat that is red?' (expected 'red')" in echo.what
    assert "--system" in echo.do


def test_a_collapse_names_the_version_since_when_and_the_command_that_goes_back() -> None:
    run = Run({"answers": "wrong"}, NUMBERS)
    run.engine = ScriptedEngine('{"answers": "nothing"}')
    for version in (3, 4):
        for number in range(STEP):
            run.answer(question(f"{version}{number}"), version)
    run.answers.reverse()
    diagnosis = run.diagnosis
    assert (diagnosis.cause, "since version 3" in diagnosis.what) == ("one_text", True)
    assert "`streamward adapters rollback 2 --expected 9 --reason 'collapsed since version 3'`" in diagnosis.do


def test_questions_that_are_each_always_or_never_right_are_not_called_too_hard() -> None:
    run = Run({"answers": "wrong"}, NUMBERS[:4])
    run.engine = ScriptedEngine("{}")
    for number in NUMBERS[4:]:
        run.answer(question(number))
    assert run.diagnosis.cause == "each_equal"


@pytest.mark.parametrize(("reward", "cause"), [(1.0, "all_one"), (0.5, "all_equal"), (0.0, "all_zero")])
def test_rewards_that_differ_by_the_rounding_of_float32_are_one_reward(reward: float, cause: str) -> None:
    rewards = (reward, reward - 5.960464477539063e-08)
    values = advantages("grpo", rewards, eps=0.0, ddof=1)
    history = LearningHistory(STEP)
    for number in range(2 * STEP):
        answers = zip(rewards, values, strict=True)
        members = (
            member(slot, reward=value, advantage=advantage, completion_token_ids=(number, slot))
            for slot, (value, advantage) in enumerate(answers)
        )
        history.take(group(task_id=str(number), responses=tuple(members)))
    symptoms = symptoms_of(history)
    assert symptoms is not None and history.differed == 0
    assert diagnose(symptoms).cause == cause


def test_nothing_is_diagnosed_before_two_steps_or_while_a_group_differs() -> None:
    wrong = Run({"answers": "wrong"}, NUMBERS[:7])
    assert symptoms_of(wrong.history) is None
    wrong.history.take(group(task_id="differs"))
    assert (symptoms_of(wrong.history), wrong.history.steps_without_difference) == (None, 0)


# --- counted ----------------------------------------------------------------------------------------------------------


def test_the_last_step_is_counted_by_groups_and_answers() -> None:
    run = Run({"answers": "wrong"}, NUMBERS)
    run.history.take(group(task_id="differs", responses=(member(0), member(1, reward=1.0, advantage=1.0))))
    assert str(run.history.last_step()).startswith("1 of 4 groups differed in reward, mean 0.07, 0% cut, ")


def test_a_group_that_is_read_twice_or_is_not_for_training_counts_once_or_not_at_all() -> None:
    history = LearningHistory(STEP)
    for made in (group(), group(), group(task_id="held-out", purpose="eval")):
        history.take(made)
    assert history.versions[0].groups == 1


def test_equal_answers_are_one_also_in_different_groups() -> None:
    history = LearningHistory(STEP)
    other = member(1, completion_token_ids=(9, 9))
    for task_id, responses in {"a": (member(0), member(1)), "b": (member(0), other)}.items():
        history.take(group(task_id=task_id, responses=responses))
    learning = history.versions[0]
    assert (learning.distinct, learning.answers) == (2, 4)
    learning.forget_texts()
    assert learning.distinct == 2
