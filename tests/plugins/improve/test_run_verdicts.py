"""The verdict in view `runs`: the newest, and a person's before all others; without the topic there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plugins.improve.curation.verdicts import VerdictFold
from schemas.events import CurationEvent, Event, derive_id
from streams.tools.query import runs_view
from tests.support.appended import Appended
from tests.support.factories import curation_event
from tests.unit.test_runs_view import chat, rows_of_view


def verdict(answer_id: str, labeller: str, made: str, number: int) -> Event:
    return replace(
        curation_event(),
        answer_id=answer_id,
        task_id=answer_id,
        event_id=derive_id(answer_id, labeller, number),
        labeller=labeller,
        verdict=made,
        judge=None,
        agreement=None,
    )


def judged() -> Appended:
    """Return a log with four chats and, for three of them, verdicts."""
    chats = [event for name in ("by-person", "by-gates", "unjudged", "by-two") for event in chat(f"red.{name}")]
    return Appended(
        *chats,
        verdict("red.by-person", "gates", "reject", 0),
        verdict("red.by-person", "person", "promote", 1),
        verdict("red.by-person", "gates", "reject", 2),
        *(verdict("red.by-gates", "gates", made, n) for n, made in enumerate(("promote", "reject", "needs_human"))),
        verdict("red.by-two", "person", "promote", 0),
        verdict("red.by-two", "person", "reject", 1),
        verdict("red.by-two", "person", "promote", 0),
    )


def test_a_run_has_the_verdict_that_counts_whoever_folds_it() -> None:
    log, fold = judged(), VerdictFold()
    for record in log.records["streamward.curation"]:
        event = record.decode(CurationEvent)
        assert isinstance(event, CurationEvent)
        fold.take(record.at, event)
    verdicts = {name: row["verdict"] for name, row in rows_of_view(log).items()}
    placed = {name: fold.effective(name) for name in verdicts}
    assert verdicts == {name: one and one.event.verdict for name, one in placed.items()}
    assert list(verdicts.values()).count(None) == 1 and verdicts["red.by-person"] == "promote"


def test_without_the_topic_of_verdicts_every_run_has_its_figures_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = judged()
    whole = rows_of_view(log)
    monkeypatch.setattr(runs_view, "SHAPES", {})
    assert rows_of_view(log) == {name: row | {"verdict": None} for name, row in whole.items()}
