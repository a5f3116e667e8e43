"""Tests for verdicts: their rules as events, and their recount."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.guardrails.recount_verdicts import VerdictRecount
from schemas.events import Coordinates, GuardrailVerdict, TextSpan, Turn, problems
from streams.kafka.record import Record
from tests.support.factories import guardrail_verdict, turn


class WholeLog:
    """A view of a log of which nothing was deleted."""

    def is_cut(self, label: str) -> bool:
        return False


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({}, None),
        ({"rule": "email"}, "NAME/VERSION"),
        ({"turn_id": "t1"}, "names its turn"),
        ({"place": "answer"}, "names its turn"),
        ({"spans": (TextSpan(start=4, end=3),)}, "ends before it begins"),
    ],
)
def test_verdict_names_a_versioned_rule_and_the_turn_of_an_answer(changes: dict[str, Any], problem: str | None) -> None:
    complaints = " ".join(problems(guardrail_verdict(**changes)))
    assert complaints == "" if problem is None else problem in complaints


def recount(*events: GuardrailVerdict | Turn) -> tuple[list[str], dict[str, int]]:
    """Return the findings about these events, and the counts."""
    subject, view = VerdictRecount(), WholeLog()
    for event in events:
        subject.take(Record(Coordinates("turns", 0, 0), 0, b"", b""), event)
    outcome = subject.report(view, None)  # type: ignore[arg-type]
    return [finding.what for finding in outcome.findings], dict(outcome.counts)


BLOCKED = {
    "verdict_id": "v2",
    "verdict": "block",
    "mode": "block",
    "place": "answer",
    "turn_id": "t1",
    "rule": "iban/1",
}


def test_audit_counts_each_verdict_once_and_names_an_answer_that_was_withheld_without_one() -> None:
    withheld = turn(turn_id="t1", metadata={"withheld": "iban/1"})
    findings, counts = recount(guardrail_verdict(), guardrail_verdict(), guardrail_verdict(**BLOCKED), withheld)
    assert findings == []
    assert counts == {"guardrail verdicts": 2, "guardrail flags": 1, "guardrail blocks": 1}
    missing = ["its answer was changed by iban/1, and no verdict says so"]
    assert recount(withheld)[0] == missing
    assert recount(withheld, guardrail_verdict(**BLOCKED | {"mode": "monitor"}))[0] == missing
