"""Scorers: who judges a response, and what happens when one cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.events import ResponseTurn, RewardSource, problems
from schemas.serde import encode
from streams.errors import EventError
from streams.scorers import SCORERS, ScoreError, ScoreOutcome, Scorers, Verdict, find, source_problems
from streams.scorers.canonical_text import canonical_text
from streams.scorers.registry import Scorer, _parts, parts
from streams.scorers.verdict import MAX_RATIONALE, check_verdict
from streams.settings.model import TENANT_SCORERS, Scoring
from streams.stages.scoring.scoring_agent import reward_of
from tests import skips
from tests.support.doubles.judge import a_response, a_task, outcome

DEMO_MIX = {
    "of": [
        {"name": "exact", "weight": 0.7},
        {"name": "format", "weight": 0.2, "as": "bare_number", "settings": {"shape": "bare_number"}},
        {"name": "format", "weight": 0.1, "as": "prefix", "settings": {"shape": "prefix"}},
    ]
}


def value(name: str, text: str, answer: Any = "11", **settings: Any) -> float:
    return find(name)(a_task(answer), a_response(text), settings).value


# --- the text itself --------------------------------------------------------------------------------------------------


def test_exact_wants_the_answer_to_the_visible_character_and_forgives_white_space_around_it() -> None:
    assert [value("exact", text) for text in ("11", " 11\n", "11.", "1 1", "", "The answer is 11")] == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Cafe\u0301 noir 11",  # NFD
        "Caf\u00e9\u00a0noir\u202f11",
        "\ufeffCaf\u00e9 noir 11\r\n",
        "Caf\u00e9 no\u200bir\u2009\u20601\u00ad1\u200e",
        "\u200dCaf\u00e9 no\u200cir 1\u200d1",
        "Caf\u00e9\u3000noir 11\u2028",
    ],
)
def test_a_difference_that_cannot_be_seen_makes_no_answer_wrong(text: str) -> None:
    seen = "Caf\u00e9 noir 11"
    assert (
        value("exact", text, seen) == value("exact", seen, text) == value("exact", text.upper(), seen, ignore_case=True)
    )
    assert value("exact", text, seen) == value("regex", text, pattern="Caf\u00e9 noir 11") == 1
    assert value("format", text, seen, shape="prefix", characters=12) == 1
    assert value("numeric", text, 11, number="last") == 1


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\uff11\uff11", "11"),  # full-width digits, which numeric reads
        ("don\u2019t", "don't"),
        ("\u201cyes\u201d", '"yes"'),
        ("x\u00b2", "x2"),
        ("\ufb01n", "fin"),
        ("a\u2013b", "a-b"),
        ("\u0410", "A"),  # Cyrillic
        ("a  b", "a b"),
        ("a\u200d\u0915\u200d\u0937", "a\u0915\u0937"),  # a joiner that is spelling
        ("\u202e21", "21"),
    ],
)
def test_a_difference_that_can_be_seen_makes_an_answer_wrong(text: str, seen: str) -> None:
    assert value("exact", text, seen) == value("exact", seen, text) == 0


@given(text=st.text(alphabet="a\u0301\u00e9\u200d\u200c\u00a0\r\n\u2028\ufeff\u0915\u212a<\u0338 \u00ad"))
def test_what_is_seen_is_seen_the_same_once_more(text: str) -> None:
    assert canonical_text(canonical_text(text)) == canonical_text(text)


def test_exact_takes_any_of_several_answers_and_numbers_as_written() -> None:
    assert [value("exact", text, ["yes", "true", 1]) for text in ("yes", "true", "1", "no")] == [1, 1, 1, 0]


def test_exact_can_ignore_case() -> None:
    assert (value("exact", "PARIS", "Paris"), value("exact", "PARIS", "Paris", ignore_case=True)) == (0, 1)


@pytest.mark.parametrize("verifier", ["{}", '{"answer": null}', '{"answer": true}', '{"answer": []}', "[]", "not json"])
def test_exact_without_an_answer_in_the_verifier_is_an_error_and_never_a_zero(verifier: str) -> None:
    with pytest.raises(ScoreError, match="t1") as caught:
        find("exact")(a_task(verifier=verifier), a_response("11"), {})
    assert caught.value.reason == "bad_verifier" and not caught.value.again


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("11", {}, 1),
        ("11.0", {}, 1),
        ("1.1e1", {}, 1),
        ("+11", {}, 1),
        ("-11", {}, 0),
        ("The answer is 11", {}, 0),
        ("The answer is 11", {"number": "last"}, 1),
        ("11 is more than 4", {"number": "last"}, 0),
        ("11 is more than 4", {"number": "first"}, 1),
        ("11.004", {}, 0),
        ("11.004", {"tolerance": 0.005}, 1),
        ("11.5", {"relative": 0.05}, 1),
        ("11.6", {"relative": 0.05}, 0),
        ("1e999999999999999999999", {}, 0),
        ("9" * 5000, {}, 0),
        ("none at all", {"number": "last"}, 0),
        ("", {}, 0),
    ],
)
def test_numeric_compares_numbers(text: str, settings: dict[str, Any], expected: float) -> None:
    assert value("numeric", text, 11, **settings) == expected


def test_numeric_reads_thousands_and_is_exact_beyond_float() -> None:
    long = "123456789012345678901234567890"
    assert value("numeric", "1,234,567", 1234567) == 1
    assert value("numeric", long, long) == 1
    assert value("numeric", long[:-1] + "1", long) == 0


def test_regex_matches_the_whole_text_unless_told_to_search() -> None:
    assert value("regex", "-12", pattern=r"-?\d+") == 1
    assert value("regex", "it is -12", pattern=r"-?\d+") == 0
    assert value("regex", "it is -12", pattern=r"-?\d+", mode="search") == 1


@pytest.mark.parametrize(
    ("shape", "yes", "no"),
    [
        ("bare_number", ["12", " -3.5 "], ["12 apples", "", "1,2", "."]),
        ("bare_integer", ["12", "-3"], ["3.5", "x"]),
        ("leading_digit", ["1 apple", "12\nand more"], ["one", "-1", ""]),
        ("one_line", ["one line"], ["two\nlines", ""]),
        ("prefix", ["11", "1", "12", "1 and so on"], ["2", "", "The 1"]),
        ("json_object", ['{"a": 1}', "{}"], ["[]", "{", "1", "[" * 100_000]),
    ],
)
def test_format_looks_at_the_shape_alone(shape: str, yes: list[str], no: list[str]) -> None:
    assert [value("format", text, shape=shape) for text in yes] == [1] * len(yes)
    assert [value("format", text, shape=shape) for text in no] == [0] * len(no)


def test_length_falls_in_a_straight_line_from_free_to_limit() -> None:
    scorer = find("length")
    values = [scorer(a_task(), a_response("x", tokens=n), {"free": 10, "limit": 20}).value for n in (1, 10, 15, 20, 99)]
    assert values == [1, 1, 0.5, 0, 0]


@given(text=st.text())
def test_every_inline_scorer_gives_a_finite_number_for_any_text(text: str) -> None:
    settings: dict[str, dict[str, Any]] = {"format": {"shape": "bare_number"}, "length": {"limit": 9}}
    for scorer in SCORERS.values():
        if scorer.home == "inline" and scorer.function is not None:
            of_run = replace(a_response(text), success=True, turns=(ResponseTurn(number=0, start=0, end=0, ok=False),))
            assert 0 <= scorer(a_task(), of_run, settings.get(scorer.name, {})).value <= 1


# --- names and settings -----------------------------------------------------------------------------------------------


def test_tenants_may_name_every_built_in_scorer_but_the_judges() -> None:
    assert {*TENANT_SCORERS} == {scorer.name for scorer in SCORERS.values() if scorer.home != "judge"}


def test_unknown_scorer_names_the_nearest_and_all_known_ones() -> None:
    with pytest.raises(EventError, match=r"'exakt'; did you mean exact\?.*numeric") as caught:
        find("exakt")
    assert caught.value.reason == "unknown_scorer"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("exact", {"ignorecase": True}, r"exact has no setting 'ignorecase'; did you mean ignore_case\?"),
        ("exact", {"strip": "yes"}, r"exact.strip: .*boolean \(got 'yes'\)"),
        ("numeric", {"tolerance": -1}, "numeric.tolerance: .*greater than or equal to 0"),
        ("regex", {}, "regex.pattern: Field required"),
        ("regex", {"pattern": "("}, "pattern is not a regular expression"),
        ("regex", {"pattern": "a" * 10_001}, "regex.pattern: .*at most 10000 characters"),
        ("format", {"shape": "round"}, "format.shape: .*'bare_number'"),
        ("length", {"free": 5, "limit": 5}, "limit 5 must be larger than free 5"),
        ("mix", {"of": []}, "mix.of"),
        ("mix", {"of": [{"name": "exact"}, {"name": "exact"}]}, 'two parts are called exact; .*"as"'),
        ("mix", {"of": [{"name": "mix"}]}, "a mix inside a mix"),
        ("mix", {"of": [{"name": "exact", "weight": 1e308}]}, "mix.of.0.weight: .*less than or equal to 1000000000000"),
        ("mix", {"of": [{"name": "exat"}]}, "did you mean exact"),
        ("mix", {"of": [{"name": "exact", "settings": {"x": 1}}]}, "exact has no setting 'x'"),
        ("reasoning-gym", {"x": 1}, "reasoning-gym has no setting 'x'"),
        ("judge", {"low": 3, "high": 2}, "high 2.0 must be larger than low 3.0"),
        ("judge", {"template": "How good?"}, r"template has no \{answer\}"),
    ],
)
def test_bad_settings_are_found_before_anybody_answers(name: str, settings: dict[str, Any], message: str) -> None:
    task = a_task(sources=(RewardSource(name=name, settings=json.dumps(settings)),))
    [problem] = source_problems(task)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(problem)


def test_large_settings_are_checked_and_not_kept_in_memory() -> None:
    before = _parts.cache_info().currsize
    large = RewardSource(name="mix", settings=json.dumps({"of": [{"name": "exact", "as": "x" * 20_000}]}))
    assert [part.name for part in parts(large)] == ["exact"]
    assert _parts.cache_info().currsize == before


def test_settings_that_are_no_json_object_are_an_error() -> None:
    for text in ("[1]", "{", "1"):
        assert len(list(source_problems(a_task(sources=(RewardSource(name="exact", settings=text),))))) == 1


def test_a_good_task_has_no_problems() -> None:
    mix = RewardSource(name="mix", settings=json.dumps(DEMO_MIX))
    assert list(source_problems(a_task(sources=(mix, RewardSource(name="my.module:function"))))) == []


# --- running them -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    with Scorers(Scoring()) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "expected"),
    [("11", 1.0), ("12", 0.3), ("2", 0.2), ("11.", 0.1), ("1 and more", 0.1), ("The answer is 11", 0.0), ("", 0.0)],
)
def test_the_demo_mix_gives_one_if_exact_else_shaping_for_a_bare_number_and_its_first_character(
    scorers: Scorers, text: str, expected: float
) -> None:
    found = outcome(scorers, "mix", text, DEMO_MIX)
    assert found.value is not None and abs(found.value - expected) < 1e-12
    assert (found.value == 1.0) == (text == "11")


def test_a_mix_records_each_part_before_its_weight_and_says_which_versions_spoke(scorers: Scorers) -> None:
    found = outcome(scorers, "mix", "12", DEMO_MIX)
    assert found.components == {"exact": 0.0, "bare_number": 1.0, "prefix": 1.0}
    assert found.version == "mix/1[exact/2,format/2]"


def test_a_mix_keeps_the_components_of_its_parts(scorers: Scorers) -> None:
    found = outcome(scorers, "mix", "11", {"of": [{"name": "length", "as": "brief", "settings": {"limit": 6}}]})
    assert found.components == {"brief": 0.5, "brief.length": 3.0}


def test_a_part_of_a_mix_without_an_opinion_adds_nothing_and_a_mix_of_such_parts_has_none(
    scorers: Scorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORERS, "silent", Scorer("silent", "silent/1", "inline", None, lambda *_: None))
    found = outcome(scorers, "mix", "11", {"of": [{"name": "exact", "weight": 0.7}, {"name": "silent", "weight": 0.3}]})
    assert (found.value, found.components, found.is_abstention) == (0.7, {"exact": 1.0}, False)
    assert found.version == "mix/1[exact/2,silent/1]"
    found = outcome(scorers, "mix", "11", {"of": [{"name": "silent"}]})
    assert (found.value, found.error, found.is_abstention, found.tries) == (None, None, True, 1)
    recorded = reward_of(a_response("x"), RewardSource(name="mix"), found, 1)
    assert recorded.abstained and not list(problems(recorded))


def test_what_is_no_number_is_an_error_that_is_not_tried_again(
    scorers: Scorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def not_a_number(*_: object) -> float:
        calls.append(1)
        return float("nan")

    monkeypatch.setitem(SCORERS, "nan", Scorer("nan", "nan/1", "inline", None, not_a_number))
    found = outcome(scorers, "nan", "11", {})
    assert (found.reason, found.is_abstention, len(calls)) == ("not_a_number", False, 1)
    assert found.error is not None and "a score is a finite number, or None for no opinion" in found.error


def test_a_mix_with_a_part_that_fails_fails_whole(scorers: Scorers) -> None:
    found = outcome(scorers, "mix", "12", DEMO_MIX, answer=None)
    assert (found.value, found.reason, found.version) == (None, "bad_verifier", "mix/1[exact/2]")


@pytest.mark.parametrize(
    ("weight", "reason", "message"),
    [(1e308, "bad_settings", "mix.of.0.weight"), (1e12, "not_a_number", "gave value 2e+12; expected at most 1e+12")],
)
def test_a_mix_with_huge_weights_is_an_outcome_with_an_error(
    scorers: Scorers, weight: float, reason: str, message: str
) -> None:
    twice = {"of": [{"name": "exact", "weight": weight}, {"name": "exact", "as": "again", "weight": weight}]}
    found = outcome(scorers, "mix", "11", twice)
    assert (found.value, found.reason) == (None, reason)
    assert found.error is not None and message in found.error


def test_whatever_a_scorer_raises_is_an_outcome_with_an_error(
    scorers: Scorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflows(*_: object) -> None:
        raise OverflowError("\ud83d is half an emoji" + "!" * 10_000)

    monkeypatch.setitem(SCORERS, "broken", Scorer("broken", "broken/1", "inline", None, overflows))
    found = outcome(scorers, "broken", "11", {})
    assert (found.value, found.reason, found.version) == (None, "exception", "broken/1")
    assert found.error is not None and "raised OverflowError: ? is half an emoji!" in found.error
    assert len(found.error) <= MAX_RATIONALE


@pytest.mark.parametrize("parts", [{str(n): 0.5 for n in range(257)}, {"x" * 201: 0.5}])
def test_more_components_than_a_reward_may_have_are_no_score(parts: dict[str, float]) -> None:
    with pytest.raises(ScoreError, match="expected at most 256, with names of at most 200 characters") as caught:
        check_verdict((0.5, parts), "any")
    assert caught.value.reason == "too_many_components"


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.tuples), st.text())
def test_a_checked_verdict_can_be_written_whatever_was_given(raw: Any, text: str) -> None:
    half_an_emoji = "\ud83d" + text
    try:
        verdict = check_verdict(Verdict(raw, {half_an_emoji: raw}, half_an_emoji, half_an_emoji), "any")
    except ScoreError as exc:
        assert exc.reason in ("not_a_number", "too_many_components")
    else:
        said = ScoreOutcome(
            value=verdict.value,
            version=verdict.version,
            components=verdict.components,
            rationale=verdict.rationale,
            latency_ms=0.0,
            tries=1,
        )
        encode(reward_of(a_response("x"), RewardSource(name="any"), said, 1))


def test_an_unknown_scorer_is_an_outcome_with_an_error_and_is_not_tried_again(scorers: Scorers) -> None:
    found = outcome(scorers, "exakt", "11", {})
    assert (found.value, found.reason, found.tries) == (None, "unknown_scorer", 1)
    assert found.error is not None and "did you mean exact?" in found.error


# --- reasoning-gym ----------------------------------------------------------------------------------------------------


def test_without_reasoning_gym_the_error_says_how_to_install_it(scorers: Scorers) -> None:
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        verifier = json.dumps({"dataset": "chain_sum", "entry": {}})
        found = scorers.score(a_task(verifier=verifier), a_response("x"), RewardSource(name="reasoning-gym"))
        assert found.reason == "missing_package" and found.error is not None and "make setup-gym" in found.error
    else:
        pytest.skip("reasoning-gym IS installed here, so its absence cannot be tested")


@pytest.mark.gym
def test_reasoning_gym_judges_with_its_own_verifier(scorers: Scorers) -> None:
    rg = pytest.importorskip("reasoning_gym", reason=skips.GYM)
    entry = rg.create_dataset("chain_sum", seed=1, size=1)[0]
    verifier = json.dumps({"dataset": "chain_sum", "config": {}, "entry": entry})
    task, source = a_task(verifier=verifier), RewardSource(name="reasoning-gym")
    assert scorers.score(task, a_response(entry["answer"]), source).value == 1.0
    assert scorers.score(task, a_response("no number"), source).value == 0.0


@pytest.mark.gym
def test_reasoning_gym_names_an_unknown_dataset(scorers: Scorers) -> None:
    pytest.importorskip("reasoning_gym", reason=skips.GYM)
    verifier = json.dumps({"dataset": "chain_summ", "entry": {}})
    found = scorers.score(a_task(verifier=verifier), a_response("x"), RewardSource(name="reasoning-gym"))
    assert found.reason == "bad_verifier" and found.error is not None and "did you mean chain_sum?" in found.error
