"""What a run measures, and the order of files that comes from it (tests/times.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import times

CASES = """
import subprocess, sys, pytest
BURN = "import time\\nwhile time.process_time() < 0.3: pass"

@pytest.fixture
def costly():
    exec(BURN.replace("0.3", f"{__import__('time').process_time() + 0.2}"))

def test_own(costly): ...
def test_child(): subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
def test_free(): ...
"""


@pytest.mark.parametrize("workers", [["-p", "no:xdist"], ["-n", "1"]])
def test_a_run_measures_the_cpu_of_cases_fixtures_and_ended_children(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "tests.times", *workers, f"--rootdir={tmp_path}", str(tmp_path)]
    subprocess.run(run, check=True, cwd=times.ROOT, timeout=300)
    (measured,) = times.read(times.file_of(tmp_path)).values()
    cpu = {name: spent[1] for kind in measured.values() for name, spent in kind.items()}
    assert cpu["test_own"] >= cpu["costly"] >= 0.2 and cpu["test_child"] >= 0.3 > cpu["test_free"]
    if "-n" in workers:  # how cases are chosen is the same with workers
        return
    subprocess.run([*run, "-k", "free"], check=True, cwd=times.ROOT, timeout=300)
    (chosen,) = times.read(times.file_of(tmp_path)).values()
    assert chosen["cases"]["test_own"] == measured["cases"]["test_own"]
    assert chosen["cases"]["test_free"] != measured["cases"]["test_free"]


def test_the_longest_file_begins_and_the_tests_of_a_file_keep_their_order() -> None:
    (longest, second, *_) = sorted(times.seconds(), key=lambda file: -times.seconds()[file])
    ids = ["tests/unit/none.py::b", f"{second}::z", f"{longest}::b", "tests/unit/none.py::a", f"{longest}::a"]
    items: list[Any] = [SimpleNamespace(nodeid=each) for each in ids]
    times.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [ids[2], ids[4], ids[1], ids[0], ids[3]]
