"""Questions that are others than before are found, by figures that chance alone rarely makes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from plugins.data.cleaning.check import check
from plugins.data.cleaning.input_drift import drift, profile
from plugins.data.cleaning.steps import DataRow

COUNTS = st.dictionaries(st.sampled_from(["a:1", "a:2", "a:4", "b:x", "b:y"]), st.integers(0, 50))


def questions(number: int, seed: int, words: int = 12, share_greek: float = 0.0) -> list[dict[str, str]]:
    draw = random.Random(seed)
    return [
        {
            "question": " ".join(
                ("γιατί" if draw.random() < share_greek else "why") for _ in range(draw.randint(1, words))
            )
        }
        for _ in range(number)
    ]


def moved(before: list[dict[str, str]], after: list[dict[str, str]]) -> list[str]:
    first, second = (profile((row, None) for row in rows) for rows in (before, after))
    return [column.column for column in drift(first, second) if column.has_moved]


def test_the_same_questions_drawn_again_rarely_move_and_other_ones_do() -> None:
    alarms = sum(bool(moved(questions(200, seed), questions(60, 1000 + seed))) for seed in range(200))
    assert alarms <= 2
    assert moved(questions(200, 1), questions(200, 2, words=120)) == ["question_characters"]
    assert moved(questions(200, 1), questions(200, 2, share_greek=1.0)) == ["script"]


def test_a_set_of_a_few_rows_proves_nothing() -> None:
    assert moved(questions(200, 1), questions(2, 2, words=120)) == []


@given(COUNTS, COUNTS)
def test_a_distance_is_that_of_two_distributions(before: dict[str, int], after: dict[str, int]) -> None:
    one_way, other_way = drift(before, after), drift(after, before)
    assert [column.column for column in one_way] == [column.column for column in other_way]
    for column, again in zip(one_way, other_way, strict=True):
        assert 0 <= column.distance <= 1 + 1e-9
        assert column.distance == pytest.approx(again.distance) and column.bound == pytest.approx(again.bound)
    assert all(column.distance == 0 and not column.has_moved for column in drift(before, before))


def test_a_check_against_a_data_set_says_what_moved_and_that_it_is_not_wrong() -> None:
    reference = profile((row, "faq") for row in questions(300, 1))
    rows = [DataRow(f"new:{n}", row) for n, row in enumerate(questions(300, 2, share_greek=1.0))]
    checked = check(rows, reference=reference)
    finding = checked.findings["drift script"]
    assert (finding.is_wrong, finding.rows) == (False, 300)
    assert finding.first == "script moved by 1.00, chance alone by at most 0.17"
    plain = checked.plain()
    assert plain["drift"]["script"] == 1.0 and "scenario" not in plain["drift"], "rows of a file have no scenario"
    assert "drift" not in check(rows).plain()
