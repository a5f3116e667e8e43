"""Similar questions: what is never one, when their answers are given, and the bound that decides it."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from plugins.cache.answer_cache import AnswerCache
from plugins.cache.cache_settings import Cache
from plugins.cache.similar_questions import SimilarAnswer, SimilarQuestions, Trials, place_of
from schemas.events import Message, Sampling
from streams.errors import SettingsError
from tests.plugins.cache.cache_calls import answer
from tests.support.served_calls import Answering, call, said

QUESTION = "What is the capital of France?"
PARAPHRASE = "what is the capital of france"
ASKED = "sums", 0, (), Sampling(temperature=0.0), None, None


def similar(first: str, second: str, **rule: Any) -> bool:
    questions = SimilarQuestions(Cache(exact_s=1.0, **rule))
    for text, is_first in ((first, True), (second, False)):
        placed = place_of("", ASKED, (Message(role="user", content=text),))
        assert placed is not None
        if is_first:
            questions.add(*placed, SimilarAnswer("t", b"k", "Paris"))
    return questions.find(*placed) is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Is it safe to mix bleach and ammonia?", "Is it unsafe to mix bleach and ammonia?"),
        ("Is it safe to mix them?", "Is it not safe to mix them?"),
        ("Convert 10 euros to dollars.", "Convert 1000 euros to dollars."),
        ("Convert 1.5 euros to dollars.", "Convert 15 euros to dollars."),
        ("How far is 10 km?", "How far is 10 miles?"),
        ("Is 5 % of it enough?", "Is 5 ° of it enough?"),
        ("3 + 4 =", "3 - 4 ="),
        ("I forgot my password", "I reset my password"),
        ("The dog bites the man, why?", "The man bites the dog, why?"),
        ("Fly from Ulm to Bonn", "Fly from Bonn to Ulm"),
    ],
)
def test_opposites_other_numbers_other_units_and_other_orders_are_not_similar(first: str, second: str) -> None:
    assert not similar(first, second)


@pytest.mark.parametrize("second", [PARAPHRASE, "Please, what is the capital of France?", "What is capital of France"])
def test_case_points_articles_and_courtesies_do_not_matter(second: str) -> None:
    assert similar(QUESTION, second)


def test_a_question_has_similar_ones_only_without_tools_and_at_temperature_0() -> None:
    user = (Message(role="user", content=QUESTION),)
    assert place_of("", ASKED, user) is not None
    assert place_of("", ("sums", 0, ("tool",), *ASKED[3:]), user) is None
    assert place_of("", (*ASKED[:3], Sampling(), None, None), user) is None
    assert place_of("", ASKED, (*user, Message(role="assistant", content="Paris"))) is None
    assert place_of("red", ASKED, user) != place_of("blue", ASKED, user)


def embed_alike(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


def test_an_embedder_of_ones_own_judges_what_has_the_same_words() -> None:
    own = f"{__name__}:embed_alike"
    assert similar("The dog bites the man", "The man bites the dog", embedder=own)
    assert not similar("The dog bites the man", "The cat bites the man", embedder=own)
    with pytest.raises(SettingsError, match=r"cache\.embedder: no_such:thing cannot be loaded"):
        SimilarQuestions(Cache(exact_s=1.0, embedder="no_such:thing"))


def test_a_similar_answer_is_named_and_not_given() -> None:
    async def talk() -> None:
        step, engine = AnswerCache(Cache(exact_s=9.0, similar="suggest", most_wrong=0.99)), Answering("Paris", "Lyon")
        first = call(QUESTION)
        await answer(step, first, engine)
        stream = await answer(step, call(PARAPHRASE), engine)
        assert said(stream) == "Lyon"
        assert stream.origin is not None
        assert stream.origin.notes == {"origin.similar_to": first.turn_id}
        assert (step.trials.compared, step.trials.wrong) == (1, 1)

    asyncio.run(talk())


def test_similar_answers_are_given_once_the_log_shows_that_they_are_right_and_until_they_are_not() -> None:
    async def talk() -> None:
        rule = Cache(exact_s=3600.0, similar="serve", most_wrong=0.2, checked=0.3)
        step, engine = AnswerCache(rule), Answering("Paris")
        assert step.trials.upper_limit == 1.0

        async def ask(number: int) -> dict[str, str]:
            await answer(step, call(f"What is the capital of country {number}?"), engine)
            stream = await answer(step, call(f"what is the capital of country {number}"), engine)
            return dict(stream.origin.notes) if stream.origin is not None else {}

        first = [await ask(number) for number in range(30)]
        assert all("origin.cached_from" not in notes for notes in first[:10])
        later = [await ask(number) for number in range(30, 80)]
        served = [notes for notes in later if "origin.cached_from" in notes]
        assert step.trials.upper_limit < 0.2
        assert 20 < len(served) < 50  # the others are sampled, to compare
        assert all("origin.similar_to" in notes for notes in served)
        for _ in range(200):
            step.trials.take(is_same=False)
        assert step.trials.upper_limit > 0.2
        last = [await ask(number) for number in range(80, 90)]
        assert all("origin.cached_from" not in notes for notes in last)

    asyncio.run(talk())


def test_the_bound_is_the_one_worked_out_by_hand() -> None:
    """Nothing wrong in n: p is excluded once B(1/2, n + 1/2) / B(1/2, 1/2) >= 0.05 (1 - p)^n."""
    n = 700
    trials = Trials(n, 0)
    mixture = math.exp(math.lgamma(0.5) + math.lgamma(n + 0.5) - math.lgamma(n + 1.0)) / math.pi
    assert trials.upper_limit == pytest.approx(1 - (0.05 * mixture) ** (1 / n))
    assert Trials(0, 0).upper_limit == Trials(5, 5).upper_limit == 1.0
    assert Trials(700, 0).upper_limit < 0.01 < Trials(600, 0).upper_limit


def test_the_bound_holds_at_every_look() -> None:
    """Peeking: of 400 series with a share of 0.05, at most one in twenty may ever fall below it in 500 looks."""
    draw = random.Random(5)
    missed = 0
    for _ in range(400):
        trials = Trials()
        for look in range(500):
            trials.take(is_same=draw.random() >= 0.05)
            if look % 5 == 0 and trials.upper_limit < 0.05:
                missed += 1
                break
    assert missed <= 20
