"""A fork of the server behaves as a process of `python -m`: each test runs both, and compares them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.log.shared_node import own_prefix
from tests.support.processes import until

PROGRAM = """
import atexit, json, os, random, signal, sys, threading, uuid
atexit.register(print, "at exit")
said = {"argv": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "path": sys.path[0], "in": sys.stdin.read(),
        "own": os.environ.get("STREAMWARD_OWN"), "descriptors": len(os.listdir("/proc/self/fd")),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)]}
print(json.dumps(said))
print(os.getpid(), os.getsid(0) == os.getpid(), random.random(), uuid.uuid4(), file=sys.stderr)
match sys.argv[1]:
    case "raise": raise LookupError("what went wrong")
    case "exit": sys.exit(7)
    case "words": sys.exit("some words")
    case "sleep":
        sys.stdout.flush()
        threading.Event().wait()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, fork_server.serving("uuid") as address:
        if address is None:
            pytest.skip("FORKS CANNOT BE WAITED FOR HERE: no pidfd_open")
        until(lambda: Path(address).exists(), "the server listens")
        patch.setattr(fork_server, "address", address)
        yield


@pytest.fixture(params=["fork", "process"])
def kind(request: pytest.FixtureRequest, server: None, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "process":
        monkeypatch.setattr(fork_server, "address", None)
    return str(request.param)


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    pipe = subprocess.PIPE
    return fork_server.spawn(
        [sys.executable, "-m", "program", *arguments], cwd=folder, env=os.environ | {"STREAMWARD_OWN": "7"},
        stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "last"),
    [
        (["", "a b"], 0, ""),
        (["exit"], 7, ""),
        (["words"], 1, "some words"),
        (["raise"], 1, "LookupError: what went wrong"),
    ],
)
def test_it_has_its_arguments_pipes_folder_and_environment_and_ends_as_it_does(
    kind: str, tmp_path: Path, arguments: list[str], code: int, last: str
) -> None:
    with begin(tmp_path, *arguments) as process:
        out, err = process.communicate("given\n", timeout=300)
    assert isinstance(process, fork_server.Fork) == (kind == "fork")
    assert process.returncode == code, err
    said, at_exit = out.splitlines()
    first, *others = err.splitlines()
    assert at_exit == "at exit" and (others or [""])[-1] == last
    assert first.split()[:2] == [str(process.pid), "True"]
    expected = {"argv": arguments, "name": "__main__", "folder": str(tmp_path), "path": str(tmp_path), "in": "given\n"}
    assert expected.items() <= json.loads(said).items()
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in the background of a shell
    interrupt = "1" if is_ignored else "<built-in function default_int_handler>"
    assert f'"own": "7", "descriptors": 4, "signals": ["0", "{interrupt}", "0"]' in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_is_ended_by_its_pid_and_says_by_what(kind: str, tmp_path: Path, number: int) -> None:
    with begin(tmp_path, "sleep") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.readline()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.kill(process.pid, number)
        assert process.wait(300) == process.poll() == -number
    assert not Path(f"/proc/{process.pid}").exists()


def test_forks_draw_numbers_of_their_own_and_their_cpu_seconds_are_counted(server: None, tmp_path: Path) -> None:
    before_s, drawn = fork_server.cpu_s, set()
    for _ in range(2):
        with begin(tmp_path, "") as process:
            drawn |= set(process.communicate("", timeout=300)[1].split()[2:])
    assert len(drawn) == 4
    assert fork_server.cpu_s > before_s


@pytest.mark.parametrize("own", [{"OMP_NUM_THREADS": "2"}, {"HF_HOME": "/other"}])
def test_a_process_in_an_environment_that_a_library_may_read_is_no_fork(
    server: None, tmp_path: Path, own: dict[str, str]
) -> None:
    (tmp_path / "program.py").write_text("")
    with fork_server.spawn([sys.executable, "-m", "program"], cwd=tmp_path, env=os.environ | own) as process:
        assert not isinstance(process, fork_server.Fork)


def test_topics_have_the_name_of_the_worker_that_a_fork_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw7")
    assert own_prefix().startswith("test-gw7-")
