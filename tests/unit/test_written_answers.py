"""Answers as people and models write them: a right one is seen in each of its writings, a wrong one never gets 1.

tests/unit/written_answers.tsv ──► numeric (only, last), math ──► the verdict of the table

A hyphen in the table: the scorer's verdict is a matter of taste.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from schemas.events import RewardSource
from streams.scorers import ScoreError, Scorers, find, source_problems
from streams.scorers.canonical_text import canonical_text
from streams.scorers.mathematics import answer_of
from streams.scorers.numbers import MAX_CHARACTERS, pick, read
from streams.settings.model import Scoring
from tests import skips
from tests.support.doubles.judge import a_response, a_task, outcome

PAIRS = [line.split("\t") for line in Path(__file__).with_name("written_answers.tsv").read_text().splitlines()[1:]]
LONGER = [
    "2x+{}", "{}x", "{}-1", "1-{}", "{}/7x", "√{}", "{}!", "x^{}", "{}^x", "({},1)", "1,{},3", "{}±1", "<{}", "≥{}",
    "f({})", "{}i", "[1,{}]", "0.{}", "{}:30", "{}th", "7+{}", "not {}", "{} or 0", "0 and {}", "{} million",
    "{} squared", "minus {}", r"\frac{{x}}{{{}}}", "{} × 3", "{} thousand", r"\ge {}", "{} and a half", "-{}", "{}%",
    "\u2010{}", "{}‰", "\u2014{}", "{}₂", "{}\u0305", "1\u2063{}", "1、{}", "1٫{}", "{} K", "twice {}", "{}+",
    "{} or more", r"-\boxed{{{}}}", r"2\boxed{{{}}}", r"\boxed{{{}}}x", r"\sqrt{{\boxed{{{}}}}}",
    r"\boxed{{0}} or \boxed{{{}}}",
]  # fmt: skip
PIECES = (
    *" .,:;!?\n-+*/^()[]{}<>=%$€#_'\"|&~aAxkKπ½²″×√≥∪—\u2010\u200b\u2063\u0305",
    r"\frac{", r"\text{", r"\boxed{", r"\,", "is", "the answer", "not", "or", "thousand", "million", "hundred and",
    "half", "twice", "dozen", "per cent", "km", "apples", "point", "and a half", "答案是", "个",
)  # fmt: skip
SURROUNDINGS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
NUMBERS = st.fractions(-(10**9), 10**9, max_denominator=1000)
MATH_VERIFY = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason=skips.MATH)


def pairs(column: int) -> list[tuple[str, str, float]]:
    return [(pair[0], pair[1], float(pair[column])) for pair in PAIRS if pair[column] != "-"]


def value(name: str, answer: Any, text: str, **settings: Any) -> float:
    return find(name)(a_task(answer), a_response(text), settings).value


def test_the_table_has_right_and_wrong_answers_for_each_scorer() -> None:
    assert all(
        len([pair for pair in pairs(column) if pair[2] == right]) > 50 for column in (2, 3, 4) for right in (0, 1)
    )


@pytest.mark.parametrize(("answer", "text", "right"), pairs(2))
def test_numeric_reads_a_number_and_nothing_else(answer: str, text: str, right: float) -> None:
    assert value("numeric", answer, text) == right


@pytest.mark.parametrize(("answer", "text", "right"), pairs(3))
def test_numeric_never_cuts_the_last_number_out_of_a_longer_expression(answer: str, text: str, right: float) -> None:
    assert value("numeric", answer, text, number="last") == right


@MATH_VERIFY
@pytest.mark.parametrize(("answer", "text", "right"), pairs(4))
def test_math_knows_equal_from_different(answer: str, text: str, right: float) -> None:
    assert value("math", answer, text) == right


# --- numbers ----------------------------------------------------------------------------------------------------------


@given(number=NUMBERS)
def test_a_number_is_read_in_each_of_its_writings(number: Fraction) -> None:
    over, under = abs(number.numerator), number.denominator
    sign = "-" if number < 0 else ""
    writings = [f"{sign}{over}/{under}", rf"${sign}\frac{{{over}}}{{{under}}}$", rf"\boxed{{{sign}{over}/{under}}}"]
    if under == 1:
        grouped = f"{int(number):,}"
        writings += [grouped, grouped.replace(",", " "), grouped.replace(",", "'"), f"{number}.00"]
    elif over > under:
        writings.append(f"{sign}{over // under} {over % under}/{under}")
    for writing in writings:
        for text in (writing, writing.replace("-", "−")):
            written = read(text)
            assert written is not None and written.value == number, text
            assert pick(f"The answer is {text}.", "last") == written


@given(
    number=st.integers(1, 10**6),
    around=st.sampled_from(LONGER),
    which=st.sampled_from(["first", "last"]),
)
def test_a_number_in_a_longer_expression_is_not_the_answer(number: int, around: str, which: Any) -> None:
    text = around.format(number)
    assert read(text) is None or read(text) != read(str(number))
    assert value("numeric", number, f"So it is {text}", number=which) == 0, text


@given(right=st.integers(1, 10**6), wrong=st.integers(1, 10**6), before=SURROUNDINGS, after=SURROUNDINGS)
def test_a_wrong_number_never_scores_1_whatever_text_surrounds_it(
    right: int, wrong: int, before: str, after: str
) -> None:
    assume(str(right).strip("0") != str(wrong).strip("0"))  # per cent and thousands move the point
    text = f"{before}{wrong}{after}"
    for number in ("only", "first", "last"):
        assert value("numeric", right, text, number=number) == 0, text


@given(right=st.integers(2, 10**6), before=SURROUNDINGS, after=SURROUNDINGS)
def test_a_number_that_scores_1_has_no_letter_digit_or_operator_beside_it(right: int, before: str, after: str) -> None:
    text = f"{before}{right}{after}"
    left, rest = canonical_text(before)[-1:], canonical_text(after)
    for number in ("first", "last"):
        if value("numeric", right, text, number=number) == 1:
            assert not left.isalnum() and left not in {*"^/×√≥∪²\\\u0305\u2063"}, text
            assert not rest[:1].isalnum() or rest.startswith("km"), text
            assert rest[:1] not in {*"^/×√≥∪²!%\u0305\u2063"}, text


@given(
    text=st.text(alphabet="0123456789.,/^-+ ×%$€\\boxed{}frac()kmxe½²’'_\n"), which=st.sampled_from(["first", "last"])
)
def test_whatever_is_written_is_a_number_or_none(text: str, which: Any) -> None:
    read(text)
    pick(text, which)


def test_the_number_of_a_very_long_text_is_found_and_not_cut() -> None:
    long = "so 7, or\n" * MAX_CHARACTERS
    assert value("numeric", 11, f"11 apples\n{long}", number="first") == 1
    assert value("numeric", 11, f"{long}the answer is 11", number="last") == 1
    assert value("numeric", 11, f"{long} {'1' * MAX_CHARACTERS}11", number="last") == 0


# --- what cannot be used is found before anybody answers --------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "answer", "message"),
    [
        ("numeric", "about 5", "task t1: the answer 'about 5' in the verifier is no number; use exact or math"),
        ("numeric", ["5", "x"], "the answer 'x' in the verifier is no number"),
        ("numeric", "", "the answer in the verifier is empty, and numeric would reward silence"),
        ("exact", " ", "the answer in the verifier is empty, and exact would reward silence"),
        ("exact", "\u200b\ufeff", "the answer in the verifier is empty, and exact would reward silence"),
        ("math", None, "math compares with the answer in the verifier"),
        ("math", "\\frac{1}{", "the answer '\\\\frac{1}{' in the verifier is half a formula"),
        ("math", "x +", "the answer 'x +' in the verifier is half a formula"),
        ("math", "\\left( 1", "is half a formula"),
    ],
)
def test_an_answer_that_a_scorer_cannot_use_is_a_problem_of_the_task(scorer: str, answer: Any, message: str) -> None:
    [problem] = source_problems(a_task(answer, sources=(RewardSource(name=scorer),)))
    assert message in problem
    with pytest.raises(ScoreError, match="t1"):
        find(scorer)(a_task(answer), a_response("5"), {})


# --- math -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    with Scorers(Scoring(timeout_s=30.0)) as running:
        yield running


@MATH_VERIFY
def test_math_runs_in_a_worker_and_a_power_of_powers_costs_no_time(scorers: Scorers) -> None:
    assert outcome(scorers, "math", r"\boxed{\frac{22}{2}}", {}).value == 1.0
    assert outcome(scorers, "math", "x^{10^{10^{10}}}", {}).value == 0.0


@MATH_VERIFY
def test_an_answer_that_math_cannot_read_fails_the_score_and_is_never_0(scorers: Scorers) -> None:
    failed = outcome(scorers, "math", "x+1", {}, answer="((1")
    assert (failed.value, failed.reason) == (None, "bad_verifier")


def test_without_math_verify_the_error_says_how_to_install_it(scorers: Scorers) -> None:
    if importlib.util.find_spec("math_verify") is not None:
        pytest.skip("math-verify IS installed here, so its absence cannot be tested")
    failed = outcome(scorers, "math", "x+1", {}, answer="x")
    assert failed.reason == "missing_package" and "streamward[math]" in str(failed.error)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{x+1}.", "x+1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("Answer: $y$", "y"),
        ("**Final answer:** 3/4.", "3/4"),
        ("Some words.\n#### 72", "72"),
        ("either $3$ or $5$", ""),
        ("", ""),
    ],
)
def test_the_answer_of_a_text_is_its_box_or_what_it_announces(text: str, answer: str) -> None:
    assert answer_of(text) == answer
