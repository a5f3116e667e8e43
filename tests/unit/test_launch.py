"""The processes of one trainer: which is which, and how all of them end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from streams.errors import EXIT_RESTART, SettingsError
from streams.settings.model import Model, Settings, Trainer
from trainer.ranks import launcher
from trainer.ranks.launcher import Place

ROOT = Path(__file__).parents[2]
AS_RANK = "import os, signal, sys, time; rank = int(os.environ['RANK'])\n"


def settings(processes: int = 2, device: str = "cpu") -> Settings:
    return Settings(trainer=Trainer(processes=processes), model=Model(device=device))


# --- which is which ---------------------------------------------------------------------------------------------------


def test_a_process_that_no_launcher_started_is_no_rank() -> None:
    assert launcher.place_from_env(settings(1), {}) is None
    assert launcher.place_from_env(settings(4), {"WORLD_SIZE": "1", "RANK": "0"}) is None


def test_a_rank_of_accelerates_launcher_meets_the_others_where_that_says_and_no_library_sees_that_there_are_any() -> (
    None
):
    env = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert launcher.place_from_env(settings(), env) == Place(1, 2, "env://")
    assert env == {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_another_number_of_processes_than_the_recipe_has_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"started 3 processes, but trainer\.processes is 2; set the same"):
        launcher.place_from_env(settings(), {"WORLD_SIZE": "3", "RANK": "0"})


@pytest.mark.parametrize(("seen", "own"), [(None, "1"), ("4,6", "6"), ("GPU-a,GPU-b,GPU-c", "GPU-b")])
def test_each_rank_sees_one_device_and_it_is_its_own(seen: str | None, own: str) -> None:
    env = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"} | ({"CUDA_VISIBLE_DEVICES": seen} if seen else {})
    launcher.place_from_env(settings(device="cuda"), env)
    assert env["CUDA_VISIBLE_DEVICES"] == own


def test_a_rank_without_a_device_of_its_own_is_refused() -> None:
    env = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    with pytest.raises(SettingsError, match=r"has 1 devices, and trainer\.processes is 2; each needs its own"):
        launcher.place_from_env(settings(device="cuda"), env)


def test_one_named_device_for_several_processes_is_refused_before_any_is_started() -> None:
    with pytest.raises(SettingsError, match=r"names one device, .*set model\.device=cuda"):
        launcher.place_from_env(settings(device="cuda:1"), {})


# --- how they end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "code"),
    [
        ("pass", "pass", 0),
        ("sys.exit(4)", "time.sleep(60)", 4),
        ("time.sleep(60)", "sys.exit(1)", EXIT_RESTART),
        ("time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)", EXIT_RESTART),
        ("os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(60)", EXIT_RESTART),
        ("time.sleep(60)", "sys.exit(2)", 2),
        ("sys.exit(75)", "time.sleep(0.5); sys.exit(2)", 2),
        ("time.sleep(0.5)", "pass", 0),
    ],
    ids=[
        "both have done their work",
        "a refusal is passed on",
        "another rank fails",
        "another rank is killed",
        "rank 0 is killed",
        "another rank refuses its settings",
        "and rank 0 notices first",
        "the others go home first",
    ],
)
def test_all_end_with_the_code_of_what_happened(
    rank_0: str, rank_1: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "HOME_S", 2.0)
    program = f"{AS_RANK}if rank == 0:\n    {rank_0}\nelse:\n    {rank_1}"
    before = psutil.Process().children()  # a Kafka node that other tests share, for one
    assert launcher.run_ranks([sys.executable, "-c", program], 2) == code
    assert psutil.Process().children() == before


LAUNCHER = """
import sys
from trainer.ranks import launcher
launcher.HOME_S = 2.0
sys.exit(launcher.run_ranks([sys.executable, "-c", sys.argv[1]], 2))
"""
JOINED = f"""{AS_RANK}
from pathlib import Path
from streams.settings.model import Settings, Trainer
from trainer.ranks import launcher
if rank == 0 and {{drains}}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
launcher.place_from_env(Settings(trainer=Trainer(processes=2)))
Path(f"{{folder}}/{{{{rank}}}}").touch()
while True:
    time.sleep(0.05)  # one long sleep would hold up a handler whose signal comes just before it
"""


@pytest.mark.parametrize("drains", [True, False], ids=["when it has begun", "before it has begun"])
def test_sigterm_is_passed_on_to_rank_0_whose_end_is_that_of_all(tmp_path: Path, drains: bool) -> None:
    process, ranks = started(tmp_path, drains)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    assert not any(rank.is_running() for rank in ranks)


def test_no_rank_outlives_a_launcher_that_was_killed(tmp_path: Path) -> None:
    process, ranks = started(tmp_path, True)
    process.kill()
    process.wait()
    assert psutil.wait_procs(ranks, timeout=300)[1] == []


def started(folder: Path, drains: bool) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A launcher in a process of its own whose two ranks have found their places."""
    program = JOINED.format(drains=drains, folder=folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, program], env=environment)
    until = time.monotonic() + 300
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    return process, psutil.Process(process.pid).children()
