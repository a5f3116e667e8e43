"""Children that die, hang, refuse, and outlive their parent: real processes, each a few lines of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.demo import restarts as module
from streams.demo.restarts import RestartedProcesses
from streams.errors import StreamwardError
from tests.support.processes import is_running

FOREVER = """
import time
print("up", flush=True)
while True:
    time.sleep(0.05)  # one long sleep would hold up a handler whose signal comes just before it
"""
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN){FOREVER}"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[RestartedProcesses]:
    with RestartedProcesses(tmp_path / "logs", dict(os.environ), grace_s=5) as children:
        yield children


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def happens(processes: RestartedProcesses, count: int) -> list[str]:
    """Return what `check` tells until it has told `count` things."""
    told: list[str] = []
    until(lambda: len(told) >= count or bool(told.extend(processes.check())))
    return told


def is_up(processes: RestartedProcesses, name: str) -> bool:
    return "up\n" in processes.log_file(name).read_text()


def test_a_child_that_dies_is_restarted_and_both_are_reported(processes: RestartedProcesses) -> None:
    processes.start("worker", python(FOREVER))
    first = processes.children["worker"].process
    first.kill()
    ended, again = happens(processes, 2)
    second = processes.children["worker"].process
    assert ended.startswith("worker ended with signal SIGKILL; restarting it in 0.5 s")
    assert str(processes.log_file("worker")) in ended
    assert again == f"worker is running again (pid {second.pid}, restart 1)"
    assert second.pid != first.pid and is_running(second.pid)


def test_nothing_is_said_while_all_run(processes: RestartedProcesses) -> None:
    processes.start("worker", python(FOREVER))
    assert processes.check() == []


def test_what_every_life_of_a_child_printed_is_in_one_file(processes: RestartedProcesses) -> None:
    processes.start("worker", python("import sys; print('out', flush=True); sys.exit('err')"))
    happens(processes, 3)
    assert processes.log_file("worker").read_text().splitlines() == ["out", "err"] * 2


def test_the_pause_doubles_and_a_child_that_does_not_stay_up_is_given_up_with_its_last_output(
    processes: RestartedProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    processes.start("worker", python("print('the disk is full'); raise SystemExit(1)"))
    told: list[str] = []
    with pytest.raises(StreamwardError) as gave_up:
        until(lambda: bool(told.extend(processes.check())))
    assert [line.partition("restarting it in ")[2].partition(" (")[0] for line in told if "ended" in line] == [
        "0.01 s", "0.02 s", "0.04 s", "0.08 s"
    ]  # fmt: skip
    assert "worker does not stay up: it ended 5 times in a row, the last time with exit code 1" in str(gave_up.value)
    assert "    the disk is full" in str(gave_up.value)


def test_a_child_that_settled_is_given_its_first_chance_again(
    processes: RestartedProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    processes.start("worker", python(FOREVER))
    for _ in range(2):
        processes.children["worker"].process.kill()
        happens(processes, 2)
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    assert processes.check() == []
    processes.children["worker"].process.kill()
    assert "restarting it in 0.01 s" in happens(processes, 1)[0]


def test_a_child_that_refuses_its_settings_is_not_started_again(processes: RestartedProcesses) -> None:
    processes.start("worker", python("print('no such topic prefix'); raise SystemExit(2)"))
    with pytest.raises(StreamwardError, match=r"exit code 2[\s\S]*no such topic prefix"):
        until(lambda: bool(processes.check()))


def test_leaving_ends_every_child_by_sigterm_and_waits_for_it(tmp_path: Path) -> None:
    drains = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('drained'))){FOREVER}"
    with RestartedProcesses(tmp_path, dict(os.environ)) as processes:
        for name in ("one", "two"):
            processes.start(name, python(drains))
        pids = [child.process.pid for child in processes.children.values()]
        until(lambda: is_up(processes, "one") and is_up(processes, "two"))
    assert not any(map(is_running, pids))
    assert [processes.log_file(name).read_text().split() for name in ("one", "two")] == [["up", "drained"]] * 2


def test_a_start_that_fails_half_way_ends_what_it_had_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), RestartedProcesses(tmp_path, dict(os.environ)) as processes:
        processes.start("one", python(FOREVER))
        first = processes.children["one"].process
        until(lambda: is_up(processes, "one"))
        processes.start("two", [str(tmp_path / "no such program")])
    assert first.returncode is not None and not is_running(first.pid)


def test_a_child_that_is_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with RestartedProcesses(tmp_path, dict(os.environ), grace_s=0.2) as processes:
        processes.start("deaf", python(DEAF))
        process = processes.children["deaf"].process
        until(lambda: is_up(processes, "deaf"))
    assert process.returncode == -signal.SIGKILL


def test_only_the_children_that_are_named_are_stopped(processes: RestartedProcesses) -> None:
    for name in ("one", "two"):
        processes.start(name, python(FOREVER))
    processes.stop(["one"])
    assert list(processes.children) == ["two"]
    assert is_running(processes.children["two"].process.pid)


def test_ctrl_c_in_the_terminal_reaches_the_parent_alone(processes: RestartedProcesses) -> None:
    processes.start("worker", python(FOREVER))
    assert os.getpgid(processes.children["worker"].process.pid) != os.getpgid(0)


PARENT = """
import os, sys, time
from pathlib import Path
from streams.demo.restarts import RestartedProcesses
with RestartedProcesses(Path(sys.argv[1]), dict(os.environ)) as processes:
    processes.start("worker", sys.argv[2:])
    print(processes.children["worker"].process.pid, flush=True)
    time.sleep(600)
"""


def test_the_children_of_a_killed_parent_end_with_it(tmp_path: Path) -> None:
    end_with_parent = "from streams.processes.signals import end_with_parent; end_with_parent()"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), sys.executable, "-c", end_with_parent + FOREVER],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until(lambda: (tmp_path / "worker.log").read_text() == "up\n")
    assert is_running(child)
    parent.kill()
    parent.communicate()
    until(lambda: not is_running(child))


def test_the_memory_of_a_child_has_that_of_its_own_children_in_it(processes: RestartedProcesses) -> None:
    big = "import sys; kept = bytearray(60_000_000); print('up', flush=True); sys.stdin.read()"  # ends with its parent
    family = f"import subprocess as s, sys; s.Popen([sys.executable, '-S', '-c', {big!r}], stdin=s.PIPE).wait()"
    processes.start("small", python(FOREVER))
    processes.start("family", python(family))
    until(lambda: is_up(processes, "small") and is_up(processes, "family"))
    memory = processes.memory_bytes()
    assert 0 < memory["small"] < 60_000_000 < memory["family"]


def test_a_child_that_a_run_can_do_without_ends_nothing_when_it_does_not_stay_up(processes: RestartedProcesses) -> None:
    processes.start("worker", python(FOREVER))
    processes.start("page", python("raise SystemExit(2)"), needed=False)
    (line,) = happens(processes, 1)
    assert line.startswith("page does not stay up and is left out (its output: ")
    assert set(processes.children) == {"worker"} and processes.check() == []
