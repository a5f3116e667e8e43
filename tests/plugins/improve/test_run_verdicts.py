"""The verdict in view `runs`: the newest, and a person's before all others; without the topic there is none."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from plugins.improve.curation.promotion_guard import GroundedVerdict, event_of
from plugins.improve.curation.run_lookup import find_run
from plugins.improve.curation.verdicts import VerdictFold
from plugins.improve.triggers.promoted_runs import PromotedRuns
from schemas.conventions import CONVERSATION
from schemas.events import Coordinates, CurationEvent, Event, TrajectoryEvent, derive_id
from streams.settings.model import Archive, Settings, Topics
from streams.tools.archive import history
from streams.tools.query import runs_view
from streams.tools.views.log_view import LogView
from tests.support.appended import Appended
from tests.support.factories import T0, curation_event
from tests.support.log.archive_of import archived
from tests.support.talks import TALK, served
from tests.unit.test_run_files import by_label
from tests.unit.test_runs_view import chat, failing_thread, rows_of_view


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


def test_an_id_names_a_conversation_or_the_answer_of_one_of_its_runs(tmp_path: Path) -> None:
    one_partition = Topics(partitions=1, policy_partitions=1)
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")), topics=one_partition)
    archived(settings, by_label(failing_thread()), count(T0))
    ids = ("red.run0", "red.run1", "red.run2")
    with closing(LogView(settings, "archive")) as view, view.snapshot() as log:
        judged = {name: find_run(log, history.of(settings, "archive"), name) for name in (TALK, *ids)}
    said = GroundedVerdict(verdict="promote", labeller="person", rationale="so")
    events = {name: event_of(run, said, actor="ann", before=None, now_ms=T0) for name, run in judged.items()}
    assert {name: (event.answer_id, event.task_id, event.runs) for name, event in events.items()} == {
        TALK: (TALK, TALK, ids), **{name: (name, TALK, (name,)) for name in ids},
    }  # fmt: skip
    assert [run.row.turns for run in judged.values()] == [3, 1, 1, 1]
    assert events[TALK].source_offset == events["red.run2"].source_offset > events["red.run1"].source_offset


def test_an_id_names_a_thread_of_tasks_or_the_answer_to_one_and_its_verdict_balances(tmp_path: Path) -> None:
    settings = Settings(
        archive=Archive(store=str(tmp_path / "archive")), topics=Topics(partitions=1, policy_partitions=1)
    )
    tasks = [event for run in served("one", "two", "three") for event in run]
    archived(settings, by_label(tasks), count(T0))
    ids = tuple(derive_id(f"s{place}", 0) for place in range(3))
    (talk,) = {event.metadata[CONVERSATION] for event in tasks if isinstance(event, TrajectoryEvent)}
    with closing(LogView(settings, "archive")) as view, view.snapshot() as log:
        judged = {name: find_run(log, history.of(settings, "archive"), name) for name in (talk, *ids)}
    said = GroundedVerdict(verdict="promote", labeller="person", rationale="so")
    events = {name: event_of(run, said, actor="ann", before=None, now_ms=T0) for name, run in judged.items()}
    assert {name: (event.answer_id, event.task_id, event.runs) for name, event in events.items()} == {
        talk: (talk, talk, ids), **{name: (name, talk, (name,)) for name in ids},
    }  # fmt: skip
    assert [run.row.turns for run in judged.values()] == [3, 1, 1, 1]
    assert [(event.source_topic, event.source_offset) for event in events.values()] == [
        ("streamward.groups", offset) for offset in (2, 0, 1, 2)
    ]
    promoted = PromotedRuns({})
    promoted.take(Coordinates("streamward.curation", 0, 0), events[talk])
    assert promoted.task_ids() == ["t2", "t1", "t0"]
