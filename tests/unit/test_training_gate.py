"""Every gate sees every row before it is trained on, and what each records is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest

from streams.errors import RefusedError
from streams.rows.row_texts import RowTexts
from streams.rows.training_gate import AllHeldOut, ReasonFinder, TrainingUse

USE = TrainingUse("the next batch of default")


class HeldOutWord(NamedTuple):
    """Holds out a word, where nobody allows it."""

    word: str

    def check(self, rows: Iterable[RowTexts], use: TrainingUse) -> Mapping[str, str]:
        leaks = [row for row in rows if self.word in row.texts]
        if any((row.allowed_by or use.allowed_by) is None for row in leaks):
            raise RefusedError(f"{use.place}: {self.word}")
        return {self.word: str(len(leaks))} if leaks else {}

    def finder(self, policy: str) -> ReasonFinder | None:
        return (lambda row: f"the word {self.word}" if self.word in row.texts else None) if policy else None


def rows(*texts: str, allowed_by: str | None = "ann") -> Iterator[RowTexts]:
    return (RowTexts(f"row {number}", (text,), allowed_by=allowed_by) for number, text in enumerate(texts))


GATES = AllHeldOut([HeldOutWord("tea"), HeldOutWord("milk")])


def test_every_gate_sees_every_row_and_what_all_record_is_recorded() -> None:
    assert GATES.check(rows("tea", "milk", "tea"), USE) == {"tea": "2", "milk": "1"}


@pytest.mark.parametrize("word", ["tea", "milk"])
def test_what_one_gate_refuses_is_refused(word: str) -> None:
    with pytest.raises(RefusedError, match=f"the next batch of default: {word}"):
        GATES.check(rows("water", word, allowed_by=None), USE)


def test_the_reason_is_that_of_a_gate_that_holds_a_row_out_and_without_one_no_row_is_looked_at() -> None:
    finder = GATES.finder("default")
    assert finder is not None
    assert [finder(row) for row in rows("milk", "water")] == ["the word milk", None]
    assert GATES.finder("") is None and AllHeldOut([]).finder("default") is None
    untouched = rows("tea")
    assert AllHeldOut([]).check(untouched, USE) == {} and next(untouched).texts == ("tea",)
