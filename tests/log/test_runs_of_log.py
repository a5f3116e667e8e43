"""Runs of a real log, half of it archived: view, fold, tracker and file have the same rows, before and after a sync."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.events import derive_id
from streams.settings.model import Archive, Prices, Settings
from streams.tools.archive import history, sync
from streams.tools.query import formats
from streams.tools.query.finished import FinishedReader
from streams.tools.query.session import NO_LIMITS, Session
from streams.tools.query.source import Scope
from streams.tools.runs.run_archive import RunArchiveService
from streams.tools.runs.run_row import FigureRules, FinishedRun, run_row
from streamward import RunTracker
from tests.support.log.shared_node import own_topics
from tests.support.processes import write
from tests.unit.test_runs_view import EVERYTHING, chat, check_equal, direct_answers, walk

pytestmark = pytest.mark.kafka
DIRECT = {*(derive_id("t1", slot) for slot in range(3)), derive_id("t2", 0), derive_id("t3", 0)}
"""The answers without an agent."""


def view_rows(settings: Settings, scope: Scope = NO_LIMITS) -> dict[str, dict[str, Any]]:
    with Session(settings, scope=scope) as session:
        result = session.run("FROM runs")
        rows = [dict(zip(result.names, row, strict=True)) for row in formats.rows(result)]
    assert len({row["answer_id"] for row in rows}) == len(rows)
    return {row["answer_id"]: row for row in rows}


def fold_rows(settings: Settings) -> dict[str, FinishedRun]:
    rules = FigureRules.of(settings)
    ended = FinishedReader(settings, history.of(settings, "auto"), EVERYTHING).round()
    return {finished.answer_id: run_row(finished, rules, None) for finished in ended}


def test_runs_are_the_same_rows_of_log_and_archive_whoever_reads_them(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = own_topics(
        kafka_bootstrap,
        {"partitions": 1, "policy_partitions": 1},
        archive=Archive(store=str(tmp_path / "archive")),
        prices=Prices(prompt_usd=10.0, completion_usd=100.0),
    )
    events = [*direct_answers(), *chat("red.chat"), *walk(5)]
    half = len(events) // 2
    write(settings, *events[:half])
    sync.sync(settings)
    write(settings, *events[half:])
    live, fold = view_rows(settings), fold_rows(settings)
    assert live.keys() == fold.keys() == DIRECT | {"red.chat", derive_id("t4", 0)}
    check_equal(live, fold)
    file = tmp_path / "runs.jsonl"
    assert RunArchiveService(settings).archive(file)[1:] == (len(fold), len(fold), [])
    sync.sync(settings)
    assert view_rows(settings) == live
    assert RunArchiveService(settings, source="archive").archive(file).written == 0, "nothing has changed"
    assert [json.loads(line)["answer_id"] for line in file.read_text().splitlines()] == sorted(
        fold, key=lambda name: (fold[name].ended_ms or 0, name)
    )
    assert RunTracker(settings).track("red.chat") == fold["red.chat"]
    assert view_rows(settings, Scope(until_ms=1)) == {}
