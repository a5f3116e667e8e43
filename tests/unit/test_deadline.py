"""Work that hangs ends its process, which says where it stood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streams.errors import EXIT_RESTART
from streams.stages.policy.sampling import at_most

REPO = Path(__file__).parents[2]
HANGS = """
import threading
from streams.stages.policy.sampling import at_most
def hang(): threading.Event().wait()
with at_most({seconds}, "a round of 3 tasks"): {work}
print("done")
"""


def run(seconds: float, work: str) -> subprocess.CompletedProcess[str]:
    script = HANGS.format(seconds=seconds, work=work)
    return subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=300)


def test_work_that_hangs_ends_its_process_and_says_where_it_stood() -> None:
    ended = run(0.2, "hang()")
    assert ended.returncode == EXIT_RESTART
    assert "a round of 3 tasks has taken over 0.2 s" in ended.stderr
    assert "in hang" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize("seconds", [0, 30])
def test_work_that_ends_in_time_goes_on(seconds: float) -> None:
    ended = run(seconds, "pass")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_what_the_work_raises_comes_through() -> None:
    with pytest.raises(ValueError, match="no"), at_most(30, "work"):
        raise ValueError("no")
