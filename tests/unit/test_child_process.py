"""Children that end, hang and leave processes behind; a watchdog that is fed and one that is not."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streams.errors import EXIT_RESTART
from streams.processes.child import (
    TAIL_BYTES,
    ChildProcess,
    describe_exit,
    is_ready,
    last_lines,
    signal_and_wait,
)
from tests.support.processes import is_running

FOREVER = "import time\nwhile True: time.sleep(0.05)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n{FOREVER}"
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {FOREVER!r}])
print(child.pid, flush=True)
time.sleep(600)
"""
WATCHED = """
import sys, time
from streams.processes.watchdog import Watchdog
def stuck(): time.sleep(60)
with Watchdog(0.4, "the loop has made no step for 0.4 s") as watchdog:
    for _ in range(10):
        time.sleep(0.1)
        watchdog.beat()
    print("fed", flush=True)
    if sys.argv[1:]: stuck()
time.sleep(0.8)
print("no longer watched")
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-c", code, *arguments]


def first_line(child: ChildProcess) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def test_killing_a_child_kills_what_it_started() -> None:
    with ChildProcess(python(FAMILY), stdout=subprocess.PIPE) as child:
        grandchild = int(first_line(child))
        child.kill_group()
        assert describe_exit(child.returncode) == "signal SIGKILL"
        deadline = time.monotonic() + 300
        while is_running(grandchild):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.kill_group()  # again: it has ended, and nothing happens


def test_ctrl_c_in_the_terminal_does_not_reach_a_child() -> None:
    with ChildProcess(python(FOREVER)) as child:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        child.kill_group()


def test_a_process_deaf_to_sigterm_is_reported_and_ends_with_sigkill() -> None:
    with ChildProcess(python(DEAF), stdout=subprocess.PIPE) as child:
        assert first_line(child) == "deaf"

        def lives() -> bool:
            return child.poll() is None

        assert not signal_and_wait(child.pid, signal.SIGTERM, lives, 0.2)
        assert signal_and_wait(child.pid, signal.SIGKILL, lives, 30)
        assert signal_and_wait(child.pid, signal.SIGTERM, lives, 0)  # it is gone: no error


def test_the_last_lines_of_a_log_of_any_size(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    assert last_lines(log, 3) == []
    log.write_bytes(b"x" * 2 * TAIL_BYTES + b"\none\n\xfftwo\n")
    assert last_lines(log, 2) == ["one", "\ufffdtwo"]


@pytest.mark.parametrize(("code", "text"), [(0, "exit code 0"), (-15, "signal SIGTERM"), (-40, "signal 40")])
def test_an_exit_code_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_watchdog_ends_a_process_only_when_its_beats_stop_and_says_where_it_is() -> None:
    repository = Path(__file__).parents[2]
    fed = subprocess.run([sys.executable, "-c", WATCHED], cwd=repository, capture_output=True, text=True, timeout=300)
    assert (fed.returncode, fed.stdout, fed.stderr) == (0, "fed\nno longer watched\n", "")
    command = [sys.executable, "-c", WATCHED, "stuck"]
    stuck = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
    assert (stuck.returncode, stuck.stdout) == (EXIT_RESTART, "fed\n")
    assert "the loop has made no step for 0.4 s. Ending this process" in stuck.stderr and "in stuck" in stuck.stderr


def test_a_pipe_above_the_descriptors_that_select_takes_is_waited_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    end, write = os.pipe()
    high = fcntl.fcntl(end, fcntl.F_DUPFD, 1500)
    try:
        assert not is_ready(high, "read", 0)
        os.write(write, b"!")
        assert is_ready(high, "read", 1) and is_ready(write, "write", 0)
    finally:
        for descriptor in (end, write, high):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
