"""A replay on Ray writes the bytes of a replay on one machine; executors that are not as this one are refused."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.settings.model import Settings
from tests.skips import needs
from tests.support.log import spread_replay as spread
from tests.support.log.secured_node import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.ray]
PYTHON = spread.ROOT / ".venv-ray" / "bin" / "python"
RAY_PROMISED = "TEST_RAY"


@pytest.fixture
def ray(tmp_path: Path) -> dict[str, str]:
    """What Ray needs in its environment."""
    if not PYTHON.exists():
        assert os.environ.get(RAY_PROMISED) != "1", "Ray was promised, but there is no .venv-ray"
        pytest.skip(needs("ray in .venv-ray", "make setup-ray && make test-ray"))
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # names of sockets have an end
    return {"RAY_TMPDIR": short, "RAY_AUTH_MODE": "disabled"}


@contextmanager
def cluster(folder: Path, env: dict[str, str], cwd: Path) -> Iterator[str]:
    """Run a Ray cluster of one node, whose processes find the packages in `folder` before others; yield its address."""
    (port,) = free_ports(1)
    own = {**os.environ, **env, "PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    where = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    command = [str(PYTHON), "-m", "ray.scripts.scripts", "start", *where, "--block"]
    with subprocess.Popen(command, env=own, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()


def run(settings: Settings, env: dict[str, str], cwd: Path, *more: str) -> spread.Ended:
    return spread.replayed(PYTHON, settings, *more, env=env, cwd=cwd)


def test_every_byte_is_that_of_a_replay_on_one_machine(settings: Settings, ray: dict[str, str], tmp_path: Path) -> None:
    source = spread.archived(settings)
    here = run(source, ray, tmp_path, "--source", "archive")
    assert here.code == 0, here.stderr
    expected = spread.taken(source)
    assert {label for label, rows in expected.items() if rows} >= {"groups", "dead-letters", "batches", "responses"}
    there = run(source, ray, tmp_path, "--on", "ray")
    assert there.code == 0, there.stderr
    assert spread.taken(source) == expected
    assert there.stdout == here.stdout


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        (spread.no_streamward, "cannot run Streamward: ModuleNotFoundError: No module named"),
        (spread.other_release, "so what it makes may have other bytes"),
        (spread.without_schema, "lacks the schema"),
    ],
)
def test_an_executor_that_is_not_as_this_process_is_refused_before_anything_is_written(
    settings: Settings, ray: dict[str, str], tmp_path: Path, executor: Callable[[Path], Path], says: str
) -> None:
    source = spread.archived(settings)
    with cluster(executor(tmp_path / "elsewhere"), ray, tmp_path) as address:
        done = run(source, {**ray, "RAY_ADDRESS": address}, tmp_path, "--on", "ray")
    assert (done.code, says in done.stderr, "Nothing was written" in done.stderr) == (2, True, True), done.stderr
    assert spread.nothing_written(source)


def test_a_topic_that_was_never_archived_is_refused(settings: Settings, ray: dict[str, str], tmp_path: Path) -> None:
    source = spread.archived(settings)
    (spread.folder_of(source, "rewards")).rename(tmp_path / "gone")
    done = run(source, ray, tmp_path, "--on", "ray")
    assert (done.code, "does not hold" in done.stderr, "archive sync" in done.stderr) == (3, True, True), done.stderr
    assert spread.nothing_written(source)


def test_a_segment_that_was_changed_is_named_and_no_record_is_copied(
    settings: Settings, ray: dict[str, str], tmp_path: Path
) -> None:
    source = spread.archived(settings)
    spread.damage(source)
    done = run(source, ray, tmp_path, "--on", "ray")
    assert (done.code, "it was changed since it was written" in done.stderr) == (5, True), done.stderr
    assert not any(spread.taken(source).values())


def test_an_export_has_the_files_of_one_on_one_machine(settings: Settings, ray: dict[str, str], tmp_path: Path) -> None:
    source = spread.archived(settings)
    here = spread.exported(PYTHON, source, "here", "--source", "archive", env=ray, cwd=tmp_path)
    there = spread.exported(PYTHON, source, "there", "--on", "ray", env=ray, cwd=tmp_path)
    assert (here.code, there.code) == (0, 0), here.stderr + there.stderr
    assert there.stdout.replace("there", "here") == here.stdout
    assert spread.files(tmp_path / "there") == spread.files(tmp_path / "here")
    assert len(spread.files(tmp_path / "here")["train.jsonl"]) > 1000
