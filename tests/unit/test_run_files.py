"""Runs in files and in programs: what is new or has changed is written once, whatever is repeated or was killed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Event, derive_id
from streams.errors import NotFoundError, RefusedError
from streams.kafka.topics import topics
from streams.settings.model import Archive, Settings
from streams.tools.runs.run_archive import COLUMNS, RunArchiveService, append_lines, write_database
from streams.tools.runs.run_tracker import RunTracker
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0, response, reward, task, trajectory
from tests.support.log.archive_of import archived
from tests.unit.test_runs_view import chat, direct_answers

CHAT, FIRST = "red.chat", derive_id("t1", 0)


def row(name: str, **changes: Any) -> dict[str, Any]:
    """Return a row as the view has it."""
    plain = dict.fromkeys(COLUMNS) | {"answer_id": name, "scores": {"exact": 0.5}, "versions": [0, 1], "turns": 2}
    return plain | {"success": True} | changes


def by_label(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Return events by the label of their topic."""
    labels = {topic.event: label for label, topic in topics(Settings().topics).items()}
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(labels[type(event)], []).append(event)
    return found


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A log with answers, a chat that has ended, and one that goes on."""
    made = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("runs") / "archive")))
    events = [*direct_answers(), *chat(CHAT), *chat("open", ends=False, agent_id="calc")]
    archived(made, by_label(events), count(T0))
    return made


def printed(settings: Settings, *args: str) -> list[dict[str, Any]]:
    return rows_of(invoke(settings, "runs", *args, "--source", "archive"))


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_run_is_appended_again_when_its_row_has_changed_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert append_lines(path, [row("a"), row("b")]) == (2, 2)
    assert append_lines(path, [row("a"), row("b", feedback=0.5), row("c")]) == (3, 2)
    assert append_lines(path, [row("a"), row("b", feedback=0.5)]) == (2, 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["answer_id"], line["feedback"]) for line in lines] == [
        ("a", None), ("b", None), ("b", 0.5), ("c", None),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_a_killed_export_left_half_written_is_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "runs.jsonl"
    append_lines(path, [row("a"), row("b")])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert append_lines(path, [row("a"), row("b")]) == (2, 1)
    assert path.read_bytes() == whole


def test_a_file_that_has_no_runs_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"answer_id": "a"}\n{"task_id": "t1"}\n')
    with pytest.raises(RefusedError, match=r"runs.jsonl:2: expected a line of `runs export`, which has an answer_id"):
        append_lines(path, [row("a")])


def test_a_database_has_each_run_once_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert write_database(path, [row("a"), row("b")]) == (2, 2)
    assert write_database(path, [row("a"), row("b", feedback=0.5)]) == (2, 1)
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT answer_id, feedback, versions, scores, success FROM runs ORDER BY 1")
        assert rows.fetchall() == [
            ("a", None, "[0, 1]", '{"exact": 0.5}', 1),
            ("b", 0.5, "[0, 1]", '{"exact": 0.5}', 1),
        ]


def test_a_database_whose_export_was_killed_is_as_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    write_database(path, [row("a")])

    def killed() -> Iterator[dict[str, Any]]:
        yield row("b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_database(path, killed())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT answer_id FROM runs").fetchall() == [("a",)]


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    other, text = tmp_path / "other.db", tmp_path / "text.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE runs (id TEXT)")
    with pytest.raises(RefusedError, match="its table runs has other columns"):
        write_database(other, [row("a")])
    text.write_text("no database, but a text that is long enough to be taken for one " * 20)
    with pytest.raises(RefusedError, match="file is not a database"):
        write_database(text, [row("a")])


# --- of a log ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.db"])
def test_an_export_has_the_runs_that_have_ended_and_repeated_it_writes_nothing(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    service = RunArchiveService(settings, source="archive")
    assert service.archive(path)[1:] == (6, 6, [])
    assert service.archive(path)[1:] == (6, 0, [])
    (summary,) = printed(settings, "export", "--to", str(path), "--where", "agent_id IS NOT NULL")
    assert summary == {"file": str(path), "runs": 1, "written": 0}


def test_the_command_the_service_and_the_tracker_say_the_same_of_a_run(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunArchiveService(settings, source="archive").archive(path)
    lines = {line["answer_id"]: line for line in map(json.loads, path.read_text().splitlines())}
    tracker = RunTracker(settings, source="archive")
    for name in (CHAT, FIRST):
        (shown,) = printed(settings, "show", name)
        tracked = asdict(tracker.track(name))
        lists = {field: list(tracked[field]) for field in ("versions", "run_ids")}
        assert shown == lines[name] == tracked | lists
    assert tracker.track("open").ending is None
    assert tracker.track("red.ch").answer_id == CHAT, "no other run begins so"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), {"open", CHAT, *(derive_id("t1", slot) for slot in (0, 1, 2)), derive_id("t2", 0), derive_id("t3", 0)}),
        (("--agent", "red.calc"), {CHAT}),
        (("--scenario", "chat"), {CHAT, "open"}),
        (("--scenario", "sums"), {derive_id("t1", slot) for slot in (0, 1, 2)}),
        (("--version", "2"), {CHAT, "open"}),
        (("--version", "4"), {derive_id("t3", 0)}),
        (("--failed-tools", "--policy", "default"), {CHAT, "open"}),
        (("--verdict", "promote"), set()),
        (("--verdict", "none", "--agent", "calc"), {"open"}),
        (("--purpose", "serve"), {CHAT, "open", derive_id("t3", 0)}),
    ],
)
def test_a_list_has_the_runs_that_its_options_choose(
    settings: Settings, options: tuple[str, ...], names: set[str]
) -> None:
    assert {line["answer_id"] for line in printed(settings, "list", *options)} == names


def test_a_list_is_the_newest_first_and_no_longer_than_its_limit(settings: Settings) -> None:
    newest = [line["answer_id"] for line in printed(settings, "list")]
    assert [line["answer_id"] for line in printed(settings, "list", "--limit", "2")] == newest[:2]


def test_a_run_that_the_log_does_not_have_is_not_found(settings: Settings) -> None:
    with pytest.raises(
        NotFoundError, match="no run, or more than one, begins with 'nothing'; `streamward runs list` lists them"
    ):
        RunTracker(settings, source="archive").track("nothing")


def test_a_log_without_runs_has_none(tmp_path: Path) -> None:
    empty = Settings(archive=Archive(store=str(tmp_path / "archive")))
    assert printed(empty, "list") == []
    assert RunArchiveService(empty, source="archive").archive(tmp_path / "runs.jsonl").runs == 0
    assert (tmp_path / "runs.jsonl").read_text() == ""


def test_an_answer_whose_group_is_open_is_exported_again_when_it_has_its_reward(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    answer = response()
    log: dict[str, list[Any]] = {"tasks": [task()], "responses": [answer], "trajectories": [trajectory("started")]}
    archived(settings, log, count(T0))
    service = RunArchiveService(settings, source="archive")
    assert service.archive(tmp_path / "runs.db").written == 1
    archived(settings, {"rewards": [reward(answer)]}, count(T0))
    assert service.archive(tmp_path / "runs.db").written == 1
