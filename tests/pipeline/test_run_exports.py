"""An export of runs that is killed with SIGKILL while it writes, and repeated, has every run once."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from itertools import count
from pathlib import Path

import pytest

from schemas.events import Response, derive_id
from streams.settings.model import Archive, Settings
from tests.support.factories import T0, response
from tests.support.log.archive_of import archived
from tests.support.processes import command, environment, spawn, spawn_and_wait

RUNS, KILLS = 4000, 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = Settings(archive=Archive(store=str(tmp_path_factory.mktemp("runs") / "archive")))
    answers: list[Response] = [response(sampling_id=f"s{n}", task_id=f"t{n}") for n in range(RUNS)]
    archived(made, {"responses": answers}, count(T0))
    return made


def size_of(path: Path) -> int:
    """Return how much an export has written: the database, or what it writes before."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


@pytest.mark.kills
@pytest.mark.parametrize("name", ["runs.jsonl", "runs.db"])
def test_a_killed_export_is_repeated_and_has_every_run_once(settings: Settings, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    args = command("runs", "export", "--to", str(path), "--source", "archive", "--output", "jsonl")
    for _ in range(KILLS):
        before = size_of(path)
        with spawn(args, env=environment(settings), stdout=subprocess.DEVNULL) as export:
            while export.poll() is None and size_of(path) == before:
                time.sleep(0.001)
            export.send_signal(signal.SIGKILL)
    done = spawn_and_wait(args, env=environment(settings), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["runs"] == RUNS
    if name.endswith(".db"):
        with sqlite3.connect(path) as connection:
            ids = [row[0] for row in connection.execute("SELECT answer_id FROM runs")]
    else:
        ids = [json.loads(line)["answer_id"] for line in path.read_text().splitlines()]
    assert sorted(ids) == sorted(derive_id(f"s{n}", 0) for n in range(RUNS))
