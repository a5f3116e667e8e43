"""A replay on Ray or Spark writes the bytes of one on one machine; executors that are not as this one are refused."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from streams.settings.model import Settings
from tests.plugins.distributed import replays
from tests.skips import needs
from tests.support.log.secured_node import free_ports
from tests.support.spark import environment

pytestmark = pytest.mark.kafka
RAY_PYTHON = replays.ROOT / ".venv-ray" / "bin" / "python"
START_S = 120.0
"""For a cluster of Ray to start on a busy machine."""


@dataclass(frozen=True)
class Executors:
    """What replays, and what it needs in its environment."""

    name: str
    python: Path
    env: dict[str, str]
    folder: Path

    def run(self, settings: Settings, *more: str, **env: str) -> replays.Ended:
        """Replay with these options."""
        return replays.replayed(self.python, settings, *more, env={**self.env, **env}, cwd=self.folder)

    @contextmanager
    def elsewhere(self, packages: Path) -> Iterator[dict[str, str]]:
        """Yield what leads to executors that find the packages in this folder before others."""
        if self.name == "ray":
            with cluster(packages, self.env, self.folder) as address:
                yield {"RAY_ADDRESS": address}
            return
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {self.python} "$@"\n', encoding="utf-8")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        yield {"PYSPARK_PYTHON": str(python)}


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("ray", "spark")])
def executors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executors]:
    """Those of Ray, and those of Spark."""
    if request.param == "spark":
        with environment.promised():
            env = environment.variables(tmp_path)
        yield Executors("spark", environment.PYTHON, env, tmp_path)
        return
    if not RAY_PYTHON.exists():
        assert os.environ.get("TEST_RAY") != "1", "Ray was promised, but there is no .venv-ray"
        pytest.skip(needs("ray in .venv-ray", "make setup-ray && make test-ray"))
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as short:  # as sockets need
        yield Executors("ray", RAY_PYTHON, {"RAY_TMPDIR": short, "RAY_AUTH_MODE": "disabled"}, tmp_path)


@contextmanager
def cluster(folder: Path, env: dict[str, str], cwd: Path) -> Iterator[str]:
    """Run a Ray cluster of one node, whose processes find the packages in `folder` before others; yield its address."""
    port, *others = free_ports(3)
    names = ("dashboard-agent-listen", "dashboard")  # else as in every other cluster
    where = [f"--{name}-port={other}" for name, other in zip(names, others, strict=True)]
    where += ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    own = {**os.environ, **env, "PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [str(RAY_PYTHON), "-m", "ray.scripts.scripts", "start", *where, "--block"]
    with (
        (cwd / "head.log").open("wb") as log,
        subprocess.Popen(command, env=own, cwd=cwd, stdout=log, stderr=log) as head,
    ):
        try:
            _await(port, head, cwd / "head.log")
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()


def _await(port: int, head: subprocess.Popen[bytes], log: Path) -> None:
    """Return when something listens on the port; fail with what the process printed if it ends before."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and head.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"the cluster does not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def test_every_byte_is_that_of_a_replay_on_one_machine(
    settings: Settings, executors: Executors, tmp_path: Path
) -> None:
    source = replays.archived(settings)
    here = executors.run(source, "--source", "archive")
    assert here.code == 0, here.stderr
    expected = replays.taken(source)
    assert {label for label, rows in expected.items() if rows} >= {"groups", "dead-letters", "batches", "responses"}
    there = executors.run(source, "--on", executors.name)
    assert there.code == 0, there.stderr
    assert replays.taken(source) == expected
    assert there.stdout == here.stdout


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        (replays.no_streamward, "cannot run Streamward: ModuleNotFoundError: No module named"),
        (replays.other_release, "so what it makes may have other bytes"),
        (replays.without_schema, "lacks the schema"),
    ],
)
def test_an_executor_that_is_not_as_this_process_is_refused_before_anything_is_written(
    settings: Settings, executors: Executors, tmp_path: Path, executor: Callable[[Path], Path], says: str
) -> None:
    source = replays.archived(settings)
    with executors.elsewhere(executor(tmp_path / "elsewhere")) as env:
        done = executors.run(source, "--on", executors.name, **env)
    assert (done.code, says in done.stderr, "Nothing was written" in done.stderr) == (2, True, True), done.stderr
    assert replays.nothing_written(source)


def test_a_topic_that_was_never_archived_is_refused(settings: Settings, executors: Executors, tmp_path: Path) -> None:
    source = replays.archived(settings)
    (replays.folder_of(source, "rewards")).rename(tmp_path / "gone")
    done = executors.run(source, "--on", executors.name)
    assert (done.code, "does not hold" in done.stderr, "admin archive sync" in done.stderr) == (3, True, True), (
        done.stderr
    )
    assert replays.nothing_written(source)


def test_a_segment_that_was_changed_is_named_and_no_record_is_copied(
    settings: Settings, executors: Executors, tmp_path: Path
) -> None:
    source = replays.archived(settings)
    replays.damage(source)
    done = executors.run(source, "--on", executors.name)
    assert (done.code, "it was changed since it was written" in done.stderr) == (5, True), done.stderr
    assert not any(replays.taken(source).values())


def test_an_export_has_the_files_of_one_on_one_machine(
    settings: Settings, executors: Executors, tmp_path: Path
) -> None:
    source = replays.archived(settings)
    here = replays.exported(executors.python, source, "here", "--source", "archive", env=executors.env, cwd=tmp_path)
    there = replays.exported(executors.python, source, "there", "--on", executors.name, env=executors.env, cwd=tmp_path)
    assert (here.code, there.code) == (0, 0), here.stderr + there.stderr
    assert there.stdout.replace("there", "here") == here.stdout
    assert replays.files(tmp_path / "there") == replays.files(tmp_path / "here")
    assert len(replays.files(tmp_path / "here")["train.jsonl"]) > 1000
