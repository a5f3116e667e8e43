"""A search among prompts asks by its answers alone, and rarely calls a prompt better that is not."""

from __future__ import annotations

from plugins.prompts.search.halving import Ask, SearchPlan, SearchVerdict, next_step
from plugins.prompts.search.reflection import quotations
from tests.plugins.prompts.benchmarks.halving import BETTER, outcome


def test_of_equal_prompts_none_is_called_better_and_a_much_better_one_is_found() -> None:
    assert [outcome(0.0, seed, 100, is_greedy=True).winner for seed in range(20)] == [None] * 20
    assert sum(outcome(0.4, seed, 300, is_greedy=True).winner == BETTER for seed in range(20)) >= 18


def test_a_search_asks_only_for_what_is_not_answered_and_within_its_answers() -> None:
    plan, answers = SearchPlan((1, 2, 3), tuple(range(50)), 60), dict[Ask, float | None]()
    while not isinstance(step := next_step(plan, answers), SearchVerdict):
        assert not answers.keys() & set(step.asks)
        answers |= {ask: None if ask.question == 0 else 0.5 for ask in step.asks}
    assert (step.winner, step.answers <= 60, len(answers)) == (None, True, step.answers)


def test_a_proposal_that_quotes_a_question_or_an_answer_is_seen() -> None:
    questions = ["How many apples does Ann have in her basket today?", "Name a river."]
    assert quotations("Be brief. Name a river.", questions) == []
    answers = ['{"answer": "because the river rises every spring"}']
    assert quotations("Say: the river rises every spring.", answers) == ["the river rises every spring"]
    assert quotations("E.g. how many APPLES does Ann have: 7.", questions) == [
        "how many apples does ann",
        "many apples does ann have",
    ]
