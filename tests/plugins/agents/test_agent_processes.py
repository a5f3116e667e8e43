"""Programs of agents that work, fail, hang, flood, hide their children and are left alone: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from plugins.agents.runs.agent_process import AgentProcess, ProgramRun, run_process
from schemas.events import Message
from streams.errors import SettingsError
from streams.stages.agents.recording.run_end import TrajectoryEnd
from tests.support.factories import task
from tests.support.processes import is_running

HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for name in list(os.environ): del os.environ[name]
        open("hidden", "w").write(str(os.getpid()))
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
while not os.path.exists("hidden") or not open("hidden").read(): time.sleep(0.01)
"""
"""Leaves a process in a session and an environment of its own, whose parent has ended."""


def context(folder: Path, text: str = "2 + 2?") -> ProgramRun:
    asked = task(messages=(Message(role="user", content=text),), verifier='{"answer": "four"}')
    return ProgramRun("ann", "run-1", asked, "http://127.0.0.1:1/agents/ann/trajectories/run-1", folder)


def ran(folder: Path, code: str, *, stop: threading.Event | None = None, **limits: float) -> TrajectoryEnd:
    process = AgentProcess(command=(sys.executable, "-S", "-c", code), **limits)  # type: ignore[arg-type]
    return run_process(process, context(folder), stop or threading.Event())


def until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hidden(folder: Path) -> int:
    path = folder / "hidden"
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_a_program_has_its_task_its_server_and_a_folder_and_not_the_right_answer_or_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWARD_KAFKA__SASL_PASSWORD", "hunter2")
    code = "import json, os, sys; json.dump([json.load(sys.stdin), dict(os.environ), os.getcwd()], open('seen', 'w'))"
    assert ran(tmp_path / "run", code) == TrajectoryEnd("completed", "exit code 0", 0)
    seen = (tmp_path / "run" / "seen").read_text()
    told, env, folder = json.loads(seen)
    assert (told["prompt"], env["STREAMWARD_PROMPT"], folder) == ("2 + 2?", "2 + 2?", str(tmp_path / "run"))
    assert told["messages"][0]["content"] == "2 + 2?"
    assert env["OPENAI_BASE_URL"] == env["ANTHROPIC_BASE_URL"] + "/v1"
    assert env["OPENAI_BASE_URL"].endswith("/agents/ann/trajectories/run-1/v1")
    assert "four" not in seen and "hunter2" not in seen
    assert "verifier" not in seen


def test_the_servers_key_is_a_programs_key_and_in_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    code = (
        "import json, os; every = {}\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "  try: every[pid] = open(f'/proc/{pid}/cmdline').read()\n"
        "  except OSError: pass\n"
        "json.dump([every, os.environ['OPENAI_API_KEY'], os.environ['ANTHROPIC_API_KEY']], open('seen', 'w'))"
    )
    process = AgentProcess(command=(sys.executable, "-S", "-c", code))
    with_key = context(tmp_path)._replace(key=SecretStr("sw_00112233445566ff_planted"))
    assert run_process(process, with_key, threading.Event()).ending == "completed"
    arguments, *found = json.loads((tmp_path / "seen").read_text())
    assert found == ["sw_00112233445566ff_planted"] * 2
    assert str(os.getpid()) in arguments and not any("planted" in line for line in arguments.values())
    assert "planted" not in repr(with_key)


def test_a_prompt_that_no_variable_can_hold_is_in_the_file_alone(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; assert 'STREAMWARD_PROMPT' not in os.environ; print(len(json.load(sys.stdin)['prompt']))"
    )
    process = AgentProcess(command=(sys.executable, "-S", "-c", code))
    for text in ("a" * 200_000, "nul\0"):
        assert run_process(process, context(tmp_path, text), threading.Event()).ending == "completed"
    assert (tmp_path / "stdout").read_text().split() == ["200000", "4"]


