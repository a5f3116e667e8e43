"""TransferQueue on the log: its own tests with our backend, a program that is killed, and verl's DataProto through it.

make test-verl ──► .venv-verl: verl, TransferQueue, Ray ──► the backend of plugins/verl/transfer_queue ──► Kafka
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streams.settings.model import Settings
from tests.skips import needs
from tests.support.verl.environment import PYTHON, ROOT, SUITES, NoVerl, install_metadata, queue_environment, suite

pytestmark = [pytest.mark.verl, pytest.mark.kafka]
PROGRAM = [str(PYTHON), "-W", "ignore", "-m", "queue_program"]
PUTS = 6
"""Acknowledged puts after which the program is killed."""


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        suite(SUITES[0])
    except NoVerl as exc:
        assert os.environ.get("TEST_VERL") != "1", f"verl was promised, but there is no {exc}"
        pytest.skip(needs(str(exc), "make setup-verl && make test-verl"))


def run(made: Settings, *arguments: str, **others: Any) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments], env=queue_environment(made, **others), cwd=ROOT, capture_output=True, text=True
    )


def answer(made: Settings, *arguments: str, **others: Any) -> dict[str, Any]:
    """Run the program to its end, and return what it says."""
    done = run(made, *arguments, **others)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", SUITES)
def test_tests_of_transfer_queue_pass_with_our_backend(made: Settings, tmp_path: Path, name: str) -> None:
    options = ["-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", "their_suites"]
    done = subprocess.run(
        [str(PYTHON), "-m", "pytest", *options, "--import-mode=importlib", str(suite(name))],
        env=queue_environment(made, restore="empty"), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_a_program_that_is_killed_with_all_its_processes_finds_what_was_acknowledged(made: Settings) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "write"], env=queue_environment(made), cwd=ROOT, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(json.loads(line))
        if len(said) == 2 * PUTS:
            break
    os.killpg(process.pid, signal.SIGKILL)  # the driver, the controller and the rest of Ray
    said += [json.loads(line) for line in process.stdout.read().splitlines()]
    process.communicate()
    put = {number for line in said for number in line.get("put", ())}
    cleared = {number for line in said for number in line.get("cleared", ())}
    restored = answer(made, "read")
    assert restored["same"]
    assert put - cleared - set(restored["numbers"]) <= {max(put) // 4 * 4}, "only a clear in flight may be unsaid"
    assert set(restored["numbers"]) & cleared == set()


def test_a_batch_of_verl_goes_through_the_queue_unchanged(made: Settings) -> None:
    assert answer(made, "data-proto", VERL_USE_EXTERNAL_MODULES="plugins.verl.transfer_queue")["same"]


def test_verl_finds_the_backend_by_its_entry_point_when_nothing_of_ours_is_imported(
    made: Settings, tmp_path: Path
) -> None:
    install_metadata(tmp_path)
    assert answer(made, "data-proto", installed=tmp_path)["same"]
    without = run(made, "data-proto", installed=tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert without.returncode != 0 and "Streamward not registered" in without.stdout + without.stderr
