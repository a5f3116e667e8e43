"""What became of a group: the function that decides it, the statement that says the same, and the words for each."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import duckdb
import pytest

from schemas.conventions import SCORELESS
from streams.stages.scoring.breaker import PAUSED_REASON
from streams.tools.dead_letters.originals import BYTES_DECIDE
from streams.tools.views.group_outcome import NOTHING_REASON_SQL, GroupOutcome, nothing_reason, outcome
from streams.topics import reasons
from tests.import_graph import ROOT

CLIENTS = (ROOT / "docs/clients.md").read_text()


def row(**changes: Any) -> dict[str, Any]:
    """Return a train group that waits for a batch."""
    plain = {"purpose": "train", "dropped_reason": None, "flat": False, "passed_over": None}
    return plain | {"trained": None, "sequence": None} | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropped_reason": "too_few_scored", "flat": True}, "too_few_scored"),
        ({"flat": True, "passed_over": "zero_variance"}, "zero_variance"),
        ({"flat": True, "passed_over": "stale"}, "zero_variance"),  # also in time it had taught nothing
        ({"passed_over": "stale"}, "stale"),
        ({"purpose": "eval", "flat": True}, None),
        ({"purpose": "eval", "dropped_reason": "unanswered"}, "unanswered"),
        ({}, None),
    ],
)
def test_the_first_reason_why_a_group_taught_nothing_counts(changes: dict[str, Any], reason: str | None) -> None:
    group = row(**changes)
    assert nothing_reason(group["purpose"], group["dropped_reason"], group["flat"], group["passed_over"]) == reason


def test_the_statement_gives_the_reasons_of_the_function() -> None:
    reasons, purposes = (None, "stale", "unanswered"), ("train", "eval", "serve")
    con = duckdb.connect()
    for purpose, dropped, flat, passed_over in product(purposes, reasons, (True, False), reasons):
        values = "SELECT $1::VARCHAR AS purpose, $2::VARCHAR AS dropped_reason, $3 AS flat, $4::VARCHAR AS passed_over"
        sql = f"SELECT {NOTHING_REASON_SQL} FROM ({values})"  # noqa: S608 - of the product
        (answer,) = con.execute(sql, [purpose, dropped, flat, passed_over]).fetchall()
        assert answer == (nothing_reason(purpose, dropped, flat, passed_over),)


@pytest.mark.parametrize(
    ("changes", "verdict", "label"),
    [
        ({"dropped_reason": "unanswered"}, "nothing", "dropped: unanswered"),
        ({"purpose": "serve"}, "measured", "serve"),
        ({"flat": True, "sequence": 3, "trained": 4}, "nothing", "all equal"),
        ({"passed_over": "stale"}, "nothing", "left out: stale"),
        ({"sequence": 3, "trained": 4}, "taught", "taught version 4"),
        ({"sequence": 3}, "taught", "in batch 3"),
        ({}, "taught", "waits for a batch"),
    ],
)
def test_a_list_says_in_two_words_what_became_of_a_group(changes: dict[str, Any], verdict: str, label: str) -> None:
    result = outcome(row(**changes))
    assert (result.verdict, result.label) == (verdict, label)


def test_a_reason_without_words_is_shown_as_it_is() -> None:
    assert outcome(row(passed_over="solar_flare")) == GroupOutcome("nothing", "left out: solar_flare", "Solar_flare.")


def test_every_reason_of_a_dead_letter_has_its_words() -> None:
    assert {*reasons.HOPELESS, *reasons.WAYS_OUT} == {*reasons.TEXTS}
    assert {*SCORELESS, PAUSED_REASON, *BYTES_DECIDE} <= {*reasons.TEXTS}
    table = CLIENTS.partition("reason of the dead letter")[2].partition("\n\n")[0]
    documented = {word for line in table.splitlines() for word in re.findall(r"`(\w+)`", line.rsplit("|", 2)[-2])}
    assert "contradictory" in documented and documented <= {*reasons.TEXTS}
    assert (reasons.reason_text("solar_flare"), reasons.way_out("solar_flare")) == ("solar_flare", "")
    for text in reasons.TEXTS.values():
        assert not text.endswith(".") and text[0].islower(), text