def test_a_program_that_fails_is_a_failed_run_with_its_last_words(tmp_path: Path) -> None:
    failed = ran(tmp_path, "import sys; print('so far'); sys.stderr.write('a\\nwrong: b\\n\\n'); sys.exit(3)")
    assert failed == TrajectoryEnd("failed", "exit code 3: wrong: b", 3)
    assert (tmp_path / "stdout").read_text() == "so far\n"
    killed = ran(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert (killed.ending, killed.exit_code) == ("failed", -signal.SIGSEGV)
    assert killed.reason.startswith("signal SIGSEGV")


def test_a_program_that_hangs_ends_at_its_limit_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    end = ran(tmp_path, deaf, time_limit_s=0.5, grace_s=0.1)
    assert end == TrajectoryEnd("timeout", "it ran for 0.5 s, which is its time limit", -signal.SIGKILL)


def test_a_program_that_is_asked_to_end_may_say_goodbye(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('bye'))); print(1, flush=True); "
    code += "time.sleep(600)"
    stop = threading.Event()

    def once_up() -> None:
        until(lambda: (tmp_path / "stdout").exists() and (tmp_path / "stdout").read_text() == "1\n")
        stop.set()

    asking = threading.Thread(target=once_up)
    asking.start()
    assert ran(tmp_path, code, stop=stop, grace_s=30) == TrajectoryEnd("cancelled", "it was asked to stop", 0)
    asking.join()
    assert (tmp_path / "stdout").read_text() == "1\nbye\n"


def test_what_is_printed_is_kept_up_to_a_limit(tmp_path: Path) -> None:
    end = ran(tmp_path, "for _ in range(100): print('x' * 100_000)", output_bytes=1000)
    assert end.ending == "completed"
    text = (tmp_path / "stdout").read_text()
    assert (text[:1000], text[1000:]) == ("x" * 1000, "\n[more than 1000 bytes: the rest is left out]\n")


def test_a_program_that_fills_its_folder_is_ended(tmp_path: Path) -> None:
    code = "import time\nwith open('big', 'wb') as file: file.truncate(10_000_001)\ntime.sleep(600)"
    end = ran(tmp_path, code, folder_bytes=10_000_000)
    assert end.ending == "failed"
    assert end.reason.startswith("its folder holds more than 10000000 bytes")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: only there is what left its session found")
def test_nothing_that_a_program_leaves_behind_goes_on(tmp_path: Path) -> None:
    assert ran(tmp_path, HIDDEN).ending == "completed"
    assert not is_running(hidden(tmp_path))


MANAGER = """
import sys, threading
from pathlib import Path
from tests.plugins.agents.test_agent_processes import HIDDEN, ran
ran(Path(sys.argv[1]), HIDDEN + "time.sleep(600)")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: only there is what left its session found")
def test_kill_9_of_the_manager_or_of_what_watches_ends_the_program(tmp_path: Path) -> None:
    manager = subprocess.Popen([sys.executable, "-c", MANAGER, str(tmp_path)])
    try:
        left = hidden(tmp_path)
    finally:
        manager.kill()
        manager.wait()
    until(lambda: not is_running(left))
    ends: list[TrajectoryEnd] = []
    code = "import os, time; open('pid', 'w').write(f'{os.getppid()} {os.getpid()} '); time.sleep(600)"
    running = threading.Thread(target=lambda: ends.append(ran(tmp_path / "watched", code)))
    running.start()
    pid = tmp_path / "watched" / "pid"
    until(lambda: pid.exists() and pid.read_text().count(" ") == 2)
    watcher, program = map(int, pid.read_text().split())
    os.kill(watcher, signal.SIGKILL)
    running.join()
    assert ends == [TrajectoryEnd("failed", "the supervisor of the program ended with signal SIGKILL", None)]
    until(lambda: not is_running(program))


def test_a_command_is_looked_for_before_any_task_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my agent.py").write_text("")
    process = AgentProcess.from_text("python3 'my agent.py' --fast", time_limit_s=3)
    assert process.command[1:] == (str(tmp_path / "my agent.py"), "--fast")
    for command, said in (("no-such-thing", "there is no program"), ("a 'b", "no command line"), (" ", "is empty")):
        with pytest.raises(SettingsError, match=said):
            AgentProcess.from_text(command)
    with pytest.raises(SettingsError, match=r"no package\.module:function"):
        AgentProcess.from_entry_point("mine")


def test_an_entry_point_is_called_with_the_prompt_and_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def one(prompt):\n    return prompt\n"
        "async def two(prompt, task):\n    return task['task_id'] + prompt\n"
        "def bad(prompt):\n    raise ValueError('no idea')\n"
    )
    said = [
        run_process(AgentProcess.from_entry_point(f"mine:{name}"), context(tmp_path / name), threading.Event())
        for name in ("one", "two", "bad")
    ]
    assert [end.ending for end in said] == ["completed", "completed", "failed"]
    assert said[2].reason == "exit code 1: ValueError: no idea"
    assert (tmp_path / "one" / "stdout").read_text() == "2 + 2?\n"
    assert (tmp_path / "two" / "stdout").read_text() == f"{task().task_id}2 + 2?\n"
