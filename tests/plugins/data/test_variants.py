"""Variants of rows: only those whose answer stays right, and one question with their row for gates and splits."""

from __future__ import annotations

from typing import Any

from plugins.data.cleaning.row_shapes import question_of
from plugins.data.cleaning.steps import DataRow
from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion
from plugins.data.synthetic_rows import VerifiedModel
from plugins.data.variants import vary
from schemas.events import RewardSource
from streams.rows.row_texts import VARIANT_OF, RowTexts, row_of_task, texts_of
from streams.settings.model import Scoring
from streams.tools.query.splits import ExampleOrigin, clusters_of
from tests.support.factories import task

ORIGIN = {"model": "m", "url": "http://127.0.0.1/v1"}
EXACT = RewardSource(name="exact")
QUESTION = "What do 4 apples and 7 apples make together?"
ASKED = "How many apples are 4 of them with 7 more?"


def made(*rows: dict[str, Any], replies: list[str], count: int = 1, held_out: SuiteIndex | None = None) -> Any:
    """Return the rows with their variants; the model gives these replies in turn."""
    left = iter(replies)
    model = VerifiedModel(lambda _: next(left), ORIGIN, EXACT, Scoring())
    numbered = [DataRow(f"rows:{number}", row) for number, row in enumerate(rows, 1)]
    cleaned = vary(numbered, model, count=count, held_out=held_out)
    assert list(left) == []
    return cleaned


def test_a_variant_is_kept_if_it_is_new_has_the_numbers_and_its_answer_is_right() -> None:
    row = {"question": QUESTION, "answer": "11"}
    replies = [ASKED, "11", "How many are 4 and 8?", ASKED, "Add 4 apples to 7.", "12"]
    cleaned = made(row, replies=replies, count=4)
    assert cleaned.counts == {"read": 5, "kept": 2, "changed": 0, "dropped": 3}
    original, variant = (one.fields for one in cleaned.rows)
    assert original == row
    assert variant == {
        "question": ASKED,
        "answer": "11",
        "metadata": {VARIANT_OF: QUESTION},
        "origin": {"by": "variant", **ORIGIN, "scorer": "exact"},
    }
    assert [fate.dropped for fate in cleaned.fates[2:]] == [
        "vary: it has other numbers: 'How many are 4 and 8?'",
        f"vary: the model gives no other question: {ASKED!r}",
        "verify: exact gives 0 to '12'",
    ]


def test_a_chat_keeps_its_answer_and_what_has_not_one_question_is_not_asked_about() -> None:
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "11"}]
    others: list[dict[str, Any]] = [{"messages": turns * 2, "answer": 11}, {"question": "Why?"}]
    cleaned = made({"messages": turns, "answer": 11}, *others, replies=[ASKED, "11"])
    variant = cleaned.rows[1].fields
    assert question_of(variant) == ASKED and variant["messages"][1] == turns[1]
    assert cleaned.dropped_by == {"vary": 2}


def test_a_variant_of_a_held_out_question_is_held_out_wherever_it_goes() -> None:
    index = SuiteIndex([SuiteQuestion("suite", 0, QUESTION)])
    row = {"question": QUESTION, "answer": "11"}
    assert made(row, replies=[], held_out=index).dropped_by == {"contamination": 1}
    variant = made(row, replies=[ASKED, "11"]).rows[1].fields
    plain = variant | {"metadata": {}}
    in_task = task(metadata={VARIANT_OF: QUESTION})
    for texts, leaks in ((texts_of(variant), True), (texts_of(plain), False), (row_of_task(in_task, "").texts, True)):
        assert any(match.is_leak for match in index.matches(RowTexts("", texts))) is leaks


def test_variants_are_in_the_cluster_of_their_question_also_without_it() -> None:
    def origin(question: str, of: str | None = None) -> ExampleOrigin:
        return ExampleOrigin((f"task {question}",), question, "train", None, of)

    others = [origin(f"What is the capital of country {number}?") for number in range(3)]
    variants = [origin(ASKED, QUESTION), origin("Sum up 4 apples and 7.", QUESTION)]
    for questions in ([*others, *variants], [*others, *variants, origin(QUESTION)]):
        clusters = clusters_of(questions, 0.8)
        assert [clusters.root(place) for place in range(len(questions))] == [0, 1, 2, *[3] * (len(questions) - 3)]
