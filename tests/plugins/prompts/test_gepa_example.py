"""gepa's own example, with its adapter and with ours: the same model and reflector, and the same prompt is found.

The example's competition questions are fetched from a hub; these have their shape. Its two models are functions here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from plugins.prompts.search import reflection
from plugins.prompts.search.reflection import AnsweredQuestion, ReflectionPlan
from tests import skips

gepa = pytest.importorskip("gepa", reason=skips.GEPA)

SEED = "You are a helpful assistant. Answer the question. Put your final answer in the format '### <answer>'"
BETTER = f"{SEED} Write the three signs, a space and the number on a line of its own, e.g. ### 42"
CALLS = 150
ROWS = [
    {"input": f"What is {n} + {n}?", "additional_context": {"solution": f"Twice {n}."}, "answer": f"### {2 * n}"}
    for n in range(40)
]
TRAINING, VALIDATION = ROWS[:20], ROWS[20:]


def model(messages: Sequence[Any]) -> str:
    """Return an answer: to the first text it is in the wrong format for two questions of three."""
    n = int(messages[-1]["content"].split()[2])
    return f"### {2 * n}" if n % 3 == 0 or messages[0]["content"] == BETTER else f"It is {2 * n}."


class Reflector:
    """Proposes the text that there is, and then a better one."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def __call__(self, request: Any) -> str:
        self.requests.append(request)
        return f"```\n{SEED if len(self.requests) == 1 else BETTER}\n```"


def by_our_adapter(reflector: Reflector) -> tuple[str, int]:
    """Return the text that is found, and how many answers were asked for."""
    evaluator = gepa.adapters.default_adapter.default_adapter.ContainsAnswerEvaluator()
    paid: dict[tuple[str, int], str] = {}

    def evaluate(text: str, questions: Sequence[int]) -> list[AnsweredQuestion]:
        answered = []
        for number in questions:
            row = ROWS[number]
            messages = [{"role": "system", "content": text}, {"role": "user", "content": row["input"]}]
            answer = paid.setdefault((text, number), model(messages))
            answered.append(
                AnsweredQuestion(str(row["input"]), answer, evaluator(row, answer).score, str(row["answer"]))
            )
        return answered

    half = len(TRAINING)
    plan = ReflectionPlan(SEED, tuple(range(half)), tuple(range(half, len(ROWS))), CALLS, minibatch=3, seed=0)
    return reflection.search(plan, evaluate, reflector, lambda: len(paid)), len(paid)


def test_gepas_example_comes_to_the_same_prompt_with_our_adapter_and_fewer_answers() -> None:
    theirs, ours = Reflector(), Reflector()
    result = gepa.optimize(
        seed_candidate={"system_prompt": SEED},
        trainset=TRAINING,
        valset=VALIDATION,
        task_lm=model,
        max_metric_calls=CALLS,
        reflection_lm=theirs,
    )
    text, answers = by_our_adapter(ours)
    assert text == result.best_candidate["system_prompt"] == BETTER
    assert answers <= 2 * len(ROWS) < result.total_metric_calls
    wrong = [request for request in ours.requests if "It is " in request]
    assert wrong and all("It earned 0. Expected: ### " in request for request in wrong)
